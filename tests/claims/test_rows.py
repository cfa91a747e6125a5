"""rows.jsonl and what git says of it: nothing is lost, doubled, or declared afterwards."""

import json
import re
import shutil
import subprocess

import pytest
import yaml

from attnlab.claims.claim import Claim
from attnlab.claims.claim_page import prediction_table, publish_claims
from attnlab.claims.declared import UNCHECKED, commit_of, lost_rows
from attnlab.claims.judged_claim import judge_claim, warning_of_seen_seeds
from attnlab.claims.markdown import BEGIN, END
from attnlab.claims.rows import Rows
from attnlab.claims.trials import Run
from attnlab.commands.claims_json import claim_content
from attnlab.errors import BadInput

CLAIM = {
    "says": "A.", "base": ["y=1"], "first_seed": 300, "most_seeds": 10,
    "arms": {"old": ["attn=old"], "other": ["attn=other"]},
    "predictions": {
        "p": {"says": "P.", "arms": ["old", "other"], "above": 0.5},
        "q": {"says": "Q.", "arms": ["old"], "above": 0.5, "role": "secondary"},
    },
}  # fmt: skip


def row_of(words, seed, commit="", **values):
    return {"overrides": words, "seed": seed, "status": "finished",
            "values": {"val_loss": 1.0, **values}, "cpu_seconds": 1, "commit": commit}  # fmt: skip


def git(folder, *words):
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    done = subprocess.run(["git", *who, *words], cwd=folder, capture_output=True, check=True)
    return done.stdout.decode().strip()


def commit(folder):
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", "x")
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def mine(tmp_path):
    """The directory of a claim, which is declared in a repository."""
    folder = tmp_path / "repository" / "experiments" / "mine"
    folder.mkdir(parents=True)
    git(folder.parents[1], "init", "-q")
    (folder.parents[1] / "code.py").write_text("")
    (folder / "claim.yaml").write_text(yaml.safe_dump(CLAIM))
    (folder / "README.md").write_text("")
    (folder / "figure.svg").write_text("")
    commit(folder)
    return folder


def test_a_row_is_found_again_and_a_half_line_is_cut_off(tmp_path):
    file, runs = tmp_path / "new" / "rows.jsonl", [(["x=1"], 0), (["x=1"], 1), (["x=2"], 0)]
    rows = Rows(file)
    assert rows == {}
    for words, seed in runs:
        rows.add(row_of(words, seed, nothing=float("nan"), curve=[float("inf"), 0.1 + 0.2]))
    assert Rows(file).keys() == rows.keys() == {Run(tuple(w), s) for w, s in runs}
    values = Rows(file)[Run(("x=1",), 1)]["values"]
    assert values == {"val_loss": 1.0, "nothing": None, "curve": [None, 0.1 + 0.2]}
    whole = file.read_bytes()
    for cut in (1, 10, len(whole.splitlines(keepends=True)[-1]) - 1):
        file.write_bytes(whole[:-cut])  # killed within a write
        rows = Rows(file)
        assert set(rows) == {Run(tuple(w), s) for w, s in runs[:2]}
        rows.add(row_of(["x=3"], 0))
        assert len(Rows(file)) == 3
        assert file.read_bytes().startswith(b"".join(whole.splitlines(keepends=True)[:2]))


@pytest.mark.parametrize(
    "line",
    [json.dumps(row_of(["x=1"], 0, val_loss=2.0)),  # a second row of a run
     '{"overrides": ["x=1"]}', '{"overrides": ["x=1"], "se', "[]", ""],
)  # fmt: skip
def test_a_damaged_or_doubled_line_is_named(tmp_path, line):
    file = tmp_path / "mine" / "rows.jsonl"
    file.parent.mkdir()
    file.write_text(f"{json.dumps(row_of(['x=2'], 0))}\n{json.dumps(row_of(['x=1'], 0))}\n")
    assert len(Rows(file)) == 2
    with file.open("a") as stream:
        stream.write(f"{line}\n{json.dumps(row_of(['x=4'], 0))}\n")
    with pytest.raises(BadInput, match=f"{file}, line 3"):
        Rows(file)


def test_rows_of_the_first_file_count_and_new_ones_go_to_the_last(tmp_path):
    committed, own = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    Rows(committed).add(row_of(["x=1"], 0, commit="committed"))
    Rows(own).add(row_of(["x=1"], 0, commit="own"))
    rows, before = Rows(committed, own), committed.read_bytes()
    assert rows[Run(("x=1",), 0)]["commit"] == "committed"
    rows.add(row_of(["x=2"], 0))
    assert committed.read_bytes() == before
    assert len(Rows(own)) == 2


