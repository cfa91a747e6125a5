"""What a training process imports, and that Lightning works without the rest."""

import gc
import subprocess
import sys

from attnlab import fast_imports

CODE = """
import sys
from attnlab.fast_imports import import_torchmetrics
import_torchmetrics()
import lightning.pytorch
print(*sorted(set(sys.modules) & {"scipy.signal", "transformers", "matplotlib.pyplot", "pandas"}))
import torch, torchmetrics
print(torchmetrics.MeanMetric()(torch.tensor([1.0, 3.0])).item())
import scipy.signal, matplotlib.pyplot, transformers  # can still be had by whoever wants them
"""


def test_lightning_comes_without_what_only_metrics_need() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["", "2.0"]


def test_the_collector_rests_during_imports_alone() -> None:
    assert gc.isenabled()
    frozen = gc.get_freeze_count()
    with fast_imports.imports():
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() == frozen  # nothing was imported, so nothing is kept
