"""The checkup of whole models: diagnoses, restored state, and unusual models."""

import copy
import random

import pytest
import torch
from torch import Tensor, nn

from attnlab.checkup import Status, assert_causal, checkup
from attnlab.errors import BadInput
from attnlab.model import GPT
from tests.faults import in_gpt
from tests.faults.planted import FAULTS

V, T = 29, 19


def small(fault: str = "healthy") -> GPT:
    return in_gpt.build(fault, T, 1, 2)


@pytest.mark.parametrize("fault", ["flipped", "zero_fill", "unmerged_heads"])
def test_faults_are_named(fault: str) -> None:
    planted = next(p for p in FAULTS if p.name == fault)
    report = checkup(in_gpt.build(fault, 29, 1, 4))
    assert not report.healthy
    assert report.exit_code == 1
    assert report.causes == planted.causes[:1]


def test_a_healthy_model_is_healthy() -> None:
    report = checkup(small())
    assert report.healthy
    assert report.exit_code == 0
    assert report.diagnoses == ()


class Noisy(nn.Module):
    """A model with dropout, a buffer that counts calls, batch statistics, and prints."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.net = small()
        self.dropout = nn.Dropout(0.5)
        self.norm = nn.BatchNorm1d(V)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, ids: Tensor) -> tuple[Tensor, None]:
        print("forward")
        self.calls += 1
        ids.add_(0)
        return self.norm(self.dropout(self.net(ids)).mT).mT, None


def test_the_checkup_restores_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    model = Noisy().train()
    model.dropout.eval()
    model.net.wpe.weight.requires_grad_(False)
    model(torch.zeros(3, T).long())[0].sum().backward()
    before = copy.deepcopy(model)
    grads = {n: None if p.grad is None else p.grad.clone() for n, p in model.named_parameters()}
    capsys.readouterr()
    torch.manual_seed(5)
    random.seed(5)
    torch_state, python_state = torch.get_rng_state(), random.getstate()
    checkup(model, vocab_size=V, block_size=T, prove=False)
    assert torch.equal(torch_state, torch.get_rng_state())
    assert python_state == random.getstate()
    for name, value in before.state_dict().items():
        assert torch.equal(value, model.state_dict()[name]), name
    for (name, module), (_, old) in zip(
        model.named_modules(), before.named_modules(), strict=True
    ):
        assert module.training == old.training, name
        assert not module._forward_hooks, name
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad == (name != "net.wpe.weight")
        kept = grads[name]
        assert (parameter.grad is None) == (kept is None)
        assert kept is None or torch.equal(parameter.grad, kept), name
    assert capsys.readouterr().out == ""
    assert torch.is_grad_enabled()


class Uncopyable(nn.Module):
    """A model that cannot be copied is examined in place, and restored."""

    def __init__(self) -> None:
        super().__init__()
        self.net = small()

    def __deepcopy__(self, memo: object) -> "Uncopyable":
        raise TypeError("I am one of a kind")

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.net(ids)
        return logits


def test_a_model_without_a_copy_is_restored() -> None:
    model = Uncopyable().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    report = checkup(model, vocab_size=V, block_size=T)
    assert report.healthy, report.diagnoses
    assert model.training
    assert "one of a kind" in report.settings["copy"]
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(p.grad is None for p in model.parameters())


class Wrapped(nn.Module):
    """The small GPT behind an unusual interface."""

    def __init__(self, habit: str) -> None:
        super().__init__()
        self.net = small().half() if habit == "half" else small()
        self.habit = habit

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> object:
        if self.habit == "raises on short" and ids.shape[1] < 5:
            raise RuntimeError("too short")
        if self.habit == "fixed length" and ids.shape[1] != T:
            raise ValueError(f"exactly {T}")
        if self.habit == "one sequence" and ids.shape[0] != 1:
            raise ValueError("one at a time")
        logits = self.net(ids)
        if self.habit == "last only" and targets is None:
            return logits[:, -1:], None
        if self.habit == "inplace":
            logits.mul_(2.0)
            ids.zero_()
        if self.habit == "object":
            return type("Answer", (), {"logits": logits})()
        if self.habit == "list":
            return [torch.zeros(3), (logits, "text")]
        return logits


HABITS = [
    "half", "raises on short", "fixed length", "one sequence", "last only", "inplace", "object",
    "list",
]  # fmt: skip


@pytest.mark.parametrize("habit", HABITS)
def test_untidy_models_are_examined(habit: str) -> None:
    report = checkup(Wrapped(habit), vocab_size=V, block_size=T)
    assert report.healthy, report.diagnoses
    assert report.finding("future").status is Status.OK


@pytest.mark.parametrize("habit", ["raises on short", "fixed length", "one sequence", "half"])
def test_untidy_models_do_not_hide_a_leak(habit: str) -> None:
    model = Wrapped(habit)
    model.net = small("peek_one").half() if habit == "half" else small("peek_one")
    report = checkup(model, vocab_size=V, block_size=T)
    assert "off_by_one" in report.causes


def numpy_model(mask: float) -> object:
    """One layer of attention in NumPy; blocked scores are set to `mask`."""
    numpy = pytest.importorskip("numpy")
    draw = numpy.random.default_rng(0)
    table, out = draw.normal(size=(V, 8)), draw.normal(size=(8, V))

    def model(ids: object) -> object:
        x = table[numpy.asarray(ids)]  # (B, T, C)
        scores = x @ x.swapaxes(1, 2) / 8**0.5
        blocked = numpy.triu(numpy.ones(scores.shape[1:], bool), 1)
        scores = numpy.where(blocked, mask, scores)
        weights = numpy.exp(scores - scores.max(-1, keepdims=True))
        return (weights / weights.sum(-1, keepdims=True)) @ x @ out

    return model


def test_array_likes_are_examined() -> None:
    assert checkup(numpy_model(-1e9), vocab_size=V, block_size=T).healthy  # type: ignore[arg-type]
    leaky = checkup(numpy_model(0.0), vocab_size=V, block_size=T)  # type: ignore[arg-type]
    assert leaky.causes == ("no_mask",)


def test_assert_causal() -> None:
    assert_causal(small())
    assert_causal(lambda ids: small()(ids), vocab_size=V, block_size=T)
    with pytest.raises(AssertionError, match="mask diagonal off by one"):
        assert_causal(small("peek_one"))


@pytest.mark.parametrize(
    ("model", "sizes", "message"),
    [
        (3, {}, "must be callable"),
        (lambda ids: ids, {}, "vocab_size"),
        (lambda ids: ids, {"vocab_size": 1}, "at least 2"),
        (lambda ids: ids, {"vocab_size": V, "block_size": 1}, "at least 3"),
        (lambda ids: ids, {"vocab_size": V}, "must give logits"),
        (small, {"vocab_size": V}, r"fails on ids of shape \(2, 64\)"),
        (in_gpt.build("healthy", T, 1, 2), {"block_size": 4 * T}, "do not fit into block_size"),
    ],
)
def test_bad_input_is_refused_with_a_sentence(
    model: object, sizes: dict[str, int], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        checkup(model, **sizes)  # type: ignore[arg-type]


def test_nan_is_a_fault() -> None:
    class Nan(nn.Module):
        def forward(self, ids: Tensor) -> Tensor:
            return torch.full((*ids.shape, V), torch.nan)

    report = checkup(Nan(), vocab_size=V, block_size=T)
    assert report.causes == ("not_finite",)
    with pytest.raises(AssertionError, match="NaN"):
        assert_causal(Nan(), vocab_size=V, block_size=T)


def test_report_can_be_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import json

    report = checkup(small("peek_one"))
    plain = json.loads(report.to_json())
    assert plain["healthy"] is False
    assert plain["diagnoses"][0]["cause"] == "off_by_one"
    page = report.to_html()
    assert "<svg" in page
    assert "diagonal" in page
    report.print()
    assert "off by one" in capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "80")
    report.print()
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


class OtherForOne(nn.Module):
    """A causal model with different logits for a sequence of one token."""

    def __init__(self) -> None:
        super().__init__()
        self.net = small()

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.net(ids)
        return logits + 5.0 * (ids.shape[1] == 1) * torch.arange(V)


def test_counts_of_one_are_in_the_singular() -> None:
    report = checkup(OtherForOne(), vocab_size=V, block_size=T)
    assert report.causes == ("prefix_differs",)
    assert report.diagnoses[0].headline.startswith("the first token alone gets different logits")


class Rotated(nn.Module):
    """Rotary positions by a buffer of complex numbers, as in torchtitan."""

    freqs: Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(V, 16), nn.Linear(16, V)
        self.q, self.k = nn.Linear(16, 16), nn.Linear(16, 16)
        angles = torch.outer(torch.arange(64.0), 10.0 ** -torch.arange(0, 1, 1 / 8))
        self.register_buffer("freqs", torch.polar(torch.ones_like(angles), angles))

    def forward(self, ids: Tensor) -> Tensor:
        x, t = self.embed(ids), ids.shape[1]
        q, k = (self.rotate(y) for y in (self.q(x), self.k(x)))
        blocked = torch.ones(t, t, dtype=torch.bool).triu(1)
        weights = (4 * q @ k.mT / 16**0.5).masked_fill(blocked, -torch.inf).softmax(-1)
        logits: Tensor = self.head(x + weights @ x)
        return logits

    def rotate(self, x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.float().unflatten(-1, (8, 2)))
        return torch.view_as_real(pairs * self.freqs[: x.shape[1]]).flatten(-2).to(x)


def test_complex_buffers_stay_complex() -> None:
    report = checkup(Rotated(), vocab_size=V, block_size=T)
    assert report.finding("precision").numbers["own precision"] < 1e-5
    assert report.causes == ("no_scale",), [d.headline for d in report.diagnoses]  # its own


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The .grad attribute")
def test_a_scripted_model_is_examined() -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(V, 8), nn.Linear(8, V)

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.embed(ids).cumsum(1))

    traced = torch.jit.trace(Plain(), torch.zeros(2, T, dtype=torch.long))
    report = checkup(traced, vocab_size=V, block_size=T)
    assert report.error == ""
    assert report.healthy, [d.headline for d in report.diagnoses]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_not_a_fault(dtype: torch.dtype) -> None:
    model = in_gpt.build("healthy", 64, 2, 4).to(dtype)
    report = checkup(model)
    assert report.diagnoses == (), [d.headline for d in report.diagnoses]


def test_a_clock_that_stands_still_divides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows, whose thread clock has steps of 16 ms."""
    monkeypatch.setattr("time.thread_time", lambda: 0.0)
    assert checkup(small()).healthy


