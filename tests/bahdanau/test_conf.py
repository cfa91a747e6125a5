"""The configuration of the project: scores differ in one key, and the documented command runs."""

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from attnlab.runs.settings import flat
from attnlab.training.config import read_config
from tests.bahdanau import PROJECT, project_settings
from tests.forked import ended


def flattened(*overrides: str) -> dict[str, Any]:
    cfg = OmegaConf.to_container(project_settings(*overrides))
    assert isinstance(cfg, dict)
    return flat({str(key): value for key, value in cfg.items()})


@pytest.mark.parametrize(
    "file",
    sorted((PROJECT / "conf" / "attn" / "cross").glob("*.yaml")),
    ids=lambda file: file.stem,
)
def test_a_score_changes_one_key(file: Path) -> None:
    assert file.read_text().startswith("# ")
    chosen = ("preset=translation", f"attn=cross/{file.stem}")
    ours, theirs = flattened(*chosen), flattened("preset=translation")
    differing = {key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key)}
    assert differing == ({"attn.score"} if file.stem != "additive" else set())
    read_config(project_settings(*chosen)).model(65)


def test_the_experiment_composes_under_its_own_name() -> None:
    cfg = project_settings("experiment=bahdanau")
    read_config(cfg).model(65)
    assert cfg.name == "bahdanau"


@pytest.mark.long
def test_the_documented_command_trains_and_suggests_the_next_one(tmp_path: Path) -> None:
    command = ["--config-dir", "experiments/bahdanau/conf", "preset=translation"]
    command += [f"outputs={tmp_path}", "trainer.max_steps=2", "probes=none"]
    command += ["data.train=70", "data.val=20", "logger=none"]
    code, said = ended(command, tmp_path)
    assert code == 0, said
    assert "nats per word" in said and "BLEU" in said
    assert "attn=cross/scaled_dot" in said.splitlines()[-1]
    assert "--config-dir" in said.splitlines()[-1]
