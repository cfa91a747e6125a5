"""Finds the claims of a folder: one sub-folder with a claim.py each."""

import ast
import dataclasses
import hashlib
import importlib.util
import sys
from collections.abc import Collection
from difflib import get_close_matches
from pathlib import Path

from attnlab.claims.claim import Claim, Measured, Trained
from attnlab.errors import BadInput
from attnlab.files import make_importable


def discover(folder: Path, names: Collection[str] = ()) -> list[Claim]:
    """Load claims in the order of the report.

    Args:
        folder: holds `<claim>/claim.py` files that define `CLAIM`.
        names: only these; empty for all.

    Raises:
        BadInput: the folder holds no claims, a name is unknown, or a file cannot be loaded.
    """
    files = {file.parent.name: file for file in sorted(folder.glob("*/claim.py"))}
    if not files:
        raise BadInput(f"{folder} holds no claims: no <claim>/claim.py was found there")
    for name in names:
        if name not in files:
            near = get_close_matches(name, files, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(files)}"
            raise BadInput(f"there is no claim {name} in {folder}; {hint}")
    claims = [load(file) for name, file in files.items() if not names or name in names]
    return sorted(claims, key=lambda claim: (claim.order, claim.name))


def load(file: Path) -> Claim:
    """Load one claim.

    Raises:
        BadInput: the file cannot be run, or does not define a sound `CLAIM`.
    """
    module_name = f"attnlab_claim_{file.parent.name}"
    # A package, so that a claim may keep its theory in a file beside: from .theory import ...
    spec = importlib.util.spec_from_file_location(
        module_name, file, submodule_search_locations=[str(file.parent)]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    for name in [m for m in sys.modules if m.startswith(f"{module_name}.")]:
        del sys.modules[name]  # of the same claim, loaded before or from elsewhere
    if (file.parent / "conf").is_dir():  # a project: its configuration names modules beside it
        make_importable(file.parent / "conf")
    sys.modules[module_name] = module  # dataclasses and inspect look it up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise BadInput(f"{file} cannot be loaded: {type(error).__name__}: {error}") from error
    claim = vars(module).get("CLAIM")
    if not isinstance(claim, Claim):
        raise BadInput(f"{file} must define CLAIM, an attnlab.claims.Claim")
    claim = dataclasses.replace(claim, name=file.parent.name)
    _check(claim, file)
    return claim


def code_digest(file: Path, function: str) -> str:
    """A digest of a function of a claim and of all in the file that it uses, comments apart.

    Stored measurements depend on it: a change of a figure repeats none of them.
    """
    defined: dict[str, list[ast.stmt]] = {}
    for statement in ast.parse(file.read_text()).body:
        for name in _defines(statement):
            defined.setdefault(name, []).append(statement)
    used, found = [function], set()
    while used:
        name = used.pop()
        if name in found or name not in defined:
            continue
        found.add(name)
        for statement in defined[name]:
            used += [node.id for node in ast.walk(statement) if isinstance(node, ast.Name)]
    statements = [s for name in sorted(found) for s in defined[name]]
    text = "\n".join(map(ast.unparse, statements))
    for statement in statements:
        if isinstance(statement, ast.ImportFrom) and statement.level == 1 and statement.module:
            beside = file.with_name(f"{statement.module}.py")
            text += ast.unparse(ast.parse(beside.read_text()))
    return hashlib.sha256(text.encode()).hexdigest()[:8]


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


def _check(claim: Claim, file: Path) -> None:
    names = [part.name for part in claim.parts]
    if not names:
        raise BadInput(f"{file}: a claim needs at least one part")
    if len(set(names)) < len(names):
        raise BadInput(f"{file}: the names of parts must differ, they are {', '.join(names)}")
    for part in claim.parts:
        if not isinstance(part, Trained | Measured):
            raise BadInput(f"{file}: the part {part.name} must be Trained or Measured")
        if isinstance(part, Trained) and not part.arms:
            raise BadInput(f"{file}: the part {part.name} has no arms")
        for budget, effort in part.budgets.items():
            if effort.seeds < 1:
                raise BadInput(f"{file}: {part.name} has {effort.seeds} seeds for {budget}")