def test_a_function_is_called_by_its_name() -> None:
    def their_model(ids: Tensor) -> Tensor:
        return nn.functional.one_hot(ids, V).double().cumsum(1)

    assert checkup(their_model, vocab_size=V, block_size=T).subject == "their_model"


class Closure(nn.Module):
    """A layer inside of a function that closes over the original, as in karpathy/minGPT."""

    def __init__(self, fault: str = "healthy") -> None:
        super().__init__()
        self.net, self.parts = small(fault), nn.ModuleDict({"up": nn.Linear(V, V)})
        self.parts["drop"] = nn.Dropout(0.5)
        parts = self.parts
        self.mlp = lambda x: parts["drop"](parts["up"](x))

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.net(ids)
        return logits + self.mlp(logits)


@pytest.mark.parametrize("training", [True, False])
def test_a_copy_that_calls_the_original_is_not_trusted(training: bool) -> None:
    model = Closure().train(training)
    report = checkup(model, vocab_size=V, block_size=T)
    assert report.diagnoses == (), [d.headline for d in report.diagnoses]
    assert "still calls the original" in report.settings["copy"]
    assert "examined in place" in report.unseen[0]
    assert model.training is model.parts["drop"].training is training
    leaky = checkup(Closure("peek_one").train(training), vocab_size=V, block_size=T)
    assert leaky.causes == ("off_by_one",)


class Forgetful(Uncopyable):
    """A model whose copy has other weights."""

    def __deepcopy__(self, memo: object) -> "Forgetful":
        return Forgetful()

    def __init__(self) -> None:
        super().__init__()
        with torch.no_grad():
            self.net.wte.weight.mul_(torch.rand(()))


def test_a_copy_with_other_logits_is_not_trusted() -> None:
    report = checkup(Forgetful(), vocab_size=V, block_size=T)
    assert report.healthy
    assert "a copy of the model gives other logits" in report.settings["copy"]
