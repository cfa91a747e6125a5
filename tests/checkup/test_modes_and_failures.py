"""Leaks only in training mode, rows, short sequences, and models that raise errors."""

import pytest
import torch
from torch import Tensor, nn

from attnlab.checkup import Status, assert_causal, assert_healthy, checkup
from attnlab.errors import BadInput
from tests.faults import in_gpt

V, T = 29, 19


class TrainingLeak(nn.Module):
    """Causal in eval mode; in training mode the mask is dropped or BatchNorm runs over time."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.masked = in_gpt.build("healthy", T, 1, 2)
        self.open = in_gpt.build("bidirectional", T, 1, 2)
        self.norm = nn.BatchNorm1d(V)
        self.dropout = nn.Dropout(0.3)

    def forward(self, ids: Tensor) -> Tensor:
        if self.kind == "dropped mask":
            logits: Tensor = (self.open if self.training else self.masked)(ids)
        else:
            logits = self.masked(ids)
        logits = self.norm(logits.mT).mT if self.kind == "batch norm" else logits
        return self.dropout(logits)


@pytest.mark.parametrize("kind", ["dropped mask", "batch norm"])
def test_a_leak_only_in_training_mode_is_found(kind: str) -> None:
    model = TrainingLeak(kind)
    report = checkup(model, vocab_size=V, block_size=T)
    assert report.causes == ("training_leak",), [d.headline for d in report.diagnoses]
    assert "training mode" in report.diagnoses[0].headline
    with pytest.raises(AssertionError, match="training mode"):
        assert_causal(model, vocab_size=V, block_size=T)


def test_dropout_in_training_mode_is_not_a_leak() -> None:
    report = checkup(TrainingLeak("none").train(), vocab_size=V, block_size=T)
    assert report.diagnoses == ()
    assert report.finding("training mode").status is Status.OK


class ForgottenBatchFirst(nn.Module):
    """nn.MultiheadAttention expects (T, B, C) unless batch_first=True."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(V, 12), nn.Linear(12, V)
        self.attend = nn.MultiheadAttention(12, 3)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        rows = len(x)
        blocked = torch.ones(rows, rows, dtype=torch.bool).triu(1)
        logits: Tensor = self.head(x + self.attend(x, x, x, attn_mask=blocked)[0])
        return logits


def test_a_forgotten_batch_first_has_its_own_diagnosis() -> None:
    report = checkup(ForgottenBatchFirst(), vocab_size=V, block_size=T)
    assert report.causes == ("batch_time_swapped",), [d.headline for d in report.diagnoses]


def test_every_row_is_compared_with_every_other() -> None:
    class EarlierRow(nn.Module):
        """Row 0 is independent; every other row also reads the row before it."""

        def __init__(self) -> None:
            super().__init__()
            self.net = in_gpt.build("healthy", T, 1, 2)

        def forward(self, ids: Tensor) -> Tensor:
            logits: Tensor = self.net(ids)
            return torch.cat([logits[:1], logits[1:] + 0.1 * logits[:-1]])

    assert checkup(EarlierRow(), vocab_size=V, block_size=T).causes[0] == "rows_mix"


def test_batchnorm_on_a_single_token_does_not_stop_the_checkup() -> None:
    class BatchStatistics(nn.Module):
        """BatchNorm without running statistics refuses a batch of one token."""

        def __init__(self) -> None:
            super().__init__()
            self.net = in_gpt.build("healthy", T, 1, 2)
            self.norm = nn.BatchNorm1d(V, track_running_stats=False)

        def forward(self, ids: Tensor) -> Tensor:
            logits: Tensor = self.norm(self.net(ids).mT).mT
            return logits

    report = checkup(BatchStatistics(), vocab_size=V, block_size=T)
    assert report.error == ""
    assert report.exit_code == 1
    assert report.causes == ("rows_mix",)  # its statistics are over rows and time
    with pytest.raises(AssertionError, match="not causal"):
        assert_causal(BatchStatistics(), vocab_size=V, block_size=T)


