"""What a checkup leaves behind, needs, and says that it did not look at."""

import collections
import contextlib
import copy
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import attncheck as package
from attncheck import (
    CannotCheck,
    assert_causal,
    assert_mask_is_infinite,
    checkup,
    prepared,
    states,
    subject,
)
from examined.others import Habit
from examined.reports import Cached, Decay, step
from examined.small import LM, Attention, C, Does, Served, V, causal


class Frozen(collections.OrderedDict[str, int]):
    """It refuses changes, as the settings of some libraries do."""

    def clear(self) -> None:
        raise TypeError("frozen")

    def update(self, *args: Any, **named: Any) -> None:
        raise TypeError("frozen")

    def __delitem__(self, key: str) -> None:
        raise TypeError("frozen")


class Untidy(LM):
    """It has all kinds of state, writes to it in each call, and may fail in the sixth."""

    def __init__(self, fails: bool = False) -> None:
        norm, drop = nn.BatchNorm1d(C), nn.Dropout()
        super().__init__(beside=Does(lambda m, x: m.drop(m.norm(x.mT).mT), norm=norm, drop=drop))
        self.calls, self.fails, self.last = 0, fails, torch.zeros(())
        self.counted, self.held = nn.Buffer(torch.zeros(())), collections.deque([torch.ones(2)])
        self.sizes, self.cache = [0], {"k": [torch.zeros(3)], "seen": {1}}
        self.frozen = Frozen(width=C)

    def forward(self, ids: Any) -> Any:
        self.calls, self.counted = self.calls + 1, self.counted + 1
        self.last = ids.float().mean()
        self.held.append(self.last)
        self.sizes.append(1)
        self.cache["k"][0] += 1
        self.cache["seen"].add(self.calls)
        ids.add_(0)
        if self.fails and self.calls > 5:
            raise KeyError("full")
        return super().forward(ids)


