"""Verbs and properties of the checkup stand in the lists that CONTRIBUTING.md names."""

import re
from typing import Any

import pytest
import typer

import attncheck
import attnlab
from attnlab.commands.cli import app
from tests.commands.test_cli import VERBS
from tests.conftest import ROOT

COMMANDS: Any = typer.main.get_command(app)
GUIDES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
GUIDE = "".join(file.read_text(encoding="utf-8") for file in GUIDES)
PROPERTIES = [name for name in attncheck.__all__ if name.startswith("assert_")]
CHECKUP = (ROOT / "docs/checkup.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("verb", COMMANDS.commands)
def test_a_verb_is_in_every_list(verb: str) -> None:
    see = 'see "Add a verb" in CONTRIBUTING.md'
    assert verb in VERBS, f"the verb {verb} lacks an entry in VERBS of tests/commands: {see}"
    assert f"attnlab {verb} " in GUIDE or verb == "train", (
        f"the verb {verb} lacks an example in README.md or docs/: {see}"
    )


@pytest.mark.parametrize("name", PROPERTIES)
def test_a_property_is_in_the_guide(name: str) -> None:
    assert f"| `{name}(" in CHECKUP, (
        f'{name} lacks a row in docs/checkup.md: see "Add a property" in CONTRIBUTING.md'
    )


def test_the_version_is_later_than_the_last_release() -> None:
    """Runs say which version has made them, so what changes after a release is another one."""
    changes = (ROOT / "CHANGELOG.md").read_text()
    unreleased, *releases = re.split(r"^## ", changes.partition("## Unreleased")[2], flags=re.M)
    last = releases[0].split()[0]
    numbers = [[int(x) for x in text.split(".")[:3]] for text in (attnlab.__version__, last)]
    assert numbers[0] > numbers[1] if unreleased.strip() else attnlab.__version__ == last
