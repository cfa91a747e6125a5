"""The example of docs/own.md: a user's own mask, kernel and layer, outside the repository."""

import math
import re
from pathlib import Path

import pytest
import torch

from attnlab.files import read_json
from attnlab.probes.capture import views
from attnlab.training.checkpoints import load_model
from tests.command_line import attnlab
from tests.conftest import ROOT, SMALL

PAGE = (ROOT / "docs" / "own.md").read_text(encoding="utf-8")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The files that the page prints."""
    blocks = re.findall(r"`([\w/]+\.(?:py|yaml))`:\n\n```\w+\n(.*?)```", PAGE, re.DOTALL)
    for name, content in blocks:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert len(blocks) == 4
    return tmp_path


@pytest.mark.slow
def test_own_code_trains_and_its_probes_know_its_mask(project: Path, text_file: Path) -> None:
    small = [o for o in SMALL if o != "probes=none"] + [f"data.path={text_file}"]
    seen = {}
    for variant in ("strided", "smooth", "local"):
        command = ["--config-dir", "conf", *small, "probes=light", f"attn={variant}"]
        ended = attnlab("train", *command, folder=project)
        assert ended.code == 0, ended.error
        folder = next((project / "outputs" / "lab").glob(f"attn={variant}*/seed=0"))
        assert read_json(folder / "metrics.json")["probes"]["attn/future_mass"] == 0
        net, _ = load_model(folder, trust=True)
        seen[variant] = next(views(net, torch.arange(16)[None] % 29))
    i = torch.arange(16)
    back = i[:, None] - i
    causal = back >= 0
    assert torch.equal(seen["strided"].mask, causal & (back % 4 == 0))
    assert torch.equal(seen["smooth"].mask, causal)
    assert torch.equal(seen["local"].mask, causal & (back < 8))
    # Equal scores over the 8 keys of the window have the largest possible entropy.
    assert math.isclose(float(seen["local"].mask.sum(-1).max()), 8)


def test_a_module_in_the_current_directory(project: Path, text_file: Path) -> None:
    own = ["attn.may_attend=my_attention.strided", "logger=none", f"data.path={text_file}"]
    ended = attnlab("train", *SMALL, *own, folder=project)
    assert ended.code == 0, ended.error
    assert "attnlab train" not in ended.error
