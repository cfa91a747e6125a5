"""The digest of own code: equal in each process, another one where what it computes with is."""

import linecache
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from attnlab.settings.own_code import source_text
from attnlab.settings.source import CodeBeside, source_of, source_of_class

CELL = """
import functools
import math
import torch
import helper
from torch import nn
from attnlab.attention import kernel
from helper import twice

FACTOR = 1.0
SIZES = {"a": [1, 2], "b": {3, 4}}
DTYPE = torch.float32
WIDTH = 3
UNUSED = 5

def scaled(x):
    return inner(x) * FACTOR

def inner(x):
    return x + 1

def make(amount):
    def grown(x):
        return x + amount
    return grown

grow = make(2.0)
fixed = functools.partial(inner, x=6)
shrink = lambda x: x / 7

def logged(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args) * 8
    return wrapper

@logged
def shown(x):
    return x - 1

@functools.lru_cache
def kept(n):
    return n + 9

@kernel
def soft(s, mask):
    return weights(s * mask)

def weights(s):
    return s.softmax(-1) + 10

class Part:
    def run(self, x):
        return x * 11

class Base:
    def step(self, x):
        return scaled(x)

class Layer(Base):
    width = WIDTH

    def first(self, x, amount=WIDTH):
        return [SIZES, DTYPE, grow(x), fixed(), shrink(x), shown(x), kept(1), Part, soft, math.pi]

    def second(self, x):
        def nested():
            return twice(x) + nn.functional.relu(x) + helper.LIMIT
        return nested

    def third(self, x):
        import late
        return late.ANSWER
"""
SEEN = {
    "a global of a helper": ("FACTOR = 1.0", "FACTOR = 3.0"),
    "a list in a dict": ("[1, 2]", "[1, 3]"),
    "a dtype": ("DTYPE = torch.float32", "DTYPE = torch.float64"),
    "a default": ("WIDTH = 3", "WIDTH = 4"),
    "a helper of a helper": ("x + 1\n", "x + 2\n"),
    "a variable of a function around it": ("make(2.0)", "make(2.5)"),
    "an argument of a partial": ("x=6", "x=7"),
    "a lambda": ("x / 7", "x / 8"),
    "a decorator": ("* 8", "* 9"),
    "what a decorator wraps": ("x - 1", "x - 2"),
    "a cached function": ("n + 9", "n + 8"),
    "a kernel": ("s * mask", "s + mask"),
    "a helper of a kernel": ("+ 10", "+ 11"),
    "another class": ("x * 11", "x * 12"),
    "a base class": ("return scaled(x)", "return -scaled(x)"),
}
UNSEEN = {
    "a global that it does not read": ("UNUSED = 5", "UNUSED = 6"),
    "an attribute like one": ("UNUSED = 5", "softmax = 6"),
    "a local variable like one": ("UNUSED = 5", "amount = x = 6"),
}
cells = count()


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of the user's from which modules are imported, each time anew."""
    monkeypatch.syspath_prepend(tmp_path)
    before = {*sys.modules}
    (tmp_path / "helper.py").write_text("LIMIT = 1\ndef twice(x): return 2 * x\n")
    (tmp_path / "late.py").write_text("ANSWER = 42\n")
    yield tmp_path
    for name in {*sys.modules} - before:
        if str(tmp_path) in str(vars(sys.modules[name]).get("__file__")):
            del sys.modules[name]


@pytest.fixture
def run_cell(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Any]]:
    """What a cell of a notebook defines."""
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)

    def run(text: str) -> dict[str, Any]:
        file = f"<ipython-input-{next(cells)}>"
        monkeypatch.setitem(
            linecache.cache, file, (len(text), None, text.splitlines(keepends=True), file)
        )
        defined: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(text, file, "exec"), defined)
        return defined

    return run


RunCell = Callable[[str], dict[str, Any]]


def digest(defined: Any) -> str:
    beside = CodeBeside("__main__")
    beside.read(defined)
    assert beside.unseen == []
    return source_text(defined) + "".join(part.decode() for part in beside.found)


@pytest.mark.parametrize(("old", "new"), SEEN.values(), ids=SEEN.keys())
def test_what_a_class_of_a_notebook_computes_with_is_seen(
    run_cell: RunCell, own_folder: Path, old: str, new: str
) -> None:
    assert CELL.count(old) == 1
    before = digest(run_cell(CELL)["Layer"])
    assert digest(run_cell(CELL)["Layer"]) == before  # new objects, at other addresses
    assert digest(run_cell(CELL.replace(old, new))["Layer"]) != before


