"""docs/outside.md: every command of the page, and every command that these print, runs as printed
in a folder of one's own."""

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli import Done, attnlab
from tests.conftest import ROOT

PAGE = (ROOT / "docs/outside.md").read_text(encoding="utf-8")
FILES = re.findall(r"`([\w/.]+)`[:,][^`]*?```(?:python|yaml)\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = re.findall(r"^    (attnlab .*)$", PAGE, re.MULTILINE)
SWEEP = re.search(r"```python\n(if __name__.*?)```", PAGE, re.DOTALL)
PYTHON = re.search(r"```python\n(from attnlab import compare.*?)```", PAGE, re.DOTALL)


def run(line: str) -> Done:
    """A command as a shell reads it; a sweep in this process."""
    words = []
    for word in shlex.split(line.partition("  #")[0]):
        found = sorted(map(str, Path().glob(word))) if "*" in word else []
        words += found or [word]
    if "-m" in words:
        words.append("hydra/launcher=basic")
    assert words[0] == "attnlab"
    return attnlab(*words[1:])


def printed(done: Done) -> list[str]:
    """The commands that a command prints, each in a line of its own."""
    lines = re.findall(r"^(?:  |More:\s+)(attnlab .*)$", done.out, re.MULTILINE)
    return list(dict.fromkeys(lines))


def test_the_page_has_what_is_tried() -> None:
    names = {name for name, _ in FILES}
    assert {"mine.py", "conf/attn/near.yaml", "conf/experiment/near.yaml"} <= names
    assert len(COMMANDS) >= 10 and PYTHON is not None


@pytest.mark.slow
def test_a_folder_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    for name, content in FILES:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(content)
    advised = []
    for line in COMMANDS:
        done = run(line)
        assert done.code == 0, (line, done)
        advised += printed(done)
    assert any("--config-dir" in line and "range(10)" in line for line in advised), advised
    assert any(line.startswith("attnlab sample") for line in advised)
    for line in dict.fromkeys(advised):
        done = run(line)
        assert done.code == 0, (line, done)
    assert PYTHON is not None and SWEEP is not None
    scope = {"__name__": "__main__"}
    exec(SWEEP[1].replace("name=", "jobs=1, name="), scope)
    runs: Any = scope["runs"]
    assert runs.attn.tolist() == ["Gated", "Gated", "sdpa", "sdpa"]
    exec(PYTHON[1], {})
    assert "val/loss" in capsys.readouterr().out
