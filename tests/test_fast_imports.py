"""Imports without garbage collection."""

import gc

from attnlab.imports import fast_imports


def test_garbage_collection_is_paused_only_during_imports() -> None:
    assert gc.isenabled()
    frozen = gc.get_freeze_count()
    with fast_imports():
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() == frozen  # nothing was imported, so nothing is kept
