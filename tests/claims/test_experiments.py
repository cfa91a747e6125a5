"""The claims of this repository: each loads, composes, and can be swept by train.py too."""

import pytest

from attnlab.claims import AtLeast, Measured, Trained
from attnlab.claims.claim import BUDGETS
from attnlab.claims.discover import discover
from attnlab.claims.paths import Places
from attnlab.claims.plan import make_plan
from attnlab.claims.resolve import hydra_conf
from attnlab.plotting.drawing import styled, svg
from tests.claims.simulated import evidence_of
from tests.conftest import CONF, ROOT

EXPERIMENTS = ROOT / "experiments"
CLAIMS = discover(EXPERIMENTS)
NAMES = [claim.name for claim in CLAIMS]


def test_all_nine_are_there_in_order():
    assert NAMES == [
        "unscaled",
        "flipped_mask",
        "identical_heads",
        "kernels_agree",
        "precision",
        "mask_fill",
        "quadratic_cost",
        "more_heads",
        "bahdanau",
    ]


@pytest.mark.parametrize("claim", CLAIMS, ids=NAMES)
def test_every_claim_has_a_sweep_of_its_name(claim):
    places = (CONF, EXPERIMENTS / claim.name / "conf")
    files = [place / "experiment" / f"{claim.name}.yaml" for place in places]
    (text,) = [file.read_text() for file in files if file.exists()]
    assert "sweeper" in text and "seed" in text


@pytest.mark.parametrize("claim", CLAIMS, ids=NAMES)
def test_quick_judges_every_claim_and_compares_six_seeds(claim):
    judged = [part for part in claim.parts if part.counts and "quick" in part.budgets]
    assert judged
    for part in judged:
        seeds = part.budgets["quick"].seeds
        if isinstance(part, Trained):
            assert seeds >= 6 or part.name == "other_leaks"
    assert all("full" in part.budgets for part in claim.parts)


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plans")
    with hydra_conf(CONF):
        return {
            budget: make_plan(CLAIMS, Places(EXPERIMENTS, CONF, folder, budget), seeds=1)
            for budget in BUDGETS
        }


@pytest.mark.slow
@pytest.mark.parametrize("budget", BUDGETS)
def test_every_cell_composes_and_meets_its_preconditions(plans, budget):
    assert plans[budget].unmet == {}
    assert len(plans[budget].tasks) > 25


@pytest.mark.slow
def test_the_baseline_is_trained_once_for_all_claims(plans):
    rows = plans["quick"].rows.items()
    assert len({ids[0] for (_, _, arm, _), ids in rows if arm in BASE}) == 1
    assert {arm for (_, _, arm, _), _ in rows if arm in BASE} == BASE


BASE = {"causal", "independent", "sdpa", "4 heads"}


def test_the_textbook_s_own_assumption_is_a_precondition():
    unscaled = CLAIMS[0]
    part = unscaled.part("b_unit")
    assert isinstance(part, Trained) and isinstance(part.test, AtLeast)
    assert part.test.threshold == 0.10
    assert part.given["model.init"] == "unit" and part.given["model.n_head"] == 1


@pytest.mark.parametrize(
    ("name", "part", "most"),
    [
        ("kernels_agree", "error", 0.0),
        ("precision", "fp32", 1e-5),
        ("unscaled", "d_identity", 1e-10),
        ("mask_fill", "finite_at_start", 0.0),
    ],
)
def test_what_is_measured_without_training(name, part, most):
    claim = CLAIMS[NAMES.index(name)]
    measured = claim.part(part)
    assert isinstance(measured, Measured)
    values = measured.measure(3, "quick")
    assert float(values[measured.value]) <= most
    assert values == measured.measure(3, "quick")  # nothing but the seed decides


@pytest.mark.parametrize("claim", CLAIMS, ids=NAMES)
def test_figures_are_drawn_and_small_enough_for_a_repository(claim):
    assert claim.figure is not None
    with styled():
        text = svg(claim.figure(evidence_of(claim)), claim.name)
    assert text.startswith("<svg")
    assert len(text.encode()) < 200_000


def test_figures_are_drawn_where_a_budget_judges_only_some_parts():
    for claim in CLAIMS:
        evidence = evidence_of(claim)
        evidence.found = dict(list(evidence.found.items())[:1])
        with styled():
            assert claim.figure(evidence) is not None
