"""A digest of functions and of all they call in a claim's directory and in this package."""

import ast
import hashlib
import inspect
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any

PACKAGE = "attnlab.claims"
HERE = Path(__file__).parent
Definitions = dict[str, list[ast.stmt]]


def source_digest(*functions: Callable[..., Any]) -> str:
    """The digest of functions or classes, with what they call."""
    texts, names = [], []
    for function in functions:
        if isinstance(function, partial):
            texts.append(f"{function.args} {sorted(function.keywords.items())}")
            function = function.func
        function = inspect.unwrap(function)  # what a decorator returns is defined elsewhere
        try:
            file = Path(inspect.getsourcefile(function) or "")
            if function.__name__ == "<lambda>":
                texts.append(inspect.getsource(function).strip())
            names.append((file, function.__name__))
        except (OSError, TypeError):  # a built-in function
            texts.append(function.__qualname__)
    content = "\n".join([*texts, *_closure(names)])
    return hashlib.sha256(content.encode()).hexdigest()[:10]


def _closure(names: Iterable[tuple[Path, str]]) -> list[str]:
    """The text of all definitions that are reached, in a fixed order."""
    pending, found = list(names), dict[tuple[str, str], str]()
    while pending:
        file, name = pending.pop()
        if (str(file), name) in found or not file.is_file():
            continue
        defined = _definitions(file.read_text(encoding="utf-8"))
        texts = []
        for statement in defined.get(name, []):
            if isinstance(statement, ast.Import | ast.ImportFrom):
                imported, text = _imported(statement, name, file)
                pending += imported
                texts.append(text)
                continue
            texts.append(ast.unparse(statement))
            used = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
            pending += [(file, each) for each in used if each in defined]
        found[str(file), name] = "\n".join(texts)
    ordered = sorted(found.items(), key=lambda item: (Path(item[0][0]).name, item[0][1]))
    return [text for _, text in ordered if text]


def _imported(
    statement: ast.Import | ast.ImportFrom, name: str, file: Path
) -> tuple[list[tuple[Path, str]], str]:
    """Where an imported name is defined, if that is to be followed, and what it is called."""
    alias = next(a for a in statement.names if (a.asname or a.name).partition(".")[0] == name)
    whole = file.with_name(f"{alias.name}.py")  # import theory; from . import theory
    if whole.is_file() and (isinstance(statement, ast.Import) or not statement.module):
        return [(whole, each) for each in _definitions(whole.read_text("utf-8"))], ""
    if isinstance(statement, ast.ImportFrom):
        module = statement.module or ""
        if file.with_name(f"{module}.py").is_file():  # from .theory, or from theory in a project
            return [(file.with_name(f"{module}.py"), alias.name)], ""
        if module == PACKAGE or module.startswith(f"{PACKAGE}."):
            below = module.removeprefix(PACKAGE).strip(".") or "__init__"
            return [(HERE / f"{below}.py", alias.name)], ""
    return [], f"{name}: {alias.name}"


@cache
def _definitions(text: str) -> Definitions:
    """Top-level names -> the statements that define them, without docstrings."""
    defined: Definitions = {}
    for statement in ast.parse(text).body:
        for node in ast.walk(statement):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
                node.body = node.body[1:] or [ast.Pass()]
        for name in _defines(statement):
            defined.setdefault(name, []).append(statement)
    return defined


def _defines(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return [statement.name]
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return [(alias.asname or alias.name).partition(".")[0] for alias in statement.names]
    return [
        node.id
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]