class NanAtOne(nn.Module):
    """A standard deviation over time is NaN for one token."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.net = in_gpt.build(fault, T, 1, 2)

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.net(ids)
        return logits + torch.nan if ids.shape[1] == 1 else logits


def test_nan_in_a_sequence_of_one_does_not_hide_a_leak() -> None:
    report = checkup(NanAtOne("peek_one"), vocab_size=V, block_size=T)
    assert {"off_by_one"} <= set(report.causes)
    alone = checkup(NanAtOne("healthy"), vocab_size=V, block_size=T)
    assert alone.causes == ("not_finite",)  # and not as a mask without keys


class Fails(nn.Module):
    """Raises an error after a number of calls."""

    def __init__(self, error: Exception, after: int) -> None:
        super().__init__()
        self.net = in_gpt.build("healthy", T, 1, 2)
        self.error, self.left = error, after

    def forward(self, ids: Tensor) -> Tensor:
        self.left -= 1
        if self.left < 0:
            raise self.error
        logits: Tensor = self.net(ids)
        return logits


@pytest.mark.parametrize("error", [RuntimeError("out of cheese"), OSError("no such table")])
def test_an_error_in_the_model_keeps_the_findings_so_far(error: Exception) -> None:
    report = checkup(Fails(error, after=25), vocab_size=V, block_size=T)
    assert report.exit_code == 3
    assert not report.healthy
    assert report.finding("finite").status is Status.OK
    assert str(error) in report.error
    assert "raise self.error" in report.error  # the user's own line
    assert "checkup/runner.py" not in report.error
    with pytest.raises(AssertionError, match=str(error)):
        assert_causal(Fails(error, after=25), vocab_size=V, block_size=T)


def test_assert_causal_asserts_only_causality() -> None:
    for fault in ("identical_heads", "dropout_on", "row_gain", "self_blocked"):
        assert_causal(in_gpt.build(fault, T, 1, 2))
    for fault in ("zero_fill", "padded_conv", "closed_gate"):
        with pytest.raises(AssertionError, match="not causal"):
            assert_causal(in_gpt.build(fault, T, 1, 2))


def test_assert_healthy_has_a_threshold_and_exceptions() -> None:
    same, unscaled = in_gpt.build("identical_heads", T, 1, 2), in_gpt.build("row_gain", T, 1, 2)
    with pytest.raises(AssertionError, match="identical_heads"):
        assert_healthy(same)
    assert_healthy(checkup(same, severity={"identical_heads": "ok"}))
    with pytest.raises(AssertionError, match="row_sums"):
        assert_healthy(checkup(unscaled, severity={"row_sums": "fault"}))
    with pytest.raises(BadInput, match="severity: identical is not a cause; there are "):
        checkup(same, severity={"identical": "ok"})
    with pytest.raises(BadInput, match="severity: ignore must be fault, suspicious or ok"):
        checkup(same, severity={"identical_heads": "ignore"})
    assert_healthy(unscaled)  # suspicious only
    with pytest.raises(AssertionError, match="row_sums"):
        assert_healthy(unscaled, fail_on="suspicious")
    with pytest.raises(BadInput, match="fail_on = warning"):
        assert_healthy(unscaled, fail_on="warning")


@pytest.mark.parametrize("kind", ["fp64", "function"])
@pytest.mark.parametrize("fault", ["dropout_on", "batch_mean"])
def test_random_logits_and_mixed_rows_are_not_leaks_in_models_that_are_not_cast(
    kind: str, fault: str
) -> None:
    net = in_gpt.build(fault, T, 1, 2)
    model = net.double() if kind == "fp64" else lambda ids: net.eval()(ids)
    report = checkup(model, vocab_size=V, block_size=T)
    expected = {"dropout_on": "dropout_on", "batch_mean": "rows_mix"}[fault]
    assert report.causes == (expected,), [d.headline for d in report.diagnoses]


def test_a_state_between_calls_does_not_hide_a_leak_from_assert_causal() -> None:
    class Counts(nn.Module):
        """Reads the whole sequence, and adds a trace of all earlier calls."""

        seen: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.net = in_gpt.build("bidirectional", T, 1, 2)
            self.register_buffer("seen", torch.zeros(V))

        def forward(self, ids: Tensor) -> Tensor:
            logits: Tensor = self.net(ids) + self.seen
            self.seen = 0.5 * self.seen + logits.detach().mean((0, 1))
            return logits

    assert checkup(Counts(), vocab_size=V, block_size=T).causes == ("keeps_state",)
    with pytest.raises(AssertionError, match="different logits later"):
        assert_causal(Counts(), vocab_size=V, block_size=T)


@pytest.mark.parametrize("error", [RuntimeError("broken"), OSError("broken")])
def test_a_model_that_fails_at_once_or_after_one_call_is_refused(error: Exception) -> None:
    with pytest.raises(BadInput, match=f"fails on ids .* {type(error).__name__}: broken"):
        checkup(Fails(error, after=0), vocab_size=V, block_size=T)
    with pytest.raises(BadInput, match="failed at every length"):
        checkup(Fails(error, after=1), vocab_size=V, block_size=T)