@pytest.mark.parametrize(
    ("file", "clean"),
    [("code.py", False), ("new.py", False), ("README.md", True),
     ("experiments/mine/claim.yaml", False), ("experiments/mine/measure.py", False),
     ("experiments/mine/rows.jsonl", True), ("experiments/mine/README.md", True),
     ("experiments/mine/figure.svg", True), ("experiments/new/rows.jsonl", True)],
)  # fmt: skip
def test_what_makes_a_tree_dirty(mine, file, clean):
    head = git(mine, "rev-parse", "HEAD")
    assert commit_of(mine) == head
    (mine.parents[1] / file).parent.mkdir(exist_ok=True)
    (mine.parents[1] / file).write_text("changed")
    assert commit_of(mine) == commit_of(mine.parents[1]) == (head if clean else f"{head}+")
    git(mine, "add", "-A", ":/")
    assert commit_of(mine) == (head if clean else f"{head}+")


def of_p(**changed):
    return lambda content: content["predictions"]["p"].update(changed)


HEAD, UNKNOWN = "{head}", UNCHECKED.split("{")[0]


@pytest.mark.parametrize(
    ("change", "commit_of_rows", "said"),
    [
        (of_p(), HEAD, ""),
        (of_p(says="Other words.", where="here", long=True), HEAD, ""),
        (lambda content: content.update(says="B.", otherwise="no effect", order=3), HEAD, ""),
        (of_p(above=0.4), HEAD, "Exploratory"),
        (of_p(below=5.0), HEAD, "Exploratory"),
        (of_p(unit="bits"), HEAD, "Exploratory"),
        (of_p(role="against"), HEAD, "Exploratory"),
        (of_p(contrast="min"), HEAD, "Exploratory"),
        (of_p(arms=["other", "old"]), HEAD, "Exploratory"),
        (lambda content: content.update(most_seeds=20), HEAD, "Exploratory"),
        (lambda content: content["predictions"].update(  # added after its rows
            r={"says": "", "arms": ["other"], "above": 0.5}), HEAD, "Exploratory"),
        (of_p(), "{head}+", "Exploratory"),
        (of_p(), "0" * 40, UNKNOWN),
        (of_p(), "", UNKNOWN),
    ],
)  # fmt: skip
def test_a_prediction_is_compared_with_the_commit_of_its_rows(mine, change, commit_of_rows, said):
    at = commit_of_rows.format(head=git(mine, "rev-parse", "HEAD"))
    for words, loss in ((["y=1", "attn=old"], 2.0), (["y=1", "attn=other"], 1.0)):
        for seed in range(300, 310):
            Rows(mine / "rows.jsonl").add(row_of(words, seed, at, val_loss=loss))
    content = json.loads(json.dumps(CLAIM))
    change(content)
    (mine / "claim.yaml").write_text(yaml.safe_dump(content))
    commit(mine)
    claim = Claim.read(mine / "claim.yaml")
    judged = judge_claim(claim, Rows(mine / "rows.jsonl"))
    assert [len(x.values) for x in judged.findings if x.key in "pq"] == [10, 10]
    found = judged.why_exploratory()
    assert found.startswith(said) and bool(found) == bool(said)
    shutil.rmtree(mine.parents[1] / ".git")  # now it cannot be checked
    assert commit_of(mine) == ""
    assert judged.why_exploratory().startswith("Exploratory" if at.endswith("+") else UNKNOWN)


@pytest.mark.parametrize("at_risk", [False, True])
def test_what_is_at_risk_was_declared_before_its_pilots(mine, at_risk):
    content = json.loads(json.dumps(CLAIM))
    before = commit(mine)  # p is declared; r is not
    content["predictions"]["r"] = {"says": "R.", "arms": ["other"], "above": 0.7}
    (mine / "claim.yaml").write_text(yaml.safe_dump(content))
    after = commit(mine)
    for words in (["y=1", "attn=old"], ["y=1", "attn=other"]):
        Rows(mine / "rows.jsonl").add(row_of(words, 1000, before))
        for seed in range(300, 310):
            Rows(mine / "rows.jsonl").add(row_of(words, seed, after))
    for name, refused in (("p", False), ("r", True)):
        marked = json.loads(json.dumps(content))
        marked["predictions"][name]["at_risk"] = at_risk
        (mine / "claim.yaml").write_text(yaml.safe_dump(marked))
        judged = judge_claim(Claim.read(mine / "claim.yaml"), Rows(mine / "rows.jsonl"))
        assert bool(judged.why_exploratory()) == (at_risk and refused)