@pytest.mark.parametrize(("old", "new"), UNSEEN.values(), ids=UNSEEN.keys())
def test_what_it_does_not_read_is_not(
    run_cell: RunCell, own_folder: Path, old: str, new: str
) -> None:
    assert CELL.count(old) == 1
    assert digest(run_cell(CELL)["Layer"]) == digest(run_cell(CELL.replace(old, new))["Layer"])


@pytest.mark.parametrize("module", ["helper.py", "late.py"])
def test_an_edit_of_a_module_that_a_notebook_uses_is_seen(
    run_cell: RunCell, own_folder: Path, module: str
) -> None:
    layer = run_cell(CELL)["Layer"]
    before = digest(layer)
    (own_folder / module).write_text((own_folder / module).read_text() + "# edited\n")
    assert digest(layer) != before


@pytest.mark.parametrize(
    "value", ["torch.ones(2)", "[torch.ones(2)]", "object()", "nn.Linear(1, 1)", "Part().run"]
)
def test_a_value_whose_changes_are_not_seen_is_named(
    run_cell: RunCell, own_folder: Path, value: str
) -> None:
    text = f"{CELL}\nTABLE = {value}\nclass Reads(Layer):\n    def four(self): return TABLE\n"
    beside = CodeBeside("__main__")
    beside.read(run_cell(text)["Reads"])
    (name,) = beside.unseen
    assert "TABLE" in name


def test_code_that_uses_nothing_of_its_own_has_the_digest_of_its_text(
    run_cell: RunCell, own_folder: Path
) -> None:
    """So finished runs of earlier versions stay the same runs."""
    text = "import torch, math\nclass Layer:\n    n = 2\n    def f(self, x, p=0.5): return x"
    beside = CodeBeside("__main__")
    beside.read(run_cell(text.replace("return x", "return torch.relu(x) * math.pi"))["Layer"])
    assert beside.found == []
    (own_folder / "lay.py").write_text("import math\nimport torch\nfrom attnlab import init\n")
    __import__("lay")
    import hashlib

    expected = hashlib.sha256((own_folder / "lay.py").read_bytes()).hexdigest()
    assert source_of({"_target_": "lay.Layer", "x": "no.module", "path": "a/b.txt"}) == expected


FILES = {
    "lay.py": "import pack.part\nfrom helper import twice\nclass Layer: pass\n",
    "helper.py": "from pack import deep\ndef twice(x):\n    import late\n    return x\n",
    "late.py": "",
    "other.py": "",
    "pack/__init__.py": "",
    "pack/part.py": "from . import beside\nfrom .inner.far import value\n",
    "pack/beside.py": "import json\n",
    "pack/deep.py": "import fancy.tools\n",
    "pack/unused.py": "",
    "pack/inner/__init__.py": "",
    "pack/inner/far.py": "value = 1\n",
    "site-packages/fancy/__init__.py": "",
    "site-packages/fancy/tools.py": "",
    "site-packages/fancy_lib-1.0.dist-info/METADATA": "Name: fancy-lib\nVersion: 1.0\n",
    "site-packages/fancy_lib-1.0.dist-info/top_level.txt": "fancy\n",
}
NOT_IMPORTED = {"other.py", "pack/unused.py"}
INSTALLED = {name for name in FILES if name.startswith("site-packages/fancy/")}


@pytest.mark.parametrize("edited", FILES)
def test_modules_of_own_folders_count_by_content_and_packages_by_version(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch, edited: str
) -> None:
    monkeypatch.syspath_prepend(own_folder / "site-packages")
    for name, text in FILES.items():
        (own_folder / name).parent.mkdir(parents=True, exist_ok=True)
        (own_folder / name).write_text(text)
    __import__("lay")
    node = {"_target_": "lay.Layer"}
    before = source_of(node)
    file = own_folder / edited
    file.write_text(file.read_text().replace("1.0", "1.1") + "\n# edited\n")
    same = edited in NOT_IMPORTED | INSTALLED or edited.endswith("top_level.txt")
    assert (source_of(node) == before) == same


def test_an_installed_class_counts_by_its_version(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test_modules_of_own_folders_count_by_content_and_packages_by_version(
        own_folder, monkeypatch, "other.py"
    )
    __import__("fancy.tools")
    assert source_of({"_target_": "fancy.tools.Layer"}) is not None
    assert source_of({"_target_": "torch.nn.Linear"}) is None


class Amount:
    def __init__(self) -> None:
        self.value = LEVEL


LEVEL = 1


def test_a_class_that_python_gives_counts_with_what_it_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = source_of_class(Amount)
    assert source_of_class(Amount) == before
    monkeypatch.setitem(globals(), "LEVEL", 2)
    assert source_of_class(Amount) != before
    monkeypatch.setitem(globals(), "LEVEL", torch.dtype)
    assert source_of_class(Amount) != before
