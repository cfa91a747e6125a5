"""`attnlab reproduce` from the outside, on a claim of a user's own: it is listed, run, judged."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.claims import own_claim


def attnlab(folder, *arguments, **options):
    command = [sys.executable, "-m", "attnlab", "reproduce", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, **options)


def without_times(content):
    if isinstance(content, dict):
        return {k: without_times(v) for k, v in content.items() if k not in ("times", "runs")}
    return [without_times(v) for v in content] if isinstance(content, list) else content


def verdicts(folder):
    file = folder / "outputs" / "reproduce" / "quick" / "verdicts.json"
    return without_times(json.loads(file.read_text()))


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = own_claim.write(tmp_path_factory.mktemp("project"))
    listed = attnlab(folder, "--list")
    first = attnlab(folder, "mine", "--jobs", "2")
    return folder, listed, first


@pytest.mark.slow
def test_a_claim_of_a_user_s_own_is_listed_run_and_judged(done):
    folder, listed, first = done
    assert "mine" in listed.stdout and "(later)" in listed.stdout
    assert first.returncode == 0, first.stdout + first.stderr
    assert "6 runs and 3 measurements, 0 of them done" in first.stdout
    claim = verdicts(folder)["claims"]["mine"]
    assert claim["verdict"] == "supported"
    assert claim["declared_before_runs"] is True
    parts = claim["parts"]
    assert parts["better"]["n"] == 3 and len(parts["better"]["scores"]["causal"]) == 3
    assert parts["kept"]["values"] == [2.0, 2.0, 2.0]
    assert parts["later"]["verdict"] is None
    assert "not judged at the budget quick" in parts["later"]["remark"]


@pytest.mark.slow
def test_the_second_call_runs_nothing_and_says_the_same(done):
    folder, _, _ = done
    before = verdicts(folder)
    began = time.perf_counter()
    again = attnlab(folder)
    assert time.perf_counter() - began < 20
    assert "nothing to run" in again.stdout
    assert "[1/" not in again.stdout
    assert verdicts(folder) == before


@pytest.mark.slow
def test_a_threshold_of_afterwards_is_called_that(done):
    folder, _, _ = done
    own_claim.write(folder, threshold=-5.0)
    again = attnlab(folder)
    claim = verdicts(folder)["claims"]["mine"]
    assert claim["declared_before_runs"] is False
    assert claim["verdict"] == "refuted"
    assert "changed after the first run" in claim["line"]
    assert again.returncode == 0  # refuted is an answer
    own_claim.write(folder)


@pytest.mark.slow
def test_publish_writes_the_pages_and_only_the_block(done):
    folder, _, _ = done
    readme = folder / "README.md"
    readme.write_text("# Mine\n\n<!-- verdicts -->\nstale\n<!-- /verdicts -->\n\nThe end.\n")
    assert attnlab(folder, "--publish").returncode == 0
    text = readme.read_text()
    assert text.startswith("# Mine\n") and text.endswith("The end.\n") and "stale" not in text
    assert "[mine](experiments/mine/README.md)" in text
    page = (folder / "experiments" / "mine" / "README.md").read_text()
    assert "**supported**" in page and "Flipped is no worse." in page


@pytest.mark.slow
def test_what_fails_is_named_and_takes_nothing_with_it(tmp_path):
    folder = own_claim.write(tmp_path)
    claim = folder / "experiments" / "mine" / "claim.py"
    fatal = """def noise(seed, budget):
    import os
    if seed == 0:
        os.kill(os.getpid(), 9)
    if seed == 1:
        raise OSError("no such luck")
"""
    claim.write_text(claim.read_text().replace("def noise(seed, budget):\n", fatal))
    call = attnlab(folder, "--jobs", "1")
    assert call.returncode == 1
    assert "mine was not judged: noise: 2 failed" in call.stdout
    parts = verdicts(folder)["claims"]["mine"]["parts"]
    assert "signal 9" in parts["noise"]["remark"]
    assert parts["better"]["verdict"] == "supported"
    assert verdicts(folder)["claims"]["mine"]["verdict"] == "inconclusive"
    # The next call tries again what failed, and only that.
    claim.write_text(claim.read_text().replace("if seed == 0", "if seed == 9"))
    again = attnlab(folder, "--jobs", "1")
    assert "6 runs and 3 measurements, 6 of them done" in again.stdout
    rows = folder / "outputs" / "reproduce" / "quick" / "rows"
    reasons = [json.loads(file.read_text())["reason"] for file in rows.glob("measure-*-s1-*")]
    assert all("no such luck" in reason for reason in reasons)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--budget", "huge"], "--budget huge"),
        (["--seeds", "0"], "--seeds 0"),
        (["mime"], "did you mean mine"),
        (["--experiments", "nowhere"], "nowhere"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path, arguments, sentence):
    call = attnlab(own_claim.write(tmp_path), *arguments)
    assert call.returncode == 2
    assert sentence in call.stderr
    assert call.stderr.count("\n") == 1
    assert not (tmp_path / "outputs" / "reproduce" / "huge").exists()


@pytest.mark.long
def test_killed_at_five_moments_it_ends_with_the_same_verdicts(tmp_path):
    quiet, killed = (own_claim.write(tmp_path / name, steps=150) for name in ("quiet", "killed"))
    assert attnlab(quiet, "--jobs", "2").returncode == 0
    command = [sys.executable, "-m", "attnlab", "reproduce", "--jobs", "2"]
    for wait in (4, 9, 13, 15, 18):
        process = subprocess.Popen(
            command, cwd=killed, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(wait)
        children = children_of(process.pid)
        process.send_signal(signal.SIGKILL)
        process.wait()
        deadline = time.monotonic() + 20  # one that is still importing ends when it has done so
        while any(alive(pid) for pid in children) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert not [pid for pid in children if alive(pid)]  # they end with their parent
    assert attnlab(killed, "--jobs", "2").returncode == 0
    assert verdicts(killed) == verdicts(quiet)


def children_of(pid):
    with contextlib.suppress(subprocess.CalledProcessError):
        listed = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=True
        )
        return [int(line) for line in listed.stdout.split()]
    return []


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
