"""`attncheck MODEL`: load a model, examine it, print the report."""

import argparse
import contextlib
import importlib.util
import inspect
import json
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType

import attncheck

from .outcomes import CannotCheck
from .runner import OWN_ERROR, Report, checkup

SCHEMA = 1  # the version of what --json prints; a key that is added does not change it
CANNOT_CHECK = 2  # the exit code, as of a wrong option
DESCRIPTION = """\
Check a language model: does it read ahead, mix rows, or decode other outputs
with its cache?
"""
EXIT_CODES = """\
exit codes:
  0  healthy
  1  faulty; with --strict, also suspicious
  2  bad input, or a model that cannot be called
  3  the model raised an error while it was examined
  4  the checkup itself raised an error, so nothing is known of the model
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Examine the model that the arguments of the command name, print the report, and return the
    exit code."""
    given = parser().parse_args(arguments)
    sys.path.append(str(Path.cwd()))  # the user's own modules; last, so that they hide no others
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what the user's code prints
            report = examine(load(given.model), given.model, given)
    except CannotCheck as error:
        if given.json:
            print(_as_json({"exit_code": CANNOT_CHECK, "error": str(error)}))
        print(f"error: {error}", file=sys.stderr)
        return CANNOT_CHECK
    print(_as_json(report.to_dict()) if given.json else report)
    return report.exit_code


def parser() -> argparse.ArgumentParser:
    """The arguments of the command."""
    made = argparse.ArgumentParser(
        "attncheck",
        description=DESCRIPTION,
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[options()],
    )
    made.add_argument(
        "model",
        metavar="MODEL",
        help="file.py:NAME or module:NAME; NAME is a model, or a function or class without "
        "arguments that makes one",
    )
    made.add_argument("--version", action="version", version=attncheck.__version__)
    return made


def options() -> argparse.ArgumentParser:
    """The options of every command that examines a model, for the `parents` of its parser; what
    they say is read by `examine`."""
    made = argparse.ArgumentParser(add_help=False)
    made.add_argument("--vocab-size", type=int, help="ids are below it; else the model's")
    made.add_argument("--block-size", type=int, help="the longest text; else the model's")
    made.add_argument("--rows", type=int, help="most texts in one call; else up to 32")
    made.add_argument("--prefix", type=int, default=0, help="first inputs that see each other")
    made.add_argument("--encoder", action="store_true", help="all inputs may see each other")
    made.add_argument(
        "--accept",
        metavar="PROPERTY",
        action="append",
        default=[],
        help="a property that the model lacks on purpose, such as rows; may be repeated",
    )
    made.add_argument("--strict", action="store_true", help="a suspicion ends with 1, too")
    made.add_argument("--json", action="store_true", help="print JSON instead")
    return made


def _as_json(content: Mapping[str, object]) -> str:
    """JSON of these contents, and before them the version of their form and of attncheck."""
    head = {"schema": SCHEMA, "attncheck": attncheck.__version__}
    return json.dumps({**head, **content}, indent=2)


def examine(model: Callable[..., object], name: str, given: argparse.Namespace) -> Report:
    """`checkup` as a command needs it: a traceback shows where the user's code has failed, and an
    error of the checkup itself ends the process with its own exit code.

    Args:
        given: what was read by a parser that has `options`.

    Raises:
        CannotCheck: the model cannot be called, in a sentence that begins with its name.
    """
    try:
        return checkup(
            model,
            name=name,
            vocab_size=given.vocab_size,
            block_size=given.block_size,
            rows=given.rows,
            prefix=given.prefix,
            causal=not given.encoder,
            accept=given.accept,
            strict=given.strict,
        )
    except CannotCheck as error:
        _show_own_traceback(error.__cause__)
        raise CannotCheck(f"{name}: {error}") from error
    except Exception:  # Python would exit with 1, which says that the model is faulty
        traceback.print_exc()
        print(f"{name}: the checkup failed, which says nothing of the model", file=sys.stderr)
        sys.exit(OWN_ERROR)


def load(target: str) -> Callable[..., object]:
    """The model that file.py:NAME or module:NAME names: what a class, or a function without
    arguments, makes; a function of one argument, its inputs; or any other object itself.
    CannotCheck if it cannot be loaded or made."""
    place, _, name = target.rpartition(":")
    if not place:
        raise CannotCheck(
            f"{target} names no model; give file.py:NAME or module:NAME, such as {target}:NAME"
        )
    try:
        made = getattr(_module(place), name)
        needed = _needed(made)
        if inspect.isclass(made) and needed:
            raise CannotCheck(_how_to_make(target, name, needed))
        if inspect.isclass(made) or (inspect.isroutine(made) and not needed):
            made = made()
    except CannotCheck:
        raise
    except Exception as error:  # of the user's code
        _show_own_traceback(error)
        said = str(error).strip().partition("\n")[0]
        raise CannotCheck(f"{target}: {type(error).__name__}: {said}") from error
    if inspect.isroutine(made) and needed[1:]:  # what takes one argument may be a model
        raise CannotCheck(_how_to_make(target, name, needed))
    return made


def _needed(made: object) -> list[str]:
    """The names of the arguments that a function or class must be given; none for a model."""
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
    """Print the traceback of an error without the frames of attncheck, if some of the others are
    the user's code, not that of installed packages; nothing without an error."""
    if error is None:
        return
    told = traceback.TracebackException.from_exception(error)
    hidden = (str(Path(__file__).parent), "<frozen")
    own = [frame for frame in told.stack if not frame.filename.startswith(hidden)]
    packages = str(Path("/site-packages"))  # with the separator of the system
    if all(packages in frame.filename for frame in own):
        return
    print("Traceback of your code:", file=sys.stderr)
    print("".join(traceback.format_list(own)), end="", file=sys.stderr)
    print("".join(told.format_exception_only()), end="", file=sys.stderr)


def _module(place: str) -> ModuleType:
    """The module of a file that ends in .py, or of a dotted name, which is imported."""
    if not place.endswith(".py"):
        return importlib.import_module(place)
    spec = importlib.util.spec_from_file_location(Path(place).stem, place)
    assert spec is not None and spec.loader is not None, "it ends in .py"
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # for dataclasses
    spec.loader.exec_module(module)
    return module
