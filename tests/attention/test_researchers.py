"""Seven layers of researchers, through a run: honest ones train, their leaky twins are refused."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from attnlab.attention import SelfAttention
from attnlab.errors import BadInput
from attnlab.training.config import read_config
from attnlab.training.run import run
from tests.attention.researchers import LAYERS
from tests.old import ROOT

each_layer = pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.__name__)


def trained(small: Callable[..., DictConfig], layer: Any, folder: Path, ahead: int) -> Any:
    """Two steps of preset=micro; the settings of a SelfAttention are those of attn=sdpa."""
    cfg = small("preset=micro", "probes=light", "trainer.max_steps=2", "model.block_size=32")
    own = {"_target_": f"{layer.__module__}.{layer.__name__}", "ahead": ahead}
    OmegaConf.set_struct(cfg, False)
    cfg.attn = OmegaConf.merge(cfg.attn, own) if issubclass(layer, SelfAttention) else own
    return run(read_config(cfg), folder, variant="mine")


@each_layer
def test_an_honest_layer_trains_and_is_measured(layer: Any, small: Any, tmp_path: Path) -> None:
    metrics = trained(small, layer, tmp_path / "run", 0).metrics
    assert metrics["status"] == "finished" and metrics["val_loss"] < 3.6
    measured = "attn/entropy" in metrics["probes"]
    assert measured == hasattr(layer, "pattern")
    assert metrics["probes"]["attn/future_mass"] == 0 or not measured


@each_layer
def test_its_leaky_twin_is_refused(layer: Any, small: Any, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=rf"{layer.__name__}: its output at position .* depends on"):
        trained(small, layer, tmp_path / "run", 1)
    assert not (tmp_path / "run" / "metrics.json").exists()


# A variant as a user writes it: one file of Python, three lines of YAML.
SOFTPICK = '''
from attnlab.attention import kernel


@kernel
def softpick(s, mask):
    """max(e^s - 1, 0) over the sum of |e^s - 1| (Zuhri et al. 2025, equation 5)."""
    e = s.masked_fill(~mask, 0.0).expm1()
    return e.relu() / (e.abs().sum(-1, keepdim=True) + 1e-8)
'''
YAML = """# max(e^s - 1, 0) over the sum of abs(e^s - 1).
defaults: [sdpa]
kernel: my_softpick.softpick
"""


@pytest.mark.slow
def test_a_variant_is_one_function_and_three_lines(tmp_path: Path, text_file: Path) -> None:
    (tmp_path / "my_softpick.py").write_text(SOFTPICK)
    (tmp_path / "conf" / "attn").mkdir(parents=True)
    (tmp_path / "conf" / "attn" / "softpick.yaml").write_text(YAML)
    given = f"attn=softpick preset=micro data=text data.path={text_file} trainer.max_steps=2"
    command = [sys.executable, str(ROOT / "train.py"), "--config-dir", "conf", *given.split()]
    environ = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{tmp_path}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (metrics,) = tmp_path.glob("outputs/lab/attn=softpick*/seed=0/metrics.json")
    found = json.loads(metrics.read_text())
    assert found["variant"] == "softpick" and found["probes"]["attn/row_sum_error"] > 0.01
