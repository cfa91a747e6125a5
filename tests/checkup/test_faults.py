"""Every fault of the tables is found and described, and no healthy model is accused."""

import re
from typing import Any

import pytest
import torch

import attnlab.checkup
from attnlab.checkup import causal
from scripts.checkup_results import PARTS, read_page
from tests.checkup.faults import PLANTED
from tests.checkup.kernels import KERNELS
from tests.checkup.others import OTHERS
from tests.checkup.reports import REPORTED
from tests.checkup.small import Row, Served
from tests.conftest import ROOT

ROWS = {row.name: row for row in (*PLANTED, *REPORTED, *OTHERS, *KERNELS)}
SLOW = {"one far pair", "chunks of 256 in 64", "1,024 positions", "one row"}  # seconds each
SLOW |= {"chunks of 256 in 512", "fill -1e4, scores of 3,000", "bf16", "logits and loss", "object"}
SLOW |= {"nested list", "batches of 8", "symbols that are never chosen", "a bound method"}
SLOW |= {"closure", "half", "five or more", "one length", "batches of 4"}  # like others


def judged(row: Row, package: Any = attnlab.checkup) -> tuple[bool, str]:
    """Whether the check of a row fails, and what it says."""
    torch.manual_seed(0)
    model = row.make()
    try:
        if row.check != "checkup":
            return False, getattr(package, f"assert_{row.check}")(model, **row.options)
        results = package.checkup(model, **row.options).results
    except package.CheckFailed as failed:
        return True, str(failed)
    wrong = [r for r in results if r.status in ("fault", "suspicious", "failed")]
    return bool(wrong), "\n\n".join(f"{r.check}: {r.message}" for r in wrong or results)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in ROWS]
)
def test_a_model_is_judged_rightly_in_one_diagnosis_of_six_lines(name: str) -> None:
    row = ROWS[name]
    failed, said = judged(row)
    assert failed == bool(row.says), said
    assert re.search(row.says or row.told, said), said
    assert not failed or ("\n\n" not in said and said.count("\n") < 6), said


def test_each_assertion_has_a_model_that_passes_and_one_that_fails() -> None:
    assertions = [n[7:] for n in attnlab.checkup.__all__ if n.startswith("assert_")]
    tried = {(row.check, bool(row.says)) for row in ROWS.values()}
    for check in attnlab.checkup.checks_for(Served()):  # by "interface of transformers"
        tried.add((check.func.__name__[7:], False))
    assert {(name, fails) for name in assertions for fails in (False, True)} <= tried


def nothing(*args: Any, **named: Any) -> None:
    """Looks at nothing."""


# What of the core is switched off, how, and a fault that nothing else finds.
SWITCHED: list[tuple[str, Any, str]] = [
    ("with_noise", lambda weight, rng: weight, "a leak behind a gate of 0"),
    ("enlarged", lambda weight, rng, tables: weight, "fill of -1e4"),
    ("cuts_of", lambda T, dense: [T // 2], "one pair"),
    ("cuts_of", lambda T, dense: [*range(1, T)] if dense >= T else [T // 2], "one far pair"),
    ("check_prefixes", nothing, "base by length, 64"),
    ("_gradients_switched", nothing, "a window and the hint"),
    ("_leak_of_an_id", nothing, "an id of 300"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("part", "instead", "name"), SWITCHED, ids=[x[2] for x in SWITCHED])
def test_each_state_of_the_core_finds_what_no_other_does(
    part: str, instead: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(causal, part, instead)
    if part == "with_noise":
        monkeypatch.setitem(causal.STATES, *[key for key in causal.STATES if "noise" in key], {})
    assert not judged(ROWS[name])[0]


def test_without_the_training_mode_a_leak_of_it_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(causal, "STATES", {"": {}})
    assert not judged(ROWS["no mask in training"])[0]


def test_the_page_of_results_has_all_models_and_no_wrong_verdict() -> None:
    page = read_page((ROOT / "docs/checkup-results.md").read_text(encoding="utf-8"))
    judged_now = {(name, part == "Faults") for part in PARTS for name in page[part]}
    assert judged_now == {(row.name, bool(row.says)) for row in (*PLANTED, *REPORTED, *OTHERS)}
