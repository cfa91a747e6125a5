"""The linter of style refuses what has to be read twice, and nothing else."""

import subprocess
from pathlib import Path

import pytest

from scripts import lint_style
from scripts.lint_style import faults, lines_of_code, nested_lines

REFUSED = {
    "two for inside": "x = {k: [b for a in v for b in a] for k, v in d.items()}",
    "two for outside": "x = [f(y for y in b) for a in c for b in a]",
    "a condition inside": "x = [[b for b in a if b] for a in c]",
    "in the source": "x = [f(a) for a in [g(b) for b in c]]",
    "two inside": "x = [([f(b) for b in a], [g(b) for b in a]) for a in c]",
    "three deep": "x = [[[c for c in b] for b in a] for a in d]",
    "in a call": "x = [next((b for b in a if b.ok), None) for a in c]",
    "in a lambda": "x = [lambda a=a: [b for b in a if b] for a in c]",
    "text times comparison": "x = f' of {n}' * (n > 1)",
    "text times bool()": "x = 'none' * bool(y)",
    "text times not": "x = 'none' * (not y)",
    "text times either": "x = 'none' * (a > 1 or y)",
    "truth first": "x = any(y) * 'some'",
    "text times an argument": "def f(grave: bool): return ' (grave)' * grave",
    "text times what was compared": "known = y > 1\nx = 'known' * known",
    "text times an attribute": (
        "class A:\n    def late(self) -> bool: ...\ndef f(a): return 'late' * a.late()"
    ),
    "list times comparison": "x = [1] * (n > 1)",
    "list times getattr": "f(*[memo] * getattr(y, 'uses_memo', False))",
    "tuple times isinstance": "x = (1,) * isinstance(y, int)",
    "for or ()": "for x in y if flag else (): f(x)",
    "for [] or": "for x in [] if flag else y: f(x)",
    "comprehension or ()": "x = [f(a) for a in (y if flag else ())]",
    "comprehension or {}": "x = {a for a in (y if flag else {})}",
    "ternary in else": "x = a if b else c if d else e",
    "ternary in then": "x = (a if b else c) if d else e",
    "ternary in a test": "x = a if (b if c else d) else e",
    "ternary in an argument": "x = a if b else f(c if d else e)",
    "NaN": "x = y == y",
    "no NaN": "x = [a for a in b if a.loss != a.loss]",
    "an item with itself": "x = y[0] == y[0]",
    "two containers": "share, sums = range(0), torch.empty(0)",
    "call and attribute": "draw, ranks = data.draw(n), trainer.world_size",
    "list and list": "shown, names = [c for c in d][::-1], []",
    "two empty lists": "running, failed = [], []",
    "different calls": "rng, length = generator(seed), min(a, b)",
    "different methods": "pattern, values = layer.pattern(x), layer.split(x)",
    "two constants": "SHOWN, CELL = 32, 12",
    "arguments of a constructor": "self.map, self.grave = map, grave",
    "attributes": "net, step = lit.net, trainer.global_step",
    "a letter and a word": "T, font = len(x), load(y)",
    "sizes and a type": "(B, H), dtype = k.shape, k.dtype",
    "reads itself only": "step, names = step + 1, []",
    "no reason": "shown, names = 3, []  # style:",
    "one word": "shown, names = 3, []  # style: ok",
    "the reason of another line": "x = 1  # style: a reason in words\nshown, names = 3, []",
}

ALLOWED = {
    "one level": "x = [[f(b) for b in a] for a in c]",
    "one level in a call": "x = {k: sum(a.n for a in v) for k, v in d.items()}",
    "two for alone": "x = [b for a in c for b in a]",
    "one after the other": "x = [f(a) for a in b] + [g(a) for a in b]",
    "in an argument": "x = f([a for a in b], [a for a in b if a])",
    "text times a number": "x = ' ' * n + '-' * len(y) + '=' * 3",
    "list times a number": "x = [0] * len(y) + [None] * n",
    "number times comparison": "x = y * (n > 1)",
    "a number of that name": "count = 3\nx = 'a' * count",
    "for x in one of two": "for x in a if flag else b: f(x)",
    "ternary": "x = a if b else c",
    "two ternaries": "x = f(a if b else c, a if d else c)",
    "comparison": "x = y == z and y[0] == y[1] and y < y",
    "swap": "a_name, other = other, a_name",
    "from the old value": "new, begin = ids[begin:size], begin + size",
    "letters": "B, H, T, D = 2, 3, 11, 5",
    "letters of a layer": "C, H, D = config.n_embd, self.n_head, self.head_size",
    "letters with numbers": "(q1, q2), (k1, k2) = split(q), cut(k)",
    "the same call": "query, words = normalize(a), normalize(b)",
    "the same method": "nouns, verbs = given['nouns'].split(), given['verbs'].split()",
    "the same call of numbers": "short, dear = operations(32, 512), operations(8192, 512)",
    "a known pair": "low, high = x.min(), x.max()",
    "constants of a pair": "BEGIN, END = '<!-- a -->', '<!-- b -->'",
    "a common part": "rows_left, rows_after = cat(left), after",
    "unpacked": "name, count = f(x)",
    "several targets": "first_one = names = []",
    "a reason": "shown, names = 3, []  # style: one row of a table",
    "a reason in a long statement": "x = (\n a if b else  # style: three ways\n c if d else e)",
}


