"""Tests of experiments/path_length, whose modules are importable as with `--config-dir`."""

from attnlab.imports import make_importable
from tests.conftest import ROOT

CONF = ROOT / "experiments" / "conf"
make_importable(CONF)
