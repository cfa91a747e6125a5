"""`attnlab checkup` on every kind of target, and on bad targets."""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from attnlab.commands.checkup_target import load_layer, load_target
from attnlab.commands.cli import app
from attnlab.errors import BadInput
from tests.command_line import attnlab
from tests.security import hostile

MODEL = """
import torch
from torch import nn

class Model(nn.Module):
    vocab_size, block_size = 11, 13
    def __init__(self, diagonal={diagonal}):
        super().__init__()
        self.diagonal = diagonal
        self.emb, self.out = nn.Embedding(11, 8), nn.Linear(8, 11)
        self.qkv = nn.Linear(8, 24)
    def forward(self, ids):
        x = self.emb(ids)
        q, k, v = self.qkv(x).chunk(3, -1)
        mask = torch.ones(ids.shape[1], ids.shape[1]).tril(self.diagonal).bool()
        scores = (q @ k.mT / 8 ** 0.5).masked_fill(~mask, float("-inf"))
        return self.out(x + scores.softmax(-1) @ v)

def factory():
    return Model()

def broken():
    raise OSError("no weights here")

made = Model().eval()

def tokens_in(ids):
    return made(ids)

number = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "their_model.py"
    path.write_text(MODEL.format(diagonal=0))
    return path


def invoke(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["checkup", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_a_healthy_file(file: Path) -> None:
    code, output = invoke(f"{file}:factory")
    assert code == 0
    assert "healthy" in output


def test_a_faulty_file_and_its_reports(file: Path, tmp_path: Path) -> None:
    file.write_text(MODEL.format(diagonal=1))
    code, output = invoke(
        f"{file}:Model", "--json", str(tmp_path / "r.json"), "--html", str(tmp_path / "r.html")
    )
    assert code == 1
    assert "off by one" in output
    assert json.loads((tmp_path / "r.json").read_text())["healthy"] is False
    assert "<svg" in (tmp_path / "r.html").read_text()


def test_sizes_can_be_given(file: Path) -> None:
    with pytest.raises(BadInput, match="vocab_size"):
        load_and_check(f"{file}:tokens_in")
    assert load_and_check(f"{file}:tokens_in", vocab_size=11, block_size=9)


def load_and_check(
    target: str, vocab_size: int | None = None, block_size: int | None = None
) -> bool:
    from attnlab.checkup import checkup

    return checkup(load_target(target).model, vocab_size=vocab_size, block_size=block_size).healthy


def test_a_file_with_dataclasses_and_postponed_annotations(file: Path) -> None:
    head = "from __future__ import annotations\nfrom dataclasses import dataclass\n"
    config = "@dataclass\nclass Config:\n    width: int = 8\n"
    file.write_text(head + MODEL.format(diagonal=0) + config)
    assert load_and_check(f"{file}:factory")


def test_a_factory_can_import_from_the_current_directory(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parent)
    monkeypatch.delitem(sys.modules, "their_model", raising=False)
    text = "def late():\n    from their_model import factory\n    return factory()\n"
    (file.parent / "late_import.py").write_text(text)
    before = list(sys.path)
    assert load_and_check("late_import.py:late")
    assert sys.path == before


def test_modules_are_found_by_name(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    assert load_target("their_model:factory").name == "their_model:factory"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nothing", "there is no file or directory nothing"),
        ("no/file.py:factory", "there is no file no/file.py"),
        ("no_such_module:factory", "cannot be imported"),
        ("hf:zzz", "there is no causal model type 'zzz'; try gpt2, llama"),
        ("{file}:absent", "has no absent"),
        ("{file}:number", "not a model or a factory"),
        ("{file}:broken", "no weights here"),
        ("{folder}", "not a run directory"),
        ("torch:relu", "torch:relu cannot be called without arguments"),
    ],
)
def test_bad_targets_are_one_sentence(target: str, message: str, file: Path) -> None:
    with pytest.raises(BadInput, match=message):
        load_target(target.format(file=file, folder=file.parent))


def test_a_file_without_a_name_gives_its_only_model_or_says_what_it_offers(file: Path) -> None:
    offers = re.escape(f"{file} offers Model, factory, broken, made; name one, as in {file}:Model")
    with pytest.raises(BadInput, match=offers):
        load_target(str(file))
    alone, _, _ = MODEL.format(diagonal=0).partition("def factory")
    file.write_text(alone)
    assert load_and_check(str(file))
    file.write_text("number = 3\n")
    with pytest.raises(BadInput, match="offers no model; add a function without arguments"):
        load_target(str(file))


LAYERS = """
import torch
from torch import nn
from attnlab.attention import SelfAttention

