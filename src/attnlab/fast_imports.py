"""Imports without garbage collection, which take half of the time."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def imports() -> Iterator[None]:
    """Turn the garbage collector off during imports, and exempt what they defined from it.

    Imports create hardly any garbage, but the collector would scan all that PyTorch and Lightning
    define again and again, and once more when the process exits.
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