def state_of(model: Any) -> Any:
    """What must come back, in numbers."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    parts = [(part.training, len(part._forward_hooks)) for part in model.modules()]
    own = (model.calls, model.sizes, model.cache["k"], list(model.held), model.last)
    return {
        "values": {name: x.detach().clone() for name, x in tensors.items()},
        "places": {name: x.data_ptr() for name, x in tensors.items()},
        "grads": {name: x.grad is not None and x.grad.clone() for name, x in tensors.items()},
        "trained": {name: x.requires_grad for name, x in tensors.items()},
        "parts": parts,
        "own": copy.deepcopy(own),
        "seen": sorted(model.cache["seen"]),
        "random": (torch.get_rng_state(), random.getstate()[1], torch.is_grad_enabled()),
    }


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("name", ["checkup", *(x for x in package.__all__ if x[:7] == "assert_")])
def test_a_model_is_as_it_was_also_after_an_error(name: str, fails: bool) -> None:
    if name == "assert_kernel_equal":
        pytest.skip("it takes no model")
    model = Untidy(fails)
    model.beside.drop.eval()
    model.wpe.weight.requires_grad_(False)
    model(torch.zeros(3, 37, dtype=torch.long)).sum().backward()
    more: dict[str, Any] = {
        "assert_documents_separate": {"separator": 0},
        "assert_padding_ignored": {"call": lambda net, ids, real: net(ids)},
        "assert_cache_equal": {"step": lambda net, ids, cache: (net(ids), cache)},
        "assert_loss_shifted": {"loss": lambda net, ids: net(ids).square().mean()},
    }
    before = state_of(model)
    with contextlib.suppress(AssertionError, CannotCheck, KeyError):
        getattr(package, name)(model, **more.get(name, {}))
    torch.testing.assert_close(state_of(model), before, rtol=0, atol=0)


class Rescales(LM):
    """It writes into a weight in each call, perhaps in training mode alone."""

    def __init__(self, how: str) -> None:
        super().__init__(length=12)
        self.how = how

    def forward(self, ids: Any, *args: Any) -> Any:
        if self.how == "always" or (self.how == "training" and self.training):
            self.head.weight.data.mul_(1.01)
        return super().forward(ids)


@pytest.mark.parametrize("how", ["never", "always", "training"])
def test_large_weights_stay_in_place_unless_calls_write_into_them(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = Rescales(how)
    before = {name: x.detach().clone() for name, x in model.named_parameters()}
    expected = checkup(model).to_dict()
    monkeypatch.setattr(subject, "LARGE", 1)
    assert bool(package.prepared(model).unwritten) == (how == "never")
    assert checkup(model).to_dict() == expected
    assert all(torch.equal(before[name], x) for name, x in model.named_parameters())


ALONE = """
import sys
needed = set("torch torchgen attncheck _pytest pytest py iniconfig pluggy packaging pygments "
             "tomli sympy mpmath typing_extensions networkx jinja2 markupsafe filelock "
             "fsspec".split())
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in needed | sys.stdlib_module_names:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Blocker())
import pytest
code = pytest.main(["-v", "-p", "no:cacheprovider", "--rootdir=.", "test_theirs.py"])
raise SystemExit(code)
"""


def test_torch_and_pytest_are_enough(tmp_path: Path) -> None:
    shutil.copy(Path(__file__).with_name("torch_alone.py"), tmp_path / "test_theirs.py")
    run = [sys.executable, "-c", ALONE]
    source = str(Path(package.__file__).parents[1])
    alone = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": source}
    done = subprocess.run(run, cwd=tmp_path, env=alone, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_healthy[finite fill]" in done.stdout and "8 passed" in done.stdout


@pytest.mark.slow
def test_a_single_pair_beyond_dense_is_said_to_be_missed_and_found_if_asked_for() -> None:
    far = lambda i, j: causal(i, j) | ((i == 100) & (j == 101))  # noqa: E731
    model = LM(lambda layer: Attention(may=far), length=256)
    assert "each single pair of positions beyond 64" in assert_causal(model)
    with pytest.raises(AssertionError, match="100"):
        assert_causal(model, dense=256)


@pytest.mark.parametrize(
    ("model", "given", "words"),
    [
        (3, {}, "int, which cannot be called"),
        (lambda ids: ids, {}, "vocab_size"),
        (lambda ids: ids, {"vocab_size": V}, "no numbers"),
        (LM(), {"sample": torch.zeros(3)}, "must be"),
        (LM(), {"sample": torch.zeros(2, 9, dtype=torch.long)}, "one id only"),
        (LM(), {"block_size": 2000}, "fails on inputs"),
        (Served(), {"sample": torch.randn(2, 9, C)}, "fails on inputs"),
    ],
)
def test_what_cannot_be_called_is_said(model: Any, given: dict[str, Any], words: str) -> None:
    with pytest.raises(CannotCheck, match=words):
        checkup(model, **given)


def test_what_does_not_apply_is_said() -> None:
    numbers = lambda ids: nn.functional.one_hot(ids, V).double().cumsum(1)  # noqa: E731
    with pytest.raises(CannotCheck, match="no torch module"):
        assert_mask_is_infinite(numbers, vocab_size=V)
    with pytest.raises(CannotCheck, match="give separator"):
        package.assert_documents_separate(LM())
    with pytest.raises(CannotCheck, match="one sequence at a time"):
        package.assert_rows_independent(Habit("one row", LM()), vocab_size=V, block_size=37)
    with pytest.raises(CannotCheck, match="give left, right"):
        package.assert_padding_ignored(Served(), side="lefft")


def test_steps_that_are_refused_are_said() -> None:
    def single(model: Any, ids: Any, cache: Any) -> Any:
        if cache is not None and ids.shape[1] > 1:
            raise RuntimeError("one token, please")
        return step(model, ids, cache)

    def broken(model: Any, ids: Any, cache: Any) -> Any:
        raise RuntimeError("no cache was set up")

    model = Cached(Decay)
    said = package.assert_cache_equal(model, single)
    assert re.search(r"several tokens at a time.* refused \(RuntimeError: one token", said), said
    with pytest.raises(CannotCheck, match="no cache was set up"):
        package.assert_cache_equal(model, broken)


def test_a_report_says_all_and_ends_with_the_first_of_the_faults() -> None:
    faulty, healthy = checkup(LM(lambda n: Attention(may=lambda i, j: j >= i))), checkup(LM())
    assert (faulty.healthy, faulty.exit_code) == (False, 1)
    assert (healthy.healthy, healthy.exit_code) == (True, 0)
    assert [r.check for r in faulty.results] == ["deterministic", "rows", "causal"]
    (leak,) = [r for r in faulty.results if r.status == "fault"]
    assert leak.map is not None and bool((leak.map.triu(1) > 0).any())
    assert str(faulty).splitlines()[-1] == "LM: faulty" and '"healthy": false' in faulty.to_json()
    assert "before the fault is repaired" in faulty.missing[-1]
    told = faulty.to_dict()
    assert told["exit_code"] == 1 and told["not_tried"] == list(faulty.missing)
    for result, row in zip(faulty.results, told["results"], strict=True):
        assert (row["property"], row["status"]) == (result.check, result.status)
        assert " ".join(row["message"].split()) in " ".join(str(faulty).split())
    assert max(map(len, str(faulty).splitlines())) <= 80


@pytest.mark.parametrize("sample", [None, torch.randn(4, 37, C)], ids=["ids", "vectors"])
def test_other_inputs_differ_at_every_position(sample: torch.Tensor | None) -> None:
    tried = prepared(LM() if sample is None else Attention(), sample)
    x = tried.draw(8, 37)
    assert not (tried.other_inputs(x) == x).any()


def test_other_weights_are_those_that_are_trained() -> None:
    model = LM()
    model.wpe.weight.requires_grad_(False)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    with states.changed(model, change=states.with_noise):
        kept = [name for name, x in model.named_parameters() if torch.equal(x, before[name])]
    assert kept == ["wpe.weight"]


def test_what_a_cache_is_called_with_counts_as_tried() -> None:
    missing = " ".join(checkup(Served()).missing)
    assert "use_cache" not in missing and "past_key_values" not in missing
