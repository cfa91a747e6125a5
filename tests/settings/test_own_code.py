"""The digest of code that a notebook defines: equal in each process, another after an edit."""

import linecache
import sys
from collections.abc import Callable
from itertools import count

import pytest

from attnlab.settings.own_code import source_text

CELL = """
from functools import cached_property

class Layer:
    size = 3
    marker = object()

    class Inner:
        depth = 1

    @property
    def doubled(self): return 2 * self.size

    @cached_property
    def tripled(self): return 3 * self.size

    @staticmethod
    def four(): return 4

    @classmethod
    def five(cls): return 5

    def six(self): return 6
"""
EDITS = {
    "a value": ("size = 3", "size = 4"),
    "a nested class": ("depth = 1", "depth = 2"),
    "a property": ("2 * self", "4 * self"),
    "a cached property": ("3 * self", "5 * self"),
    "a static method": ("return 4", "return 0"),
    "a class method": ("return 5", "return 0"),
    "a method": ("return 6", "return 0"),
}
cells = count()


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """The source of `Layer` after a cell with this text was run in a notebook."""

    def run(text: str) -> str:
        file = f"<ipython-input-{next(cells)}>"
        monkeypatch.setitem(
            linecache.cache, file, (len(text), None, text.splitlines(keepends=True), file)
        )
        monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
        defined = {"__name__": "__main__"}
        exec(compile(text, file, "exec"), defined)
        return source_text(defined["Layer"])  # type: ignore[arg-type]

    return run


def test_the_same_cell_has_the_same_source_in_each_process(typed: Callable[[str], str]) -> None:
    before = typed(CELL)
    after = typed(CELL)  # new objects, at other addresses
    assert before == after


def test_a_class_that_names_itself_has_a_source(typed: Callable[[str], str]) -> None:
    assert typed(CELL) in typed(f"{CELL}\nLayer.usual = Layer\n")


@pytest.mark.parametrize(("old", "new"), EDITS.values(), ids=EDITS.keys())
def test_an_edit_of_any_member_changes_the_source(
    typed: Callable[[str], str], old: str, new: str
) -> None:
    assert CELL.count(old) == 1
    assert typed(CELL) != typed(CELL.replace(old, new))
