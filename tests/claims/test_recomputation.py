"""Every published verdict follows from its rows, by a second implementation of the rule."""

import json
import math
import sys
from collections import defaultdict

import pytest

from attnlab.claims.loading import load_claim
from tests.conftest import ROOT

EXPERIMENTS = ROOT / "experiments"
PUBLISHED = sorted(file.parent.name for file in EXPERIMENTS.glob("*/verdict.json"))
CONTRASTS = {"level": lambda a: a, "difference": lambda a, b: a - b}
TAKES = {"level": 1, "difference": 2}


def number(value):
    return math.nan if value is None else float(value)


def score(prediction, arm, seed, rows, claim, digests):
    """The number by which a run is judged."""
    id_ = f"run-{digests[arm]}-s{seed}"
    metric = prediction.get("metric")
    if isinstance(metric, list):
        name, key, diverged = metric
        read = rows[f"{id_}-{claim}.{name}"]
        return number(diverged) if read["status"] == "diverged" else number(read["values"][key])
    loss = number(rows[id_]["values"].get("val_loss"))
    return loss if rows[id_]["status"] != "diverged" and math.isfinite(loss) else math.inf


def values(claim, name, prediction, seeds, rows, digests):
    """The judged values of a prediction, by seed."""
    if "measure" in prediction:
        function, key = prediction["measure"]
        return [
            number(rows[f"measure-{claim}.{function}-s{seed}"]["values"][key]) for seed in seeds
        ]
    contrast = CONTRASTS.get(prediction["contrast"])
    if contrast is None:
        contrast = vars(sys.modules[f"attnlab_claim_{claim}"])[prediction["contrast"]]
    takes = TAKES.get(prediction["contrast"]) or contrast.__code__.co_argcount or None
    arms = prediction["arms"][:takes]
    scored = (
        [score(prediction, arm, seed, rows, claim, digests) for arm in arms] for seed in seeds
    )
    return [contrast(*of_seed) for of_seed in scored]


def answer(criterion, x):
    """Yes, or the side on which the value contradicts; an empty word for neither."""
    kind = criterion["kind"]
    if kind in ("AtLeast", "AtMost"):
        side = (x > criterion["threshold"]) - (x < criterion["threshold"])
        agrees = side if kind == "AtLeast" else -side
        return {1: "yes", 0: "", -1: "no"}[agrees]
    if kind == "Within":
        low, high = (criterion["center"] + s * criterion["margin"] for s in (-1, 1))
        return "yes" if low < x < high else "below" if x < low else "above" if x > high else ""
    if kind == "Happens":
        return {1.0: "yes", 0.0: "no"}.get(x, "")
    if kind == "Proof":
        return "yes" if x >= -math.log(criterion["alpha"]) else ""
    met = x == criterion["value"] if kind == "Exactly" else x <= criterion["most"]
    return "yes" if met else "no"


def judged(prediction, answers, looks):
    if prediction["criterion"]["kind"] in ("Exactly", "Bound"):
        missed = any(a != "yes" for a in answers)
        return "refuted" if missed else "confirmed" if len(answers) >= 10 else "open"
    for n, bar in looks:
        first = answers[:n]
        if len(first) == n and first.count("yes") >= bar:
            return "confirmed"
        if len(first) == n and max(first.count(w) for w in ("no", "below", "above")) >= bar:
            return "refuted"
    return "open"


def sentence(predictions, verdicts):
    """The verdict on the claim's sentence."""
    parts = defaultdict(list)
    for name, prediction in predictions.items():
        if prediction["role"] == "control" and verdicts[name] != "confirmed":
            return "open"
        if prediction["role"] == "primary":
            parts[prediction.get("part_of") or name].append(name)
    true, false, undecided = 0, 0, 0
    for names in parts.values():
        found = {verdicts[name] for name in names}
        if len(found) > 1 or found == {"open"}:
            undecided += 1
        elif (found == {"confirmed"}) == (predictions[names[0]]["bearing"] == "for"):
            true += 1
        else:
            false += 1
    if false:
        return "holds only if" if true else "does not hold"
    return "holds" if true and not undecided else "open"


@pytest.mark.parametrize("claim", PUBLISHED)
def test_a_verdict_is_recomputed_from_its_rows(claim):
    directory = EXPERIMENTS / claim
    verdict = json.loads((directory / "verdict.json").read_text())
    declared = json.loads((directory / "declared.json").read_text())
    if declared["version"] != verdict["version"]:
        pytest.skip(f"version {declared['version']} is not published yet")
    load_claim(directory / "claim.py")  # for its contrasts
    lines = (directory / "rows.jsonl").read_text().splitlines()
    rows = {row["id"]: row for row in map(json.loads, lines)}
    assert len(rows) == len(lines)
    content, found = declared["declaration"], {}
    digests = {name: arm["digest"] for name, arm in content["arms"].items()}
    judged_ones = {n: p for n, p in content["predictions"].items() if p["role"] != "shown"}
    for name, prediction in judged_ones.items():
        published = verdict["predictions"][name]
        again = values(claim, name, prediction, published["seeds"], rows, digests)
        assert again == pytest.approx([number(x) for x in published["values"]], nan_ok=True)
        answers = [answer(prediction["criterion"], x) for x in again]
        found[name] = judged(prediction, answers, content["looks"])
        assert published["verdict"] == found[name], name
    assert verdict["verdict"] == sentence(judged_ones, found)
