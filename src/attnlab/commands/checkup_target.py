"""`attnlab checkup TARGET`: load a model, run the checks, print the report."""

import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer
from typer import Argument, Option

from attnlab.errors import BadInput, first_line


def checkup(
    target: Annotated[str, Argument(help="A run, a checkpoint, file.py:NAME or module:NAME.")],
    vocab_size: Annotated[int | None, Option(help="Ids are below it; else the model's.")] = None,
    block_size: Annotated[int | None, Option(help="The longest text; else the model's.")] = None,
    trust: Annotated[bool, Option(help="Allow a run to name code outside of attnlab.")] = False,
) -> None:
    """Check a model: does it read ahead, mix rows, or decode other outputs with its cache?

    NAME is a model, or a function or class without arguments that makes it.

    Exit codes: 0 healthy, 1 faulty, 2 bad input, 3 the model raised an error.
    """
    from attnlab.checkup import CannotCheck
    from attnlab.checkup import checkup as examine

    model = load_target(target, trust=trust)
    try:
        report = examine(model, name=target, vocab_size=vocab_size, block_size=block_size)
    except CannotCheck as error:
        raise BadInput(f"{target}: {error}") from error
    print(report)
    raise typer.Exit(report.exit_code)


def load_target(target: str, *, trust: bool = False) -> Any:
    """The model that a target of `attnlab checkup` names; BadInput if it does not exist.
    `trust` is as for `attnlab.building.checkpoints.load_model`."""
    place, _, name = target.rpartition(":")
    if Path(target).exists() or not place:
        if target.endswith(".py"):
            raise BadInput(f"{target} names no model in the file; give {target}:NAME")
        from attnlab.building.checkpoints import load_model  # imports all of training

        return load_model(target, trust=trust)[0]
    try:
        made = getattr(_module(place), name)
        return made if _is_model(made) else made()
    except Exception as error:  # of the user's code
        raise BadInput(f"{target}: {type(error).__name__}: {first_line(error)}") from error


def _is_model(made: Any) -> bool:
    """Whether it is a module, or a function with a parameter that must be given, not a factory."""
    if inspect.isclass(made) or not inspect.isroutine(made):
        return not inspect.isclass(made)
    parameters = inspect.signature(made).parameters.values()
    return any(p.default is p.empty and p.kind <= p.POSITIONAL_OR_KEYWORD for p in parameters)


def _module(place: str) -> ModuleType:
    if not place.endswith(".py"):
        return importlib.import_module(place)
    spec = importlib.util.spec_from_file_location(Path(place).stem, place)
    assert spec is not None and spec.loader is not None, "it ends in .py"
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # for dataclasses
    spec.loader.exec_module(module)
    return module
