"""Refuses Python that has to be read twice; `make lint` runs it.

    python scripts/lint_style.py            # all files
    python scripts/lint_style.py FILE ...   # some
    python scripts/lint_style.py --rates    # nested comprehensions in 1,000 lines of code

An exception needs a reason in words at its line: `# style: one row is one case`.
"""

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("src/attnlab", "attncheck/src/attncheck")
TESTS = ("tests", "attncheck/tests")
LINTED = (
    "train.py",
    *PACKAGES,
    "src/hydra_plugins",
    "scripts",
    "benchmarks",
    "experiments",
    "docs",
    *TESTS,
)
# In 1,000 lines of code, comprehensions with a second `for` or another one inside.
MOST_NESTED = 1.5

# Words that belong together. So do names of one letter, and names with a part in common.
PAIRS = """
    above below, ahead back, before after, begin end, column row, columns rows, first last,
    few many, first second, front back, head tail, height width, ids targets, key value,
    keys values, left right, low high, low middle high, mean sd, mean std, median low high,
    middle low high, minimum maximum, near far,
    name value, new old, no yes, one both, ours theirs, query key, source target, start end,
    start stop, top bottom, zeros ones
"""
TRUE_OR_FALSE = {"all", "any", "bool", "callable", "hasattr", "isinstance", "issubclass"}
NOTHING = {"()", "[]", "{}", "''", "set()"}
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


Rule = Callable[[ast.AST, "Source"], str | None]  # a node -> what is wrong with it


@dataclass
class Source:
    """A file's syntax tree, and which of its names are truth values."""

    text: str
    tree: ast.Module = field(init=False)
    truths: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self.tree = ast.parse(self.text)
        self.truths = set()
        for node in ast.walk(self.tree):
            match node:
                case (
                    ast.FunctionDef(name=name, returns=ast.Name(id="bool"))
                    | ast.arg(arg=name, annotation=ast.Name(id="bool"))
                    | ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Name(id="bool"))
                ):
                    self.truths.add(name)
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if self.is_truth(value):
                    self.truths.add(name)

    def is_truth(self, node: ast.expr) -> bool:
        """Whether an expression is known to be True or False."""
        match node:
            case ast.Compare() | ast.UnaryOp(op=ast.Not()) | ast.Constant(value=True | False):
                return True
            case ast.BoolOp(values=values):
                return any(map(self.is_truth, values))
            case ast.Name(id=name) | ast.Attribute(attr=name):
                return name in self.truths
            case ast.Call(func=ast.Name(id="getattr"), args=[_, _, default]):
                return self.is_truth(default)
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                return name in TRUE_OR_FALSE | self.truths
        return False


def comprehension_inside_another(node: ast.AST, source: Source) -> str | None:
    if not isinstance(node, Comprehension):
        return None
    inside = [x for x in ast.walk(node) if isinstance(x, Comprehension) and x is not node]
    if not inside:
        return None
    plain = len(inside) == 1 and is_plain(node) and is_plain(inside[0])
    in_its_source = inside[0] in ast.walk(node.generators[0])
    if plain and not in_its_source:
        return None
    return "a comprehension inside another: give the inner one a name, or write a loop"


def is_plain(comprehension: Comprehension) -> bool:
    """Whether a comprehension has one `for` and no `if`."""
    return len(comprehension.generators) == 1 and not comprehension.generators[0].ifs


def times_a_truth_value(node: ast.AST, source: Source) -> str | None:
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return None
    for repeated, times in ((node.left, node.right), (node.right, node.left)):
        match repeated:
            case ast.Constant(value=str() | bytes()) | ast.JoinedStr() | ast.List() | ast.Tuple():
                if source.is_truth(times):
                    return "a text or list times a truth value: write `if`"
    return None


def loop_over_something_or_nothing(node: ast.AST, source: Source) -> str | None:
    if not isinstance(node, ast.For | ast.comprehension) or not isinstance(node.iter, ast.IfExp):
        return None
    choices = {ast.unparse(node.iter.body), ast.unparse(node.iter.orelse)}
    return "a loop over X or nothing: put `if` around the loop" if choices & NOTHING else None


