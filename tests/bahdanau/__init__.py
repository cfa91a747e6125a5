"""Tests of experiments/bahdanau, whose modules are importable as with `--config-dir`."""

from typing import Any

from omegaconf import DictConfig

from attnlab.imports import make_importable
from tests.conftest import ROOT, settings

PROJECT = ROOT / "experiments" / "bahdanau"
make_importable(PROJECT / "conf")


def project_settings(*overrides: Any) -> DictConfig:
    """The composed configuration of conf/train.yaml with the project's own files."""
    return settings(f"hydra.searchpath=['{PROJECT / 'conf'}']", *overrides)
