"""The next versions of claims can be declared as they are: what decides has fresh seeds, and
something is at risk."""

from pathlib import Path

import pytest

from attnlab.claims.attempts import attempts_of
from attnlab.claims.claim import Claim, make_importable
from attnlab.claims.finding import rows_of_arm
from attnlab.claims.rows import Rows
from attnlab.claims.trials import is_measurement
from attnlab.claims.work import composed
from tests.conftest import ROOT

NEXT = sorted((ROOT / "experiments").glob("*/next.yaml"))


@pytest.mark.parametrize("file", NEXT, ids=lambda file: file.parent.name)
def test_the_next_version_of_a_claim_can_be_declared(file: Path) -> None:
    claim = Claim.read(file)
    published = file.with_name("claim.yaml")  # a new claim has none yet
    make_importable([claim])
    rows = Rows(claim.folder / "rows.jsonl")
    seeds = set[int]()
    at_risk = []
    for prediction in claim.predictions.values():
        if prediction.role != "shown":  # it may show rows of the version before
            seeds |= set(claim.seeds_of(prediction))
        if prediction.at_risk and prediction.role in ("for", "against"):
            at_risk.append(prediction)
            for steps in prediction.lengths or (None,):
                arms = claim.arms_of(prediction, steps).values()
                assert any(not rows_of_arm(arm, rows) for arm in arms)
    assert at_risk
    assert not seeds & {run.seed for run in rows}
    if published.exists():
        earlier = attempts_of(Claim.read(published), rows)
        assert claim.first_seed > max(x.first_seed or 0 for x in earlier)
    for words in claim.arms.values():
        if not is_measurement(words):
            composed((*claim.base, *words), claim.folder.parent)
