"""Mutants of the code that the reduction kept, and whether the tests catch them.

    python scripts/mutants.py draw b308e5e   # once, before the cut: writes tests/mutants.json
    python scripts/mutants.py run            # applies each to src/ and runs the tests

A mutant changes one operator or one number of a statement. Statements are drawn, with a committed
seed, among those that both trees have: then the old and the new tests can be asked the same thing.
"""

import argparse
import ast
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE, LIST = ROOT / "src", ROOT / "tests/mutants.json"
SEED, COUNT = 20261125, 60
SWAPS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.MatMult: ast.Mult, ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd, ast.And: ast.Or, ast.Or: ast.And, ast.Lt: ast.LtE, ast.LtE: ast.Lt,
    ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn,
    ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.USub: ast.UAdd,
}  # fmt: skip


def statements(tree: ast.Module) -> Iterator[tuple[str, ast.stmt]]:
    """Each simple statement inside a function, with the name of the function."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Assign | ast.AugAssign | ast.Return | ast.Expr):
                    yield function.name, node


def mutants(statement: ast.stmt) -> list[str]:
    """The statement with one operator or one number changed, in each possible way."""
    found = []
    for at, node in enumerate(ast.walk(statement)):
        changed = ast.parse(ast.unparse(statement)).body[0]
        copy = [*ast.walk(changed)][at] if at < len([*ast.walk(changed)]) else None
        if type(copy) is not type(node):
            continue
        if isinstance(copy, ast.Constant) and type(copy.value) in (int, float):
            copy.value += 1
        elif isinstance(copy, ast.BinOp | ast.BoolOp | ast.UnaryOp) and type(copy.op) in SWAPS:
            copy.op = SWAPS[type(copy.op)]()
        elif isinstance(copy, ast.Compare) and type(copy.ops[0]) in SWAPS:
            copy.ops[0] = SWAPS[type(copy.ops[0])]()
        else:
            continue
        found.append(ast.unparse(changed))
    return found


def draw(commit: str) -> None:
    """Write the list: statements of the commit that today's src has too."""
    today = {ast.unparse(x) for f in SOURCE.rglob("*.py") for _, x in statements(parse(f))}
    git = ["git", "-C", str(ROOT)]
    names = subprocess.run(
        [*git, "ls-tree", "-r", "--name-only", commit, "src"], capture_output=True, text=True
    ).stdout.split()
    rows = {}
    for name in filter(lambda x: x.endswith(".py"), names):
        text = subprocess.run(
            [*git, "show", f"{commit}:{name}"], capture_output=True, text=True
        ).stdout
        for function, statement in statements(ast.parse(text)):
            if (before := ast.unparse(statement)) in today:
                for after in mutants(statement):
                    rows[before, after] = {"file": name, "function": function}
    order = sorted(rows)
    random.Random(SEED).shuffle(order)
    chosen = [rows[x] | {"before": x[0], "after": x[1]} for x in order[:COUNT]]
    LIST.write_text("[\n" + ",\n".join(map(json.dumps, chosen)) + "\n]\n")
    print(f"{len(chosen)} of {len(rows)} mutants")


def parse(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def place(row: dict[str, str]) -> tuple[Path, ast.stmt] | None:
    """Where today's code has the statement; a function of the same name is preferred."""
    found = [
        (name != row["function"], file, statement)
        for file in sorted(SOURCE.rglob("*.py"))
        for name, statement in statements(parse(file))
        if ast.unparse(statement) == row["before"]
    ]
    return min(found, key=lambda x: x[:2])[1:] if found else None


def run(tests: list[str], first: int, last: int) -> None:
    """Apply each mutant in turn, run the tests until one fails, and restore the file."""
    for n, row in [*enumerate(json.loads(LIST.read_text()))][first:last]:
        if (where := place(row)) is None:
            print(f"{n:2} gone       {row['file']}: {row['before']}", flush=True)
            continue
        file, statement = where
        text = file.read_text()
        lines = text.splitlines(keepends=True)
        after = " " * statement.col_offset + row["after"] + "\n"
        lines[statement.lineno - 1 : statement.end_lineno] = [after]
        folder = ROOT / "tests" / file.relative_to(SOURCE / "attnlab").parts[0]
        likely = [str(folder)] if folder.is_dir() and not tests else []
        try:
            file.write_text("".join(lines))
            caught = any(fails(x) for x in ([tests] if tests else [likely, ["tests"]]) if x)
        finally:
            file.write_text(text)
        word = "caught" if caught else "NOT CAUGHT"
        print(f"{n:2} {word:10} {file.relative_to(ROOT)}: {row['after']}", flush=True)


def fails(tests: list[str]) -> bool:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not slow", *tests]
    return subprocess.run(command, cwd=ROOT, capture_output=True).returncode == 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("command", choices=("draw", "run"))
    parser.add_argument("arguments", nargs="*", help="draw: the commit; run: tests")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--last", type=int, default=COUNT)
    given = parser.parse_args()
    if given.command == "draw":
        draw(given.arguments[0])
    else:
        run(given.arguments, given.first, given.last)
