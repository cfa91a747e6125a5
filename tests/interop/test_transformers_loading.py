"""Models by name: patterns equal those of transformers, and messages for bad input."""

import shutil
import sys
from pathlib import Path

import huggingface_hub
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoTokenizer, LlamaConfig
from typer.testing import CliRunner

from attnlab.commands.cli import app
from attnlab.errors import BadInput
from attnlab.interop import load_attention_model, load_language_model
from attnlab.interop.transformers_loading import views_of_transformers
from attnlab.pages.attention_maps import look
from attnlab.probes.measures import future_mass
from tests.command_line import attnlab
from tests.interop.folders import bert_folder, gpt2_folder

TEXTS = {"bert": "looking at the dog, zebra", "gpt2": "to be, naïve 🙂 fox"}
TOKENS = {
    "bert": ["[CLS]", "look", "##ing", "at", "the", "dog", ",", "[UNK]", "[SEP]"],
    "gpt2": ["to", " be", ",", " ", "naïve", " \ufffd", "\ufffd\ufffd", " fo", "x"],
}
LAYERS = {"bert": 2, "gpt2": 3}


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))


def test_a_hub_name_without_a_network_is_one_sentence() -> None:
    with pytest.raises(BadInput) as error:
        load_attention_model("google-bert/bert-base-uncased")
    sentence = str(error.value)
    assert sentence.startswith("google-bert/bert-base-uncased is not a local directory")
    assert "\n" not in sentence


@pytest.mark.parametrize("name", ["no/such/folder", "two words", "/nowhere/at/all"])
def test_an_invalid_name_is_one_sentence(name: str) -> None:
    for verb in ("look", "sample"):
        result = CliRunner().invoke(app, [verb, f"hf:{name}"])
        assert isinstance(result.exception, BadInput)
        assert str(result.exception).startswith(f"{name} is not a local directory")


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not contain a model"):
        load_attention_model(str(tmp_path))


def test_a_model_of_an_unsupported_family(tmp_path: Path) -> None:
    LlamaConfig().save_pretrained(tmp_path / "llama")
    with pytest.raises(BadInput, match="llama is a llama; it must be a bert or gpt2"):
        load_attention_model(str(tmp_path / "llama"))
    bert = bert_folder(tmp_path / "b")
    with pytest.raises(BadInput, match="b is a bert; it must be a gpt2"):
        load_language_model(str(bert))


def test_a_missing_extra_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    ended = attnlab("look", f"hf:{tmp_path}")
    assert (ended.code, ended.out) == (2, "")
    said = "error: transformers is not installed; install it with: pip install transformers\n"
    assert ended.error == said


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
def test_look_draws_every_head_or_one(family: str, folders: dict[str, Path]) -> None:
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


def test_a_damaged_folder(folders: dict[str, Path], tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(folders["gpt2"], broken)
    (broken / "model.safetensors").write_bytes(b"\0" * 100)
    with pytest.raises(BadInput, match="broken does not contain a model"):
        look(f"hf:{broken}", "to be")


def test_missing_weights_are_not_drawn(folders: dict[str, Path], tmp_path: Path) -> None:
    file = shutil.copytree(folders["gpt2"], tmp_path / "part") / "model.safetensors"
    weights = {name: x for name, x in load_file(file).items() if ".h.1." not in name}
    save_file(weights, file, {"format": "pt"})
    with pytest.raises(BadInput, match=r"part lacks weights of a gpt2, such as transformer\.h\.1"):
        load_language_model(str(tmp_path / "part"))
