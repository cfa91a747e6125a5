"""`attnlab reproduce --select`, `--declare` and the run, from the first pilot to the page."""

import json
import math

import pytest

from attnlab.claims import AtLeast, Happens, Measured, Proof, progress
from attnlab.claims.paths import Paths
from attnlab.claims.pilots import _pilot, declare_claims, select
from attnlab.claims.report import publish
from attnlab.claims.reproduce import reproduce
from attnlab.claims.results import PredictionResult
from attnlab.claims.rows import read_rows
from attnlab.files import read_json
from tests.claims import own_claim

CLAIM = """
from attnlab.claims import *

RATES = (1e-3, 3e-3, 1e-2)


CLAIM = Claim(
    says="Gates are better.",
    predictions=(
        Trained(
            "loss", "At least 0.05 nats better.", AtMost(-0.05), where="plays",
            arms=(Arm("gated", ("attn=gate_head",)), Arm("sdpa", ("attn=sdpa",))),
            rates=RATES,
        ),
        Trained(
            "width", "Shown.", AtMost(0.0), role="shown", seeds=2,
            arms=(Arm("narrow", ("model.n_embd=8",)),), contrast=level,
        ),
    ),
)
"""
BEST = {"attn=gate_head": 0.1, "attn=sdpa": 3e-3}  # learning rates


def trained(tasks, paths, jobs):
    """Rows without training: the loss depends on the distance of the rate to the best one."""
    for task in tasks:
        lr = next((float(o[9:]) for o in task.overrides if o.startswith("optim.lr=")), 1e-3)
        best = next((BEST[o] for o in task.overrides if o in BEST), 3e-3)
        loss = 2 + 0.3 * abs(math.log10(lr / best)) - 0.1 * (best == 0.1) + 0.001 * (task.seed % 7)
        row = {"id": task.id, "label": task.label, "seed": task.seed, "status": "finished"}
        row |= {"git": {"commit": "c" * 40, "dirty": False}, "processor": "P", "seconds": 1.0}
        row["versions"] = {"torch": "2"}
        parameters = 1080 if best == 0.1 else 1000
        yield task, [row | task.extra | {"values": {"val_loss": loss, "parameters": parameters}}]


@pytest.mark.parametrize(
    ("criterion", "values", "told"),
    [
        (AtLeast(0.1), [0.2, 0.4], "pilot=Pilot(0.3, 0.14)"),
        (
            AtLeast(0.1),
            [0.2, 0.4, math.inf],
            "pilot=Pilot(0.3, 0.14); 1 of 3 values are not finite",
        ),
        (AtLeast(0.1), [0.2, math.inf], "no pilot: 1 of 2 values are not finite"),
        (Happens("x"), [1.0, 1.0, 0.0, 1.0], "pilot=Pilot(0.75)"),
        (Proof(), [40.0, 2.0], "pilot=Pilot(0.5)"),  # the share of proofs, not their size
    ],
)
def test_the_printed_pilot_is_what_a_claim_takes(criterion, values, told):
    assert _pilot(PredictionResult(Measured("p", "says", criterion), values=values)) == told


@pytest.fixture
def paths(tmp_path, monkeypatch):
    folder = own_claim.write(tmp_path)
    (folder / "experiments/mine/claim.py").write_text(CLAIM)
    monkeypatch.setattr(progress, "execute", trained)
    monkeypatch.setattr("attnlab.claims.report.check_committed", lambda *_: None)
    return Paths(folder / "experiments", folder / "conf", folder / "out", "full")


def test_rates_are_chosen_declared_and_run_to_a_page(paths, capsys, monkeypatch):
    assert not select(paths, ["mine"], jobs=1, only_plan=True)
    assert "18 runs and measurements come next" in capsys.readouterr().out
    assert select(paths, ["mine"], jobs=1)
    told = capsys.readouterr().out
    # The best rate of the gated arm lies beyond the edge, and further than two extensions reach.
    assert "gated: 1,080 parameters, best rate 0.11 of 0.001, 0.003, 0.01" in told
    assert "0.033, 0.11, at the edge" in told
    assert "sdpa: 1,000 parameters, best rate 0.003 of 0.001, 0.003, 0.01" in told
    assert "mine.loss: pilot=Pilot(-0.0" in told
    file = own_claim.file(paths, "pilots.jsonl")
    pilots = read_rows(file)
    # 3 seeds at 5 and 3 rates, 2 more at the best one; nothing for what is shown.
    assert len(pilots) == 3 * 5 + 3 * 3 + 2 * 2
    assert {row["seed"] for row in pilots} == set(range(1000, 1005))
    assert select(paths, ["mine"], jobs=1)  # again: nothing is left to do
    assert read_rows(file) == pilots

    declare_claims(paths, ["mine"], jobs=1)
    declared = read_json(own_claim.file(paths, "declared.json"))
    arms = declared["declaration"]["arms"]
    assert arms["gated"]["settings"]["optim.lr"] == 0.11
    assert arms["sdpa"]["settings"]["optim.lr"] == 0.003
    assert "arm narrow" not in declared["reference"]["values"]
    assert "arm gated" in declared["reference"]["values"]

    # It cheats: a rate at the edge, and more parameters. The page says so.
    monkeypatch.setattr("attnlab.claims.reference.execute", trained)
    family, _ = reproduce(paths, ["mine"], jobs=1)
    readme = paths.experiments.parent / "README.md"
    readme.write_text("<!-- verdicts --><!-- /verdicts -->\n")
    publish(family, paths, readme)
    page = own_claim.file(paths, "README.md").read_text()
    assert "the best rate of gated is at the edge of those tried" in page
    assert "unequal parameters (gated has 8.0% more than sdpa)" in page
    assert "each arm at its best learning rate" in page
    assert "0.001: " in page and "0.11: " in page  # the losses of the pilots by rate
    verdict = json.loads(own_claim.file(paths, "verdict.json").read_text())
    assert len(verdict["rows"]) == 2 * 10 + 2
