"""`attnlab checkup TARGET`: load a model, run the checks, print the report."""

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer
from typer import Argument, Option

from attnlab.commands.options import Json
from attnlab.errors import BadInput, first_line


def checkup(
    target: Annotated[str, Argument(help="A run, a checkpoint, file.py:NAME or module:NAME.")],
    vocab_size: Annotated[int | None, Option(help="Ids are below it; else the model's.")] = None,
    block_size: Annotated[int | None, Option(help="The longest text; else the model's.")] = None,
    rows: Annotated[int | None, Option(help="Most texts in one call; else up to 32.")] = None,
    trust: Annotated[bool, Option(help="Allow a run to name code outside of attnlab.")] = False,
    json: Json = False,
) -> None:
    """Check a model: does it read ahead, mix rows, or decode other outputs with its cache?

    NAME is a model, or a function or class without arguments that makes it.

    Exit codes: 0 healthy, 1 faulty, 2 bad input or a model that cannot be called, 3 the model
    raised an error while it was examined, 4 the checkup itself raised one, so nothing is known.
    """
    from attnlab.checkup import CannotCheck
    from attnlab.checkup import checkup as examine
    from attnlab.checkup.runner import OWN_ERROR

    model = load_target(target, trust=trust)
    try:
        report = examine(
            model, name=target, vocab_size=vocab_size, block_size=block_size, rows=rows
        )
    except CannotCheck as error:
        _show_own_traceback(error.__cause__)
        raise BadInput(f"{target}: {error}") from error
    except Exception:  # Python would exit with 1, which says that the model is faulty
        traceback.print_exc()
        print(f"{target}: the checkup failed, which says nothing of the model", file=sys.stderr)
        sys.exit(OWN_ERROR)
    if json:
        from attnlab.runs.document import document, json_text

        print(json_text(document("checkup", report.exit_code, report.to_dict())))
    else:
        print(report)
    raise typer.Exit(report.exit_code)


def load_target(target: str, *, trust: bool = False) -> Callable[..., object]:
    """The model that a target of `attnlab checkup` names; BadInput if it does not exist.
    `trust` is as for `attnlab.trained.checkpoints.open_model`."""
    place, _, name = target.rpartition(":")
    if Path(target).exists() or not place:
        if target.endswith(".py"):
            raise BadInput(f"{target} names no model in the file; give {target}:NAME")
        from attnlab.trained.checkpoints import open_model  # imports all of training

        return open_model(target, trust=trust).net
    try:
        made = getattr(_module(place), name)
        needed = _needed(made)
        if inspect.isclass(made) and needed:
            raise BadInput(_how_to_make(target, name, needed))
        if inspect.isclass(made) or (inspect.isroutine(made) and not needed):
            made = made()
    except BadInput:
        raise
    except Exception as error:  # of the user's code
        _show_own_traceback(error)
        raise BadInput(f"{target}: {type(error).__name__}: {first_line(error)}") from error
    if inspect.isroutine(made) and needed[1:]:
        raise BadInput(_how_to_make(target, name, needed))
    return made


def _needed(made: object) -> list[str]:
    """The arguments that a function or class must be given."""
    if not (inspect.isclass(made) or inspect.isroutine(made)):
        return []
    takes = inspect.signature(made).parameters.values()
    named = [p for p in takes if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return [p.name for p in named if p.default is p.empty]


def _how_to_make(target: str, name: str, needed: list[str]) -> str:
    """What to write for a class or function that makes a model from arguments."""
    given = ", ".join(f"{each}=..." for each in needed)
    return (
        f"{target}: {name} needs {', '.join(needed)}; write a function without arguments, such as "
        f"def make(): return {name}({given}), and give its name"
    )


def _show_own_traceback(error: BaseException | None) -> None:
    """Print where the user's own code has failed, if it has."""
    if error is None:
        return
    told = traceback.TracebackException.from_exception(error)
    hidden = (str(Path(__file__).parents[1]), "<frozen")
    own = [frame for frame in told.stack if not frame.filename.startswith(hidden)]
    if not any(f"{Path('/site-packages/')}" not in frame.filename for frame in own):
        return
    print("Traceback of your code:", file=sys.stderr)
    print("".join(traceback.format_list(own)), end="", file=sys.stderr)
    print("".join(told.format_exception_only()), end="", file=sys.stderr)


def _module(place: str) -> ModuleType:
    if not place.endswith(".py"):
        return importlib.import_module(place)
    spec = importlib.util.spec_from_file_location(Path(place).stem, place)
    assert spec is not None and spec.loader is not None, "it ends in .py"
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # for dataclasses
    spec.loader.exec_module(module)
    return module
