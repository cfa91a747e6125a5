"""The report and the pages of claims: one file that loads nothing, with one verdict per claim."""

import dataclasses
import io
import json
import re
import subprocess

import pytest
from rich.console import Console

from attnlab.claims import Arm, AtLeast, AtMost, Bound, Claim, Proof, Trained
from attnlab.claims.evaluate import judge_prediction, verdict
from attnlab.claims.judge import judge_claim
from attnlab.claims.paths import Paths
from attnlab.claims.report import (
    _changes,
    _claim_page,
    headline,
    number,
    publish,
    read_sentence,
    write_report,
    write_tables,
)
from attnlab.claims.reproduce import print_verdicts
from attnlab.claims.results import Evidence, PredictionResult
from attnlab.claims.rows import sealed
from attnlab.errors import BadInput
from attnlab.files import read_json, write_json
from attnlab.plotting.drawing import dots, panels
from tests.conftest import ROOT


def draw(evidence):
    figure, axes = panels(1)
    dots(axes[0], list(evidence.found["p"].scores.items()))
    return figure


def evidence(name, criterion, commit=None, n=10):
    prediction = Trained("p", "Says <b> & |.", criterion, where="here", arms=(Arm("a"), Arm("b")))
    rows = {
        arm: [
            sealed(
                {"id": f"{arm}{i}", "status": "finished", "values": {"val_loss": x + i / 100}}
                | {"label": "r", "reason": None, "seed": i, "seconds": 1.0}
                | {"git": {"commit": commit, "dirty": False}}
            )
            for i in range(n)
        ]
        for arm, x in (("a", 2.5), ("b", 2.4))
    }
    result = PredictionResult(prediction, list(range(n)), rows)
    claim = Claim("A <sentence>.", (prediction,), figure=draw, name=name)
    judge_prediction(result, claim)
    made = Evidence(claim, {"p": result}, version=1)
    made.rows = {row["id"]: row for row in result.all_rows}
    judge_claim(made)
    return made


@pytest.fixture
def family():
    return [evidence("wins", AtLeast(0.05)), evidence("loses", AtMost(0.05))]


@pytest.fixture
def paths(tmp_path):
    found = Paths(tmp_path / "experiments", tmp_path / "conf", tmp_path / "out", "quick")
    content = {"version": 1, "time": "today", "changed": ["all"], "history": []}
    arms = {arm: {"settings": {"optim.lr": 1e-3}} for arm in ("a", "b")}
    content["declaration"] = {"settings": {"trainer.max_steps": 60}, "arms": arms}
    content["declaration"] |= {"looks": [[10, 10]], "predictions": {}}
    for name in ("wins", "loses"):
        write_json(found.experiments / name / "declared.json", content)
    return found


def test_the_report_is_one_file_that_loads_nothing(family, paths):
    write_report(family, paths)
    page = (paths.results / "report.html").read_text()
    assert not re.search(r"""(src|href)\s*=\s*["'](?!#|data:)""", re.sub(r"xlink:href", "", page))
    assert "@import" not in page and "<script" not in page and "url(http" not in page
    assert page.count("<svg") == 2
    assert page.index("textbook sentence") < page.index("<svg")  # verdicts first
    assert "A &lt;sentence&gt;." in page
    assert 'class="v does not hold"' in page and 'class="v holds"' in page
    assert "attnlab reproduce wins --budget quick" in page


def test_figures_are_the_same_bytes_each_time_and_follow_the_rows(family, paths):
    file = paths.results / "figures" / "wins.svg"

    def drawn():
        write_report(family, paths)
        return file.read_bytes()

    first = drawn()
    assert drawn() == first
    family[0].found["p"].rows["a"][0]["values"]["val_loss"] = 3.0
    judge_prediction(family[0].found["p"], family[0].claim)
    assert drawn() != first


