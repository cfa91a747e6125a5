"""Tests of experiments/path_length, whose modules are importable as with `--config-dir`."""

from attnlab.imports import make_importable
from tests.conftest import ROOT

PROJECT = ROOT / "experiments" / "path_length"
make_importable(PROJECT / "conf")
