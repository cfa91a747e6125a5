"""The loss: shifted targets, weights without a gradient, and copies of tied weights."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.checkup import Status, assert_loss_shifted, checkup
from attnlab.errors import BadInput
from tests.faults import in_gpt, in_llama, served

V, T = 29, 19
IDS = torch.randint(V, (4, T + 2), generator=torch.Generator().manual_seed(0))


def loss_by(shift: int) -> object:
    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        n = ids.shape[1] - shift
        logits = model(ids)[:, :n]
        return F.cross_entropy(logits.flatten(0, 1), ids[:, shift:].flatten())

    return loss


@pytest.mark.parametrize(
    ("shift", "causes"), [(0, ("not_shifted",)), (1, ()), (2, ("shifted_twice",))]
)
def test_the_shift_is_measured_in_the_users_loss(shift: int, causes: tuple[str, ...]) -> None:
    model = in_gpt.build("healthy", T, 1, 2)
    report = checkup(model, loss=loss_by(shift))  # type: ignore[arg-type]
    assert report.causes == causes, [d.headline for d in report.diagnoses]
    assert report.finding("targets").headline.startswith("measured in the loss")


def test_a_loss_that_cuts_its_inputs_is_supported() -> None:
    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    assert_loss_shifted(in_gpt.build("healthy", T, 1, 2), loss)


def test_equal_inputs_and_labels_are_correct_if_the_model_shifts() -> None:
    x = IDS[:, :T]
    assert checkup(served.build(""), batch=(x, x)).healthy
    twice = checkup(served.build(""), batch=(x, IDS[:, 1 : T + 1]))
    assert twice.causes == ("shifted_twice",)
    plain = checkup(in_gpt.build("healthy", T, 1, 2), batch=(x, x))
    assert plain.causes == ("not_shifted",)


def test_a_loss_of_labels_that_is_not_shifted_is_suspicious() -> None:
    model, x = served.build("labels_not_shifted"), IDS[:, :T]
    report = checkup(model)
    assert report.causes == ("not_shifted",)
    assert report.healthy
    assert "shift them in the data" in report.diagnoses[0].headline
    assert checkup(model, batch=(x, IDS[:, 1 : T + 1])).diagnoses == ()  # shifted in the data
    assert checkup(model, batch=(x, x)).exit_code == 1
    with pytest.raises(AssertionError, match="not_shifted"):
        assert_loss_shifted(model)


def test_labels_of_a_decoder_with_an_encoder_come_shifted() -> None:
    class Decoder(served.Served):
        def forward(  # type: ignore[override]
            self,
            input_ids: Tensor,
            encoder_hidden_states: Tensor | None = None,
            labels: Tensor | None = None,
        ) -> served.Output:
            return super().forward(input_ids, labels=labels)

    report = checkup(Decoder("labels_not_shifted"))
    assert report.diagnoses == ()
    assert "shift them in the data" in report.finding("targets").headline


def test_a_loss_of_targets_is_shifted_in_the_data() -> None:
    class Targets(nn.Module):
        """As in nanoGPT."""

        def __init__(self) -> None:
            super().__init__()
            self.net = in_gpt.build("healthy", T, 1, 2)

        def forward(self, ids: Tensor, targets: Tensor | None = None) -> object:
            logits = self.net(ids)
            if targets is None:
                return logits, None
            return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    report = checkup(Targets(), vocab_size=V, block_size=T)
    assert report.diagnoses == ()
    assert "shift them in the data" in report.finding("targets").headline


def test_assert_loss_shifted() -> None:
    assert_loss_shifted(served.build(""))
    with pytest.raises(AssertionError, match="shifted twice"):
        assert_loss_shifted(served.build("labels_shifted_twice"))
    with pytest.raises(BadInput, match="give loss"):
        assert_loss_shifted(in_gpt.build("healthy", T, 1, 2))


class Frozen(nn.Module):
    """A module that is unused, behind a detach, or frozen on purpose."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.net = in_gpt.build("healthy", T, 1, 2)
        self.extra = nn.Linear(V, V)
        self.extra.requires_grad_(how != "frozen")
        self.how = how

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.net(ids)
        if self.how == "unused":
            return logits
        return logits + (
            self.extra(logits).detach() if self.how == "detached" else self.extra(logits)
        )


@pytest.mark.parametrize(
    ("how", "causes"), [("detached", ("no_gradient",)), ("frozen", ()), ("unused", ())]
)
def test_weights_without_a_gradient(how: str, causes: tuple[str, ...]) -> None:
    report = checkup(Frozen(how), vocab_size=V, block_size=T)
    assert report.causes == causes, [d.headline for d in report.diagnoses]
    assert report.healthy
    if causes:
        assert "extra.weight, extra.bias" in report.diagnoses[0].headline


def test_with_a_loss_unused_weights_are_reported_too() -> None:
    report = checkup(Frozen("unused"), vocab_size=V, block_size=T, loss=loss_by(1))  # type: ignore[arg-type]
    assert report.causes == ("no_gradient",)


def test_copied_tied_weights_are_found() -> None:
    model = in_llama.build("healthy", 2, 4)
    assert checkup(model, vocab_size=V, block_size=T).finding("tied").status is Status.OK
    head, embed = (model.get_submodule(name) for name in ("head", "embed"))
    assert isinstance(head, nn.Linear)
    assert isinstance(embed, nn.Embedding)
    head.weight = embed.weight
    assert checkup(model, vocab_size=V, block_size=T).finding("tied").status is Status.OK
    head.weight = nn.Parameter(embed.weight.detach().clone())
    assert checkup(model, vocab_size=V, block_size=T).causes == ("tied_by_copy",)


def test_a_loss_that_ignores_the_model_cannot_be_followed() -> None:
    other = in_gpt.build("healthy", T, 1, 2)
    with pytest.raises(BadInput, match="does not call the model"):
        assert_loss_shifted(other, lambda model, ids: in_gpt.build("", T, 1, 2)(ids).sum())
