"""What a training process imports, and that Lightning works without the rest."""

import subprocess
import sys

CODE = """
import sys
from attnlab.training.quick import import_torchmetrics
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