@pytest.mark.parametrize("code", REFUSED.values(), ids=REFUSED.keys())
def test_what_is_refused(code: str) -> None:
    assert len(faults(code)) == 1


@pytest.mark.parametrize("code", ALLOWED.values(), ids=ALLOWED.keys())
def test_what_is_allowed(code: str) -> None:
    assert faults(code) == []


def test_a_fault_has_its_line() -> None:
    code = "\n".join(["import x", "y = 1", REFUSED["NaN"], ALLOWED["swap"], REFUSED["for or ()"]])
    assert [line for line, _ in faults(code)] == [3, 5]


def test_each_rule_refuses_something() -> None:
    messages = {faults(code)[0][1].split(":")[0] for code in REFUSED.values()}
    kinds = {"are no pair" if "are no pair" in message else message for message in messages}
    assert len(kinds) == len(lint_style.RULES)


def test_a_fault_shows_with_its_file_and_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "new.py"
    file.write_text(REFUSED["NaN"])
    monkeypatch.setattr(lint_style, "ROOT", tmp_path)
    assert [x.split(": ")[0] for x in lint_style.complaints([file])] == ["new.py:1"]


CODE = '''"""A module."""

# A comment.
def f(x):
    """A docstring
    of two lines."""
    return [  # one comprehension with two `for`
        a
        for b in x
        for a in b
    ]


y = [[a for a in b] for b in x]
z = [a for a in y if a]
'''


def test_the_rate_of_a_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert lines_of_code(CODE) == 8
    assert nested_lines(CODE) == [14, 7]
    room = tmp_path / "src/attnlab/claims"
    room.mkdir(parents=True)
    (room / "a.py").write_text(CODE)
    assert lint_style.rate(room) == 1000 * 2 / 8
    monkeypatch.setattr(lint_style, "ROOT", tmp_path)
    assert [x.split(":")[0] for x in lint_style.rooms_over_the_rate()] == ["src/attnlab/claims"]
    (room / "a.py").write_text("z = [a for a in y if a]")
    assert list(lint_style.rooms_over_the_rate()) == []


@pytest.mark.parametrize(
    ("other", "file", "names"),
    [
        ("def parts(x): ...", "data/b.py", {"parts"}),
        ("class Plan: ...", "data/b.py", {"Plan"}),
        ("LONGEST = 3", "data/b.py", {"LONGEST"}),
        ("LONGEST: int = 3", "data/b.py", {"LONGEST"}),
        ("SHORTEST, LONGEST = 2, 3", "data/b.py", {"LONGEST"}),
        ("def parts(x): ...", "commands/b.py", set()),  # a verb
        ("class Plan: ...", "commands/b.py", {"Plan"}),
        ("class Plan: ...", "api.py", {"Plan"}),
        ("def main(): ...", "data/b.py", set()),
        ("def _hidden(): ...", "data/b.py", set()),
        ("from a import parts", "data/b.py", set()),
        ("class B:\n    def parts(self): ...", "data/b.py", set()),
    ],
)
def test_a_public_name_stands_once(
    other: str, file: str, names: set[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "src/attnlab"
    for folder in ("claims", "commands", "data"):
        (package / folder).mkdir(parents=True)
    (package / "claims/a.py").write_text(
        "LONGEST = 2\ndef main(): ...\ndef parts(x): ...\ndef _hidden(): ...\nclass Plan: ...\n"
    )
    (package / file).write_text(other)
    monkeypatch.setattr(lint_style, "ROOT", tmp_path)
    assert {x.split(" ")[0] for x in lint_style.names_that_stand_twice()} == names


def test_all_files_are_linted() -> None:
    """All Python that is tracked."""
    linted = {file.relative_to(lint_style.ROOT).as_posix() for file in lint_style.linted_files()}
    tracked = subprocess.run(
        ["git", "ls-files", "*.py"],
        cwd=lint_style.ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(tracked.stdout.split()) <= linted