class Shifted(SelfAttention):
    def merge(self, mixed, x, v):
        return super().merge(mixed, x, v) + {shift}

class Windowed(SelfAttention):
    def pattern(self, x):
        return super().pattern(x).tril(-1)

class Alone(nn.Module):
    def __init__(self, n_embd=12):
        super().__init__()
        self.n_embd, self.qkv = n_embd, nn.Linear(n_embd, 3 * n_embd)
    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        seen = torch.ones(x.shape[1], x.shape[1]).tril({diagonal}).bool()
        return (q @ k.mT / 12 ** 0.5).masked_fill(~seen, float("-inf")).softmax(-1) @ v
"""


@pytest.mark.parametrize(
    ("name", "written", "code", "said"),
    [
        ("Shifted", {"shift": "0"}, 0, "forward, mask, pattern, and declared properties agree"),
        ("Shifted", {"shift": "x.roll(-1, 1)"}, 1, "attention reads ahead, but not by its mask"),
        ("Windowed", {}, 1, "the layer breaks a promise"),
        ("Alone", {}, 0, "Healthy"),
        ("Alone", {"diagonal": "1"}, 1, "mask diagonal off by one"),
    ],
)
def test_a_layer_is_examined_in_a_small_gpt_or_alone(
    name: str, written: dict[str, str], code: int, said: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_layers", raising=False)
    importlib.invalidate_caches()
    Path("my_layers.py").write_text(LAYERS.format_map({"shift": "0", "diagonal": "0"} | written))
    ended, output = invoke("--layer", f"my_layers.{name}")
    assert ended == code, output
    assert said in " ".join(output.split())


def test_a_layer_that_cannot_be_made_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("layer_of_two.py").write_text("class Layer:\n    def __init__(self, n, m): ...\n")
    with pytest.raises(BadInput, match=r"without arguments \(name a function that makes it\): "):
        load_layer("layer_of_two.Layer")
    for target in ("Layer", "layer_of_two.py"):
        with pytest.raises(BadInput, match=f"{target} names no layer; give package"):
            load_layer(target)


def test_the_command_ends_with_2_and_no_traceback(tmp_path: Path) -> None:
    no_file = [str(tmp_path / "no" / "r.json"), str(tmp_path)]
    for arguments in (["nowhere"], *(["hf:llama", "--json", path] for path in no_file)):
        ended = attnlab("checkup", *arguments)
        assert ended.code == 2
        assert ended.error.startswith("error: ")
        assert len(ended.error.splitlines()) == 1


def test_nothing_heavy_is_imported(file: Path) -> None:
    code = (
        "import sys; from attnlab.checkup import assert_causal; "
        "from attnlab.commands.checkup_target import load_target; "
        f"m = load_target({str(file) + ':factory'!r}).model; assert_causal(m); "
        "print(*sorted(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"lightning", "hydra", "datasets", "matplotlib", "rich", "jinja2", "transformers"}
    assert not heavy & set(done.stdout.split())
    assert "torch._dynamo" not in done.stdout.split()  # seconds, for nothing


@pytest.mark.parametrize("kind", ["file", "module", "function"])
def test_exit_codes(kind: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """0 healthy, 0 suspicious, 1 suspicious with --fail-on, 1 fault, 2 bad input."""
    monkeypatch.chdir(file.parent)
    monkeypatch.syspath_prepend(str(file.parent))
    names = {"file": f"{file}:factory", "function": f"{file}:tokens_in"}
    sizes = ["--vocab-size", "11", "--block-size", "13"]

    def ends(text: str, *options: str) -> int:
        file.write_text(text)
        sys.modules.pop("their_model", None)
        importlib.invalidate_caches()
        target = names.get(kind, "their_model:factory")
        return invoke(target, *sizes, "--seconds", "20", *options)[0]

    unscaled = MODEL.replace("/ 8 ** 0.5", "* 0.1")
    assert ends(MODEL.format(diagonal=0)) == 0
    assert ends(MODEL.format(diagonal=0), "--fail-on", "suspicious") == 0
    assert ends(MODEL.format(diagonal=1)) == 1
    if kind != "function":  # its inside cannot be examined
        assert ends(unscaled.format(diagonal=0)) == 0
        assert ends(unscaled.format(diagonal=0), "--fail-on", "suspicious") == 1
    with pytest.raises(BadInput, match="--fail-on warnings"):
        ends(MODEL.format(diagonal=0), "--fail-on", "warnings")


@pytest.mark.slow
def test_exit_codes_of_published_architectures(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    for kind, code in (("llama", 0), ("bert", 0)):
        assert invoke(f"hf:{kind}", "--block-size", "12")[0] == code
        folder = tmp_path / kind
        load_target(f"hf:{kind}").model.save_pretrained(folder)  # type: ignore[attr-defined]
        assert invoke(str(folder), "--vocab-size", "61", "--block-size", "12")[0] == code
    (tmp_path / "llama" / "config.json").write_text("{}")
    for target in ("hf:zzz", str(tmp_path / "llama")):
        ended = attnlab("checkup", target)
        assert (ended.code, ended.error[:7]) == (2, "error: ")


OWN = """
from pathlib import Path
from attnlab.attention import SelfAttention

