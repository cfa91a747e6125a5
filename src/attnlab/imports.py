"""Which modules Python can import, and how fast."""

import gc
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


def make_importable(conf: Path) -> None:
    """Let Python import the modules in a directory of configuration files and beside it.

    Only for a directory that the user names, or that belongs to a claim that the user runs.
    """
    for folder in (conf.resolve(), conf.resolve().parent):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))


def make_named_importable(overrides: Iterable[str]) -> None:
    """Let Python import the modules here if an override (attn._target_=mine.Layer) names one.

    The current directory is not on the path otherwise. Installed modules come first, so no file
    here replaces one of them.
    """
    here = Path.cwd()
    for override in overrides:
        value = override.partition("=")[2].strip("\"'")
        module, dot, _ = value.partition(".")
        if not dot or not all(part.isidentifier() for part in value.split(".")):
            continue
        if (here / f"{module}.py").is_file() or (here / module).is_dir():
            if str(here) not in sys.path:
                sys.path.append(str(here))
            return


@contextmanager
def fast_imports() -> Iterator[None]:
    """Turn the garbage collector off during imports, which halves their time.

    Imports create hardly any garbage, but the collector would scan what they define again and
    again. Imported objects are also exempt from later collections.
    """
    before, was_enabled = len(sys.modules), gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
    if len(sys.modules) > before:
        gc.freeze()