def ternary_inside_another(node: ast.AST, source: Source) -> str | None:
    if not isinstance(node, ast.IfExp):
        return None
    inside = [x for x in ast.walk(node) if isinstance(x, ast.IfExp) and x is not node]
    return "a ternary inside a ternary: write `if` and `elif`" if inside else None


def compared_with_itself(node: ast.AST, source: Source) -> str | None:
    match node:
        case ast.Compare(left=left, ops=[ast.Eq() | ast.NotEq()], comparators=[right]):
            if ast.dump(left) == ast.dump(right):
                return "a comparison of a value with itself: write isnan"
    return None


def values_that_are_no_pair(node: ast.AST, source: Source) -> str | None:
    """Values in one assignment are a pair if one reads the old value of another's target, if all
    are computed in the same way, or if their names belong together."""
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=targets) as both], value=ast.Tuple(elts=values)):
            if (
                is_exchange(targets, values)
                or are_computed_alike(values)
                or belong_together(names_in(both))
            ):
                return None
            names = ", ".join(map(ast.unparse, targets))
            return f"{names} are no pair: assign one after the other"
    return None


def is_exchange(targets: list[ast.expr], values: list[ast.expr]) -> bool:
    """Whether a value reads the target of another one: `a, b = b, a + b`."""
    for n, target in enumerate(targets):
        read = {ast.unparse(x) for value in values[:n] + values[n + 1 :] for x in ast.walk(value)}
        if ast.unparse(target) in read:
            return True
    return False


def are_computed_alike(values: list[ast.expr]) -> bool:
    """Whether the values differ in variables and constants alone: `f(x), f(y)`. Constants, empty
    lists and plain variables are no computation."""
    ways = {ast.unparse(Blanks().visit(ast.parse(ast.unparse(x), mode="eval"))) for x in values}
    way = ways.pop()
    return not ways and way != "_" and ("_" in way or re.search(r"\(.+\)", way) is not None)


class Blanks(ast.NodeTransformer):
    """Puts a blank for each variable and 0 for each constant; keeps the names of functions."""

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name("_")

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        return ast.Constant("0" if isinstance(node.value, str) else 0)

    def visit_Call(self, node: ast.Call) -> ast.Call:
        function = node.func
        self.generic_visit(node)
        if isinstance(function, ast.Name):
            node.func = function
        return node


def belong_together(names: list[str]) -> bool:
    bare = [name.strip("_") for name in names if name.strip("_")]
    if all(re.fullmatch(r"[A-Za-z]\d?", name) for name in bare):
        return True
    parts = [set(name.lower().split("_")) for name in bare]
    if set.intersection(*parts):
        return True
    return any(set.union(*parts) <= set(words.split()) for words in PAIRS.split(","))


def names_in(target: ast.expr) -> list[str]:
    """The names that an assignment binds: x, y and z of `self.x, (y, *z)`."""
    match target:
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return [name for part in parts for name in names_in(part)]
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return [name]
        case ast.Starred(value=value) | ast.Subscript(value=value):
            return names_in(value)
    return []


RULES: tuple[Rule, ...] = (
    comprehension_inside_another,
    times_a_truth_value,
    loop_over_something_or_nothing,
    ternary_inside_another,
    compared_with_itself,
    values_that_are_no_pair,
)


# A test's models have long constructors, where a line for each of five sizes says no more.
RULES_OF_TESTS = tuple(rule for rule in RULES if rule is not values_that_are_no_pair)


def faults(text: str, rules: Sequence[Rule] = RULES) -> list[tuple[int, str]]:
    """The line and the fault of each place that a rule refuses."""
    source = Source(text)
    excused = lines_with_a_reason(text)
    found: dict[tuple[int, str], None] = {}  # a set in order: a triple nest is one fault
    for node in ast.walk(source.tree):
        for rule in rules:
            message = rule(node, source)
            if message is None:
                continue
            place = node.iter if isinstance(node, ast.For | ast.comprehension) else node
            lines = range(place.lineno, place.end_lineno + 1)
            if not excused.intersection(lines):
                found[place.lineno, message] = None
    return sorted(found)