def test_at_risk_is_said_as_shown_only_where_git_shows_it(mine):
    content = json.loads(json.dumps(CLAIM))
    content["predictions"]["p"]["at_risk"] = True
    file = mine / "claim.yaml"
    told = {}

    def note(case):
        judged = judge_claim(Claim.read(file), Rows(mine / "rows.jsonl"))
        (p, _) = claim_content(judged, 0)["predictions"]
        marks = ("said to be at risk (cannot be checked)", "declared before any run")
        told[case] = (p["at_risk"], *(mark in prediction_table(judged) for mark in marks))

    file.write_text(yaml.safe_dump(content | {"first_seed": 400}))
    note("not committed")
    file.write_text(yaml.safe_dump(content))
    at = commit(mine)
    note("committed")
    Rows(mine / "rows.jsonl").add(row_of(["y=1", "attn=old"], 1000, at))
    note("a pilot after it")
    for words in (["y=1", "attn=old"], ["y=1", "attn=other"]):
        Rows(mine / "rows.jsonl").add(row_of(words, 1001, "0" * 40))
    note("pilots of commits that git does not know")
    lines = (mine / "rows.jsonl").read_text().replace("0" * 40, f"{at}+")
    (mine / "rows.jsonl").write_text(lines.replace(f'"{at}"', f'"{at}+"'))
    note("pilots of uncommitted files")
    shutil.rmtree(mine.parents[1] / ".git")
    note("no repository")
    said, shown = (None, True, False), (True, False, True)
    assert told == {
        "not committed": said,
        "committed": shown,
        "a pilot after it": shown,
        "pilots of commits that git does not know": said,
        "pilots of uncommitted files": said,
        "no repository": said,
    }


def test_a_run_of_an_earlier_test_tells_the_outcome_as_a_pilot_does(mine):
    at = commit(mine)
    for words in (["y=1", "attn=old"], ["y=1", "attn=other"]):
        Rows(mine / "rows.jsonl").add(row_of(words, 300, at))
    content = json.loads(json.dumps(CLAIM)) | {"first_seed": 400}
    content["predictions"]["p"]["at_risk"] = True
    (mine / "claim.yaml").write_text(yaml.safe_dump(content))
    commit(mine)
    judged = judge_claim(Claim.read(mine / "claim.yaml"), Rows(mine / "rows.jsonl"))
    assert judged.why_exploratory().startswith("Exploratory")
    assert claim_content(judged, 0)["predictions"][0]["at_risk"] is False


def tested(mine, loss=1.0):
    """Commit a test of the claim."""
    at = git(mine, "rev-parse", "HEAD")
    for words in (["y=1", "attn=old"], ["y=1", "attn=other"]):
        for seed in range(300, 310):
            Rows(mine / "rows.jsonl").add(row_of(words, seed, at, val_loss=loss))
    commit(mine)


@pytest.mark.parametrize(
    ("trained", "p", "q"),
    [
        ([], "not trained yet: 20 runs", "not trained yet: 10 runs"),
        (["old"], "not trained yet: 10 runs", "confirmed"),
        (["other"], "not trained yet: 10 runs", "not trained yet: 10 runs"),
        (["old", "other"], "refuted", "confirmed"),
    ],
)
def test_a_page_says_what_is_not_trained_yet(mine, trained, p, q):
    (mine / "README.md").write_text(f"{BEGIN}{END}")
    arms = {"old": ["attn=unscaled"], "other": ["attn=sdpa"]}
    content = CLAIM | {"base": ["preset=micro"], "arms": arms}
    (mine / "claim.yaml").write_text(yaml.safe_dump(content))
    at = commit(mine)
    for arm in trained:
        for seed in range(300, 310):
            Rows(mine / "rows.jsonl").add(row_of(["preset=micro", *arms[arm]], seed, at))
    list(publish_claims([Claim.read(mine / "claim.yaml")]))
    page = (mine / "README.md").read_text()
    for says, verdict in (("P.", p), ("Q.", q)):
        assert re.search(rf"{re.escape(says)} \| {verdict}", page)
    assert ("figure.svg" in page) == (len(trained) == 2)  # q does not decide
    assert ("Repeat it" in page) == ("old" in trained)
    assert "not trained yet" in (mine.parent / "README.md").read_text() or len(trained) == 2


def test_a_row_that_was_changed_or_removed_is_not_published(mine):
    tested(mine)
    file = mine / "rows.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    assert lost_rows(file) == []
    for changed in (lines[1:], [lines[0].replace("1.0", "2.0"), *lines[1:]]):
        file.write_text("".join(changed))
        commit(mine)
        assert lost_rows(file) == [lines[0].rstrip()]
        with pytest.raises(BadInput, match="history"):
            list(publish_claims([Claim.read(mine / "claim.yaml")]))
    file.write_text("".join(lines))
    assert lost_rows(file)  # the changed row was committed as well
    assert len(lost_rows(file)) == 1


def test_a_seed_that_was_run_before_is_said(mine, tmp_path):
    claim, outputs = Claim.read(mine / "claim.yaml"), tmp_path / "outputs"
    assert warning_of_seen_seeds(claim, outputs) == ""
    Rows(outputs / "mine" / "rows.jsonl").add(row_of(["y=1", "attn=old"], 1000, "abc+"))
    assert warning_of_seen_seeds(claim, outputs) == ""  # of a pilot
    Rows(outputs / "mine" / "rows.jsonl").add(row_of(["y=1", "attn=old"], 303, "abc+"))
    assert "303" in warning_of_seen_seeds(claim, outputs)
    (mine.parents[1] / "code.py").write_text("changed")
    assert warning_of_seen_seeds(claim, outputs) == ""  # it is exploratory anyway
