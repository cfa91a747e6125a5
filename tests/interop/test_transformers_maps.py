"""`attnlab look hf:...`: patterns as transformers reports them, under the model's own tokens."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModel, AutoTokenizer
from typer.testing import CliRunner

from attnlab.attention_maps import look
from attnlab.cli import app
from attnlab.errors import BadInput
from attnlab.interop.transformers_loading import views_of_transformers
from attnlab.plotting import heatmaps
from attnlab.probes.measures import future_mass
from tests.interop.folders import bert_folder, gpt2_folder

TEXTS = {"bert": "looking at the dog, zebra", "gpt2": "to be, naïve 🙂 fox"}
TOKENS = {
    "bert": ["[CLS]", "look", "##ing", "at", "the", "dog", ",", "[UNK]", "[SEP]"],
    "gpt2": ["to", " be", ",", " ", "naïve", " \ufffd", "\ufffd\ufffd", " fo", "x"],
}
LAYERS = {"bert": 2, "gpt2": 3}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("hf")
    return {"bert": bert_folder(place / "bert"), "gpt2": gpt2_folder(place / "gpt2")}


@pytest.mark.parametrize("family", TEXTS)
@torch.no_grad()
def test_patterns_are_those_of_transformers(family: str, folders: dict[str, Path]) -> None:
    seen, tokens = views_of_transformers(str(folders[family]), TEXTS[family])
    model = AutoModel.from_pretrained(folders[family], attn_implementation="eager").eval()
    ids = AutoTokenizer.from_pretrained(folders[family])(TEXTS[family], return_tensors="pt")
    theirs = model(**ids, output_attentions=True).attentions
    assert tokens == TOKENS[family]
    assert len(seen) == len(theirs) == LAYERS[family]
    for view, pattern in zip(seen, theirs, strict=True):
        torch.testing.assert_close(view.pattern, pattern, atol=1e-5, rtol=0)
        assert bool(view.mask.all()) == (family == "bert")
        assert (future_mass(view.pattern).max() > 0.01) == (family == "bert")
    assert theirs[0].std() > 0.05  # they are not even


@pytest.mark.parametrize("family", TEXTS)
def test_the_verb_draws_every_head_or_one(family: str, folders: dict[str, Path]) -> None:
    target = f"hf:{folders[family]}"
    command = ["look", target, "--text", TEXTS[family]]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    names = [f"L{layer}H{head}" for layer in range(LAYERS[family]) for head in range(4)]
    lines = result.output.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("L")] == names
    assert "character" not in result.output
    page = Image.open(folders[family] / "look.png").size
    one = [*command, "--layer", "1", "--head", "2", "--out", str(folders[family] / "one.png")]
    result = CliRunner().invoke(app, one)
    assert result.exit_code == 0, result.output
    assert result.output.split()[0] == "L1H2" and result.output.count("L1H") == 1
    small = Image.open(folders[family] / "one.png").size
    assert small[0] < page[0] / 2 and small[1] < page[1] / 1.5


def test_layer_and_head_of_a_run(train: Callable[..., Any]) -> None:
    folder = str(train().folder)
    assert [name[:2] for name in look(folder, "the fox", head=1).words] == [(0, 1), (1, 1)]
    assert [name[:2] for name in look(folder, "the fox", layer=1).words] == [(1, 0), (1, 1)]
    whole, one = look(folder, "the fox"), look(folder, "the fox", layer=1, head=0)
    assert one.words == whole.words[2:3]
    for given, sentence in [({"layer": 2}, "layer = 2"), ({"head": -1}, "head = -1")]:
        with pytest.raises(BadInput, match=f"{sentence} must be one of 0 to 1"):
            look(folder, "the fox", **given)


@pytest.mark.parametrize(
    ("family", "text", "sentence"),
    [
        ("gpt2", "to", "text has 1 tokens; it must have 2 to 48"),
        ("gpt2", "", "text has 0 tokens"),
        ("gpt2", "to be " * 30, "2 to 48"),
        ("bert", "dog " * 11, "text has 13 tokens; it must have 2 to 12"),
    ],
)
def test_text_that_does_not_fit(
    family: str, text: str, sentence: str, folders: dict[str, Path]
) -> None:
    with pytest.raises(BadInput, match=sentence):
        look(f"hf:{folders[family]}", text)


def test_words_are_written_along_both_axes() -> None:
    mask = np.tri(4, dtype=bool)
    panel = heatmaps.Panel("", mask.astype(np.float32) / 4, mask)
    words = ["[CLS]", " look", "##ing", "a very long token indeed"]
    page = heatmaps.grid([panel], words, columns=1, heading="")
    blank = heatmaps.grid([panel], [" "] * 4, columns=1, heading="")
    assert page.shape > blank.shape  # room for the words
    ink = (page < 100).all(-1).sum() - (blank < 100).all(-1).sum()
    assert ink > 2 * 4 * 20  # pixels, of four words twice


def test_twelve_heads_of_a_long_text_fit_a_page() -> None:
    mask = np.tri(128, dtype=bool)
    panel = heatmaps.Panel("L0H0", mask.astype(np.float32) / 128, mask)
    page = heatmaps.grid([panel] * 12, [" token"] * 128, columns=12, heading="")
    assert page.shape[1] <= heatmaps.LARGEST_WIDTH


def test_a_damaged_folder(folders: dict[str, Path], tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(folders["gpt2"], broken)
    (broken / "model.safetensors").write_bytes(b"\0" * 100)
    with pytest.raises(BadInput, match="broken does not contain a model"):
        look(f"hf:{broken}", "to be")