def lines_with_a_reason(text: str) -> set[int]:
    """The lines with a comment `# style: ` and at least two words."""
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and re.match(r"# style: \S+ +\S", token.string):
            lines.add(token.start[0])
    return lines


def nested_lines(text: str) -> list[int]:
    """The lines of comprehensions with a second `for`, or with another one inside."""
    lines = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, Comprehension):
            inside = sum(isinstance(x, Comprehension) for x in ast.walk(node)) - 1
            if inside or len(node.generators) > 1:
                lines.append(node.lineno)
    return lines


def lines_of_code(text: str) -> int:
    """The number of lines with something else than comments and docstrings."""
    lines = set()
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skipped | {tokenize.ENDMARKER}:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                lines.difference_update(range(node.lineno, node.end_lineno + 1))
    return len(lines)


def rate(folder: Path) -> float:
    """Nested comprehensions in 1,000 lines of code of a directory."""
    texts = [file.read_text(encoding="utf-8") for file in sorted(folder.rglob("*.py"))]
    nested = sum(len(nested_lines(text)) for text in texts)
    return 1000 * nested / max(1, sum(map(lines_of_code, texts)))


def linted_files() -> Iterator[Path]:
    for name in LINTED:
        path = ROOT / name
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]


def complaints(files: list[Path]) -> Iterator[str]:
    """One line for each fault."""
    for file in files:
        name = file.relative_to(ROOT).as_posix()
        rules = RULES_OF_TESTS if name.startswith(TESTS) else RULES
        found = faults(file.read_text(encoding="utf-8"), rules)
        for line, message in found:
            yield f"{name}:{line}: {message}"


def rooms() -> list[Path]:
    """The packages and the directories in them, each of which keeps the rate."""
    folders: list[Path] = []
    for name in PACKAGES:
        folders += [file.parent for file in (ROOT / name).rglob("*.py")]
    return sorted(set(folders))


def rooms_over_the_rate() -> Iterator[str]:
    for room in rooms():
        nested = rate(room)
        if nested > MOST_NESTED:
            name = room.relative_to(ROOT).as_posix()
            yield (
                f"{name}: {nested:.1f} nested comprehensions in 1,000 lines of code, more than "
                f"{MOST_NESTED}: write loops (--rates shows them)"
            )


def public_names(text: str) -> Iterator[str]:
    """The public names that a module defines at its top level, `main` left out."""
    for node in ast.parse(text).body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names = [name]
            case ast.Assign(targets=targets):
                names = [name for target in targets for name in names_in(target)]
            case ast.AnnAssign(target=target):
                names = names_in(target)
            case _:
                names = []
        yield from (name for name in names if not name.startswith("_") and name != "main")


def names_that_stand_twice() -> Iterator[str]:
    """One line for each public name that two modules of the packages define. A verb of the command
    line or of Python may have the name of the function that it calls."""
    modules: dict[str, list[str]] = {}
    files: list[Path] = []
    for package in PACKAGES:
        files += sorted((ROOT / package).rglob("*.py"))
    for file in files:
        module = file.relative_to(ROOT).as_posix()
        is_verb = module == "src/attnlab/api.py" or module.startswith("src/attnlab/commands/")
        names = set(public_names(file.read_text(encoding="utf-8")))
        for name in names:
            if not (is_verb and name.islower()):
                modules.setdefault(name, []).append(module)
    for name, places in sorted(modules.items()):
        if len(places) > 1:
            yield f"{name} stands in {' and '.join(places)}: give one of them a more exact name"


def print_rates() -> None:
    for folder in rooms():
        print(f"{rate(folder):5.1f}  {folder.relative_to(ROOT).as_posix()}")
        for file in sorted(folder.rglob("*.py")):
            for line in nested_lines(file.read_text(encoding="utf-8")):
                print(f"         {file.relative_to(ROOT).as_posix()}:{line}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--rates", action="store_true", help="show nested comprehensions by room")
    given = parser.parse_args()
    if given.rates:
        print_rates()
        return
    files = [file.resolve() for file in given.files] or list(linted_files())
    found = [*complaints(files), *rooms_over_the_rate(), *names_that_stand_twice()]
    print("\n".join(found) or f"{len(files)} files are clean")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
