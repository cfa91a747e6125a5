"""Digests of source files: comments, docstrings, and the places of imported names do not count."""

import ast
import hashlib
import inspect
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

# The rule for verdicts, relative to this directory.
RULE = ("criteria.py", "rule.py", "statistics.py", "../runs/seed_statistics.py")
APART = ("figure.py",)  # files of a claim that only draw its results


def claim_code(directory: Path) -> dict[str, str]:
    """File -> digest, of the files that decide a claim: its own, and those with the rule."""
    own = [file for file in sorted(directory.glob("*.py")) if file.name not in APART]
    rule = [Path(__file__).parent / name for name in RULE]
    return {file.name: file_digest(file) for file in [*own, *rule]}


def function_digest(function: Callable[..., Any]) -> str:
    """The digest of the file that defines a function, without the claim that it may define."""
    while isinstance(function, partial):
        function = function.func
    return file_digest(Path(inspect.getfile(inspect.unwrap(function))), claim=False)


def file_digest(file: Path, *, claim: bool = True) -> str:
    """The digest of a Python file; without `claim`, thresholds and arms of CLAIM do not count."""
    return _digest(file.read_text(encoding="utf-8"), claim)


@cache
def _digest(text: str, claim: bool) -> str:
    tree = ast.parse(text)
    if not claim:
        tree.body = [node for node in tree.body if not ast.unparse(node).startswith("CLAIM = ")]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            node.module = None  # a moved module is not a change
        elif isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and (
            ast.get_docstring(node, clean=False) is not None
        ):
            node.body = node.body[1:] or [ast.Pass()]
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()[:10]
