"""Imports without garbage collection."""

import gc

from attnlab.files import fast_imports


def test_the_collector_rests_during_imports_alone() -> None:
    assert gc.isenabled()
    frozen = gc.get_freeze_count()
    with fast_imports():
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() == frozen  # nothing was imported, so nothing is kept
