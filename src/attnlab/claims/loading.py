"""Finds the claims of a directory: one subdirectory with a claim.py each."""

import dataclasses
import importlib
import importlib.util
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from attnlab.claims.claim import Claim, Measured, Trained
from attnlab.claims.rows import read_rows
from attnlab.claims.trial import prepare, rate_errors
from attnlab.errors import BadInput
from attnlab.imports import make_importable
from attnlab.runs.seed_statistics import declared_looks


def load_claims(directory: Path, names: Collection[str] = ()) -> list[Claim]:
    """Load claims, sorted as in the report.

    The directory contains `<claim>/claim.py` files that define `CLAIM`; without names, all are
    loaded. Raises BadInput if there are none, a name is unknown, or a file cannot be loaded.
    """
    files = {file.parent.name: file for file in sorted(directory.glob("*/claim.py"))}
    if not files:
        raise BadInput(f"{directory} has no claims: there is no <claim>/claim.py in it")
    for name in names:
        if name not in files:
            near = get_close_matches(name, files, n=1)
            hint = f"did you mean {near[0]}?" if near else f"the claims are {', '.join(files)}"
            raise BadInput(f"there is no claim {name} in {directory}; {hint}")
    claims = [load_claim(file) for name, file in files.items() if not names or name in names]
    return sorted(claims, key=lambda claim: (claim.order, claim.name))


def load_claim(file: Path) -> Claim:
    """Load one claim; BadInput if its file cannot be run, or defines no valid `CLAIM`."""
    module_name = f"attnlab_claim_{file.parent.name}"
    for name in [m for m in sys.modules if m.startswith(f"{module_name}.")]:
        del sys.modules[name]  # from an earlier load, perhaps of another directory
    if (file.parent / "conf").is_dir():  # its configuration names modules beside claim.py
        make_importable(file.parent / "conf")
    # A package, so that claim.py can import files beside it: from .theory import ...
    spec = importlib.util.spec_from_file_location(
        module_name, file, submodule_search_locations=[str(file.parent)]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses and inspect look it up
    with _loading(file):
        spec.loader.exec_module(module)
    claim = vars(module).get("CLAIM")
    if not isinstance(claim, Claim):
        raise BadInput(f"{file} must define CLAIM, an attnlab.claims.Claim")
    claim = dataclasses.replace(claim, name=file.parent.name, **_beside(file, module_name))
    for message in _errors(claim):
        raise BadInput(f"{file}: {message}")
    return prepare(claim, read_rows(file.with_name("pilots.jsonl")))


def _beside(file: Path, module_name: str) -> dict[str, Any]:
    """What the files beside claim.py add to a claim: a figure, a table, and the background."""
    beside: dict[str, Any] = {}
    figure, background = file.with_name("figure.py"), file.with_name("background.md")
    if figure.is_file():
        with _loading(figure):
            drawn = vars(importlib.import_module(f"{module_name}.figure"))
        beside = {key: drawn[key] for key in ("figure", "table") if key in drawn}
    if background.is_file():
        beside["notes"] = background.read_text(encoding="utf-8")
    return beside


@contextmanager
def _loading(file: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise BadInput(f"{file} cannot be loaded: {type(error).__name__}: {error}") from error


def _errors(claim: Claim) -> Iterator[str]:
    """What is invalid about a claim."""
    names = [prediction.name for prediction in claim.predictions]
    if len(set(names)) < len(names):
        yield f"names of predictions must differ; they are {', '.join(names)}"
    if not any(each.role == "primary" or each.timed for each in claim.predictions):
        yield "a claim needs at least one primary prediction, or times that it shows"
    if claim.headline and claim.headline not in names:
        yield f"headline = {claim.headline} is not a prediction"
    try:
        declared_looks(claim.last_look)
    except ValueError as error:
        yield str(error)
    arms: dict[str, tuple[tuple[str, ...], tuple[float, ...]]] = {}
    for each in claim.predictions:
        if not isinstance(each, Trained | Measured):
            yield f"{each.name} must be Trained or Measured"
        decides = each.role in ("primary", "control")
        if each.seeds is not None and (decides or each.seeds < 1):
            yield f"{each.name}: seeds is only for roles that do not decide; others use last_look"
        if isinstance(each, Trained):
            if not each.arms:
                yield f"{each.name} has no arms"
            yield from rate_errors(each)
            for arm in each.arms:
                trained = arm.overrides, each.rates
                if arms.setdefault(arm.name, trained) != trained:
                    yield f"two arms with different overrides or rates are named {arm.name}"