def test_verdicts_contain_the_value_of_every_seed(family):
    content = verdict(family[1])
    assert content["verdict"] == "does not hold"
    prediction = content["predictions"]["p"]
    assert prediction["verdict"] == "refuted"
    assert prediction["scores"]["a"][:2] == [2.5, 2.51]
    assert (prediction["n"], prediction["no"]) == (10, 10)
    assert prediction["median"] == pytest.approx(0.1)


def committed(project):
    """Commit all files of a project in a new repository."""
    identity = ("-c", "user.name=x", "-c", "user.email=x@example.com")
    for words in ("init -q", "add -A", "commit -qm x"):
        subprocess.run(["git", "-C", project, *identity, *words.split()], check=True)
    command = ["git", "-C", project, "rev-parse", "HEAD"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_publish_needs_committed_declarations_and_the_marks(family, paths):
    project = paths.experiments.parent
    with pytest.raises(BadInput, match="outside a git repository"):
        publish(family, paths, project / "README.md")
    commit = committed(project)
    family = [evidence("wins", AtLeast(0.05), commit), evidence("loses", AtMost(0.05), commit)]
    with pytest.raises(BadInput, match="verdicts"):
        publish(family, paths, project / "README.md")
    readme = project / "README.md"
    readme.write_text("x\n<!-- verdicts --><!-- /verdicts -->\ny\n")
    write_report(family, paths)
    publish(family, paths, readme)
    table = (paths.experiments / "README.md").read_text()
    assert "| **does not hold**: here (predicted otherwise). | Says <b> & \\|. |" in table
    assert "| 0.1 nats (0.1 to 0.1) | 0 of 10 |" in table
    assert f"- git: {commit[:12]}\n" in (paths.experiments / "wins" / "README.md").read_text()
    page = (paths.experiments / "wins" / "README.md").read_text()
    assert r"Says <b> & \|." in page and "| 1 | today | all | from 0 | holds |" in page
    assert (paths.experiments / "wins" / "figure.svg").stat().st_size < 200_000


def test_a_headline_of_a_few_seeds_counts_those_that_were_run():
    assert headline(evidence("few", AtLeast(0.05), n=5))["measured"] == "0.1 nats"
    few = headline(evidence("few", AtLeast(0.05), n=7))
    assert (few["measured"], few["n"]) == ("0.1 nats (0.1 to 0.1)", "7 of 7")
    assert headline(evidence("few", Bound(1.0), n=7))["measured"] == "never above 1"
    assert headline(evidence("few", Bound(0.05), n=7))["measured"] == "no"
    proof = headline(evidence("few", Proof(0.95), n=7))  # all seeds
    assert proof["measured"].endswith("(59% to 100% of seeds)")  # 0.025 ** (1 / 7) = 0.590


def test_texts_in_brackets_are_printed_as_they_are(family, paths):
    family[0].claim = dataclasses.replace(family[0].claim, says="Scores [b, t] leak [/].")
    result = family[0].found["p"]
    result.rows["a"][0] |= {"status": "failed", "reason": "[/tmp/x] is gone"}
    result.remark, console = "1 failed: [/tmp/x] is gone", Console(file=io.StringIO(), width=500)
    print_verdicts(family, paths, console)
    printed = console.file.getvalue()
    assert "Scores [b, t] leak [/]." in printed
    assert "wins was not judged: p: 1 failed: [/tmp/x] is gone" in printed


def test_a_page_names_commands_that_work(family, paths):
    readme = paths.experiments / "wins" / "README.md"
    page = _claim_page(family[0], readme.parent, figure=False)
    assert "    attnlab reproduce wins --fresh\n" in page
    assert "    python train.py -m experiment=wins " in page
    (paths.experiments / "wins" / "conf").mkdir()
    late = dataclasses.replace(family[0].found["p"].prediction, budget="full")
    claim = dataclasses.replace(family[0].claim, predictions=(late,))
    page = _claim_page(dataclasses.replace(family[0], claim=claim), readme.parent, figure=False)
    assert "    attnlab reproduce wins --fresh --budget full\n" in page
    assert "python train.py -m --config-dir experiments/wins/conf experiment=wins " in page


def test_runs_are_described_in_words(family, paths):
    row = family[0].found["p"].rows["a"][0]
    row |= {"git": {"commit": "1234567890abcdef", "dirty": True}, "device": "cpu"}
    row["versions"] = {"python": "3.11.7", "torch": "2.13.0"}
    row["corpus"] = "<plays>"
    write_report(family, paths)
    report = (paths.results / "report.html").read_text()
    page = _claim_page(family[0], paths.experiments / "wins", figure=False)
    for text in ("1234567890ab with uncommitted changes", "python 3.11.7, torch 2.13.0", "cpu"):
        assert text in report and text in page
    assert "&lt;plays&gt;" in report and "{" not in page


def test_the_readme_shows_the_first_three_claims_and_a_page_shows_all(tmp_path):
    experiments, readme = tmp_path / "experiments", tmp_path / "README.md"
    for order, name in enumerate(("d", "c", "b", "a")):
        row = {"order": order, "verdict": "**holds**: x", "says": "p", "measured": "1", "n": "2"}
        write_json(experiments / name / "verdict.json", {"says": f"Says {name}.", "row": row})
    readme.write_text("x\n<!-- verdicts -->old<!-- /verdicts -->\ny\n")
    page = experiments / "README.md"
    assert write_tables(experiments, readme) == [readme, page]
    text = readme.read_text()
    assert text.startswith("x\n<!-- verdicts -->\n") and text.endswith("<!-- /verdicts -->\ny\n")
    assert re.findall(r"\]\((.*?)\)", text) == [
        *(f"experiments/{name}/README.md" for name in "dcb"),
        "experiments/README.md",
    ]
    row = "| [Says d.](experiments/d/README.md) | p Measured: 1, 2 seeds. | **holds** |\n"
    assert row in text and "[All 4 claims]" in text
    assert "| Says d. | **holds**: x | p | 1 | 2 |" in page.read_text()
    assert re.findall(r"\| \[.\]\((.*?)\)", page.read_text()) == [
        f"{name}/README.md" for name in "dcba"
    ]


def test_a_sentence_has_published_numbers(tmp_path):
    prediction = {"median": 0.123, "scores": {"with, D = 8": [1.0, 2.0, 9.0]}}
    published = {"row": {}, "predictions": {"p": prediction}}
    (tmp_path / "sentence.md").write_text("It is {p[median]:.2f}\n({p[with, D = 8]:.1f}).\n")
    assert read_sentence(tmp_path, published) == "It is 0.12 (2.0)."
    (tmp_path / "sentence.md").write_text("It is {late[median]:.2f}.")
    with pytest.raises(BadInput, match=r"verdict\.json does not have: 'late'"):
        read_sentence(tmp_path, published)


@pytest.mark.parametrize("name", ["unscaled", "flipped_mask", "identical_heads"])
def test_the_sentences_of_the_readme_are_short(name):
    directory = ROOT / "experiments" / name
    sentence = read_sentence(directory, read_json(directory / "verdict.json"))
    assert len(sentence.split()) <= 25 and "10 of 10 seeds" in sentence
    assert f"| {sentence} |" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_a_notice_is_shown_until_a_new_version_is_published(family, paths):
    project = paths.experiments.parent
    readme, directory = project / "README.md", paths.experiments / "wins"
    readme.write_text("<!-- verdicts --><!-- /verdicts -->")
    commit = committed(project)
    family = [evidence("wins", AtLeast(0.05), commit)]
    for version, kept in ((1, False), (1, True), (2, False)):
        family[0].version = version
        (directory / "notice.md").write_text("One\nprocessor.\n")
        publish(family, paths, readme)
        pages = (paths.experiments / "README.md", directory / "README.md")
        assert ["**In doubt**: One processor." in page.read_text() for page in pages] == [kept] * 2
        assert ("; [in doubt](experiments/wins/README.md) |" in readme.read_text()) == kept
        assert (directory / "notice.md").exists() == kept


def test_rows_from_a_dirty_tree_and_used_seeds_are_not_published(paths):
    project = paths.experiments.parent
    readme, directory = project / "README.md", paths.experiments / "wins"
    readme.write_text("<!-- verdicts --><!-- /verdicts -->")
    made = evidence("wins", AtLeast(0.05), committed(project))
    publish([made], paths, readme)
    assert read_json(directory / "verdict.json")["rows"]["a3"] == made.rows["a3"]["digest"]
    made.rows["a3"]["git"]["dirty"] = True  # published before, so it is not looked at again
    publish([made], paths, readme)
    made.rows["c"] = sealed(made.rows["a3"] | {"id": "c", "label": "the new run"})
    with pytest.raises(BadInput, match="the new run was made with uncommitted changes"):
        publish([made], paths, readme)
    del made.rows["c"]
    (directory / "rows-v0.jsonl").write_text(json.dumps(sealed({"id": "x", "seed": 4})) + "\n")
    with pytest.raises(BadInput, match=r"seed 4 again, which has rows in .*rows-v0\.jsonl"):
        publish([made], paths, readme)


def test_the_page_shows_what_the_arms_cost(paths):
    made = evidence("wins", AtLeast(0.05))
    made.tested = "Tested with one learning rate (0.001)."
    page = _claim_page(made, paths.experiments / "wins", figure=False)
    assert "Holds: here. Tested with one learning rate (0.001).\n" in page
    assert "| a | 0.001 | 60 | 0 |  |  |" in page


def test_exploratory_results_are_not_published(family, paths):
    family[0].exploratory = "changed since version 1 was declared: code.m: a -> b"
    with pytest.raises(BadInput, match=r"code\.m"):
        publish(family, paths, paths.experiments.parent / "README.md")


@pytest.mark.parametrize(
    ("value", "text"), [(2.34567, "2.3457"), (1e-12, "1e-12"), (0, "0"), (12345.6, "1.23e+04")]
)
def test_numbers(value, text):
    assert number(value) == text


def test_the_history_counts_arms_and_names_the_rest():
    changed = ["arm a removed", "arm b removed", "arm c: optim.lr: 0.1 -> 0.2", "code.m: 1 -> 2"]
    changed += ["arm c: optim.min_lr: 0.01 -> 0.02", "prediction p added"]
    assert _changes(["first_seed: 1 -> 2", *changed]) == (
        "first_seed: 1 -> 2; prediction p added; "
        "arms removed: 2; arms with other settings: 1; code"
    )


def test_rows_without_cpu_seconds_do_not_show_wall_time(family, paths):
    result, readme = family[0].found["p"], paths.experiments / "wins" / "README.md"
    for rows in result.rows.values():
        for row in rows:
            row.pop("cpu_seconds", None)
            row["seconds"] = 98765.0
    assert "98765" not in _claim_page(family[0], readme.parent, figure=False)
    for row in result.rows["a"]:
        row["cpu_seconds"] = 43.2
    assert "| 43 |" in _claim_page(family[0], readme.parent, figure=False)


def test_the_history_names_new_predictions_and_long_lists_without_their_content():
    early = ["predictions.p.says: absent -> It falls.", "predictions.p.role: absent -> secondary"]
    long = f"prediction q: arms: {['arm'] * 20} -> {['arm'] * 30}"
    changed = ["predictions.r.criterion.threshold: 0.5 -> 0.2", *early, long]
    assert _changes(changed) == (
        "prediction r: criterion.threshold: 0.5 -> 0.2; prediction q: arms changed; "
        "prediction p added"
    )
