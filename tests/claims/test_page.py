"""The report: one file, nothing from outside, thresholds and losers shown."""

import math
import re

import pytest

from attnlab.claims import Arm, AtLeast, AtMost, Claim, Effort, Trained
from attnlab.claims.collect import verdicts
from attnlab.claims.evidence import Evidence, Found
from attnlab.claims.judge import judge_claim, judge_family, judge_part
from attnlab.claims.paths import Places
from attnlab.claims.report import number, publish, write_figures, write_report
from attnlab.errors import BadInput
from attnlab.plotting.drawing import dots, panels


def draw(evidence):
    figure, axes = panels(1)
    dots(axes[0], list(evidence.found["p"].scores.items()))
    return figure


def evidence(name, test):
    part = Trained("p", "Says <b> & |.", test, {"quick": Effort(3)}, arms=(Arm("a"), Arm("b")))
    rows = {
        arm: [
            {"status": "finished", "values": {"val_loss": x + i / 100}, "loss_at_start": 4.2}
            | {"times": {"seconds": 1.0}, "label": "r", "reason": None}
            | {"provenance": {"git": {"commit": "abc"}}}
            for i in range(3)
        ]
        for arm, x in (("a", 2.5), ("b", 2.4))
    }
    found = Found(part, [0, 1, 2], rows)
    judge_part(found)
    result = Evidence(Claim("A <sentence>.", (part,), draw, name=name), "quick", {"p": found})
    judge_claim(result)
    return result


@pytest.fixture
def family():
    both = [evidence("wins", AtLeast(0.05)), evidence("loses", AtMost(0.05))]
    judge_family(both)
    return both


@pytest.fixture
def places(tmp_path):
    for name in ("wins", "loses"):
        (tmp_path / "experiments" / name).mkdir(parents=True)
    return Places(tmp_path / "experiments", tmp_path / "conf", tmp_path / "out", "quick")


def test_the_report_is_one_file_that_asks_for_nothing(family, places):
    write_report(family, write_figures(family, places), places)
    page = places.report.read_text()
    assert not re.search(r"""(src|href)\s*=\s*["'](?!#|data:)""", re.sub(r"xlink:href", "", page))
    assert "@import" not in page and "<script" not in page and "url(http" not in page
    assert page.count("<svg") == 2
    assert page.index("textbook sentence") < page.index("<svg")  # verdicts first
    assert "A &lt;sentence&gt;." in page
    assert 'class="v refuted"' in page and 'class="v supported"' in page
    assert "attnlab reproduce wins --budget quick" in page


def test_figures_are_the_same_bytes_each_time_and_drawn_only_when_something_changed(
    family, places
):
    first = write_figures(family, places)
    drawn = places.figure("wins").stat().st_mtime_ns
    assert write_figures(family, places) == first
    assert places.figure("wins").stat().st_mtime_ns == drawn
    places.figure("wins").unlink()
    assert write_figures(family, places) == first
    family[0].found["p"].rows["a"][0]["values"]["val_loss"] = 3.0
    judge_part(family[0].found["p"])
    assert write_figures(family, places)["wins"] != first["wins"]


def test_verdicts_hold_every_seed_s_value(family):
    part = verdicts(family)["loses"]["parts"]["p"]
    assert part["verdict"] == "refuted"
    assert part["scores"]["a"] == [2.5, 2.51, 2.52]
    assert part["n"] == 3 and math.isclose(part["mean"], 0.1)
    assert part["times"] == {"seconds": [1.0] * 6}


def test_publish_escapes_tables_and_wants_the_marks(family, places):
    readme = places.experiments.parent / "README.md"
    with pytest.raises(BadInput, match="verdicts"):
        publish(family, places, readme)
    readme.write_text("x\n<!-- verdicts --><!-- /verdicts -->\ny\n")
    write_figures(family, places)
    publish(family, places, readme)
    assert "**refuted**" in readme.read_text()
    page = (places.experiments / "wins" / "README.md").read_text()
    assert r"Says <b> & \|." in page
    assert (places.experiments / "wins" / "figure.svg").stat().st_size < 200_000


@pytest.mark.parametrize(
    ("value", "text"), [(2.34567, "2.3457"), (1e-12, "1e-12"), (0, "0"), (12345.6, "1.23e+04")]
)
def test_numbers(value, text):
    assert number(value) == text