class Mine(SelfAttention):
    calls = 0
    def forward(self, x):
        Mine.calls += 1
        assert Mine.calls < 60, "boom"
        return super().forward(x)
"""


def test_exit_codes_of_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"healthy": {}, "flipped": {"attn.may_attend": "flipped"}}
    changes["own"] = {"attn._target_": "attention_that_fails.Mine"}
    folders = {
        name: hostile.run(tmp_path / name, hostile.saved(hostile.checkpoint(**changed)))
        for name, changed in changes.items()
    }
    (tmp_path / "attention_that_fails.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert invoke(str(folders["healthy"]))[0] == 0
    assert invoke(str(folders["flipped"]))[0] == 1
    assert attnlab("checkup", str(folders["own"]), folder=tmp_path).code == 2  # needs --trust
    code, output = invoke(str(folders["own"]), "--trust")
    assert code == 3
    assert "boom" in output


@pytest.mark.parametrize("kind", ["hf", "directory"])
def test_a_published_model_that_fails_on_the_way_ends_with_3(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    from transformers import LlamaForCausalLM

    target = "hf:llama"
    if kind == "directory":
        target = str(tmp_path)
        load_target("hf:llama").model.save_pretrained(target)  # type: ignore[attr-defined]
    calls, forward = [], LlamaForCausalLM.forward

    def failing(*args: object, **kwargs: object) -> object:
        calls.append(1)
        assert len(calls) < 30, "boom"
        return forward(*args, **kwargs)

    monkeypatch.setattr(LlamaForCausalLM, "forward", failing)
    code, output = invoke(target, "--vocab-size", "61", "--block-size", "12")
    assert code == 3
    assert "boom" in output
    assert "finite" in output


@pytest.mark.parametrize("kind", ["module", "function"])
def test_own_code_that_fails_on_the_way_ends_with_3(
    kind: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parent)
    healthy = MODEL.format(diagonal=0)
    failing = "        self.n = getattr(self, 'n', 0) + 1\n        assert self.n < 25, 'boom'\n"
    here = "        x = self.emb(ids)\n"
    file.write_text(healthy.replace(here, failing + here))
    sys.modules.pop("their_model", None)
    importlib.invalidate_caches()
    name = {"module": "their_model:factory", "function": f"{file}:tokens_in"}[kind]
    code, output = invoke(name, "--vocab-size", "11", "--block-size", "13")
    assert code == 3
    assert "boom" in output


def test_a_model_that_fails_on_the_way_ends_with_3_and_its_own_traceback(file: Path) -> None:
    healthy = MODEL.format(diagonal=0)
    failing = "        self.n = getattr(self, 'n', 0) + 1\n        assert self.n < 25, 'boom'\n"
    here = "        x = self.emb(ids)\n"
    file.write_text(healthy.replace(here, failing + here))
    code, output = invoke(f"{file}:factory")
    assert code == 3
    assert "boom" in output
    assert file.name in output.replace("\n", "")  # a long line is broken
    assert "finite" in output
