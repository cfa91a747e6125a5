"""Malicious run directories; each function fills an empty directory."""

import io
import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnlab.attention import SelfAttention
from attnlab.files import seal
from attnlab.model import GPT
from attnlab.training.checkpoints import FUNCTIONS  # noqa: F401 - for the tests

Build = Callable[[Path, Path], None]  # the run directory, and a folder that must stay as it is
ALPHABET = "\n abcdefghijklmnopqrstuvwxyz,.T"
ATTN = {
    "_target_": "SelfAttention",
    "kernel": "sdpa",
    "scale": None,
    "may_attend": "causal",
    "head_init": "identical",
}
MODEL = {
    "_target_": "GPT",
    **{"n_layer": 1, "n_head": 2, "n_embd": 8, "block_size": 24, "dropout": 0.0, "bias": False},
    **{"norm": "layer_norm", "activation": "gelu", "learned_positions": True, "smear": 0},
    **{"init": "unit", "qk_std": None},
}
CONFIG = {"model": MODEL, "attn": ATTN, "seed": 0, "name": "lab", "data": {"batch_size": 4}}


def weights() -> dict[str, Tensor]:
    sizes = {"block_size": 24, "n_layer": 1, "n_head": 2, "n_embd": 8}
    net = GPT(SelfAttention, len(ALPHABET), **sizes)  # type: ignore[arg-type]
    return {f"net.{name}": x for name, x in net.state_dict().items()}


def checkpoint(**changes: Any) -> dict[str, Any]:
    """A checkpoint that loads; keys with dots are of the configuration, net.* are weights."""
    config, state = deepcopy(CONFIG), weights()
    recipe: dict[str, Any] = {"config": config, "alphabet": ALPHABET, "corpus": "c"}
    recipe["corpus_sha256"] = "0" * 64
    for name, value in changes.items():
        group, _, key = name.partition(".")
        if group == "net":
            state[name] = value
        elif key:
            config[group][key] = value  # type: ignore[index]
        else:
            recipe[name] = value
    return {"state_dict": state, "attnlab": {"recipe": recipe, "val_losses": {4: 1.0}}}


def saved(content: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream)
    return seal(stream.getvalue())


def run(folder: Path, content: bytes | None = None, **status: Any) -> Path:
    """A valid finished run, with a checkpoint of these bytes."""
    for part in (".hydra", "checkpoints"):
        (folder / part).mkdir(parents=True)
    told = {"status": "finished", "step": 4, "reason": None, "fingerprint": "0" * 64}
    (folder / "status.json").write_text(json.dumps(told | status))
    metrics = {"status": "finished", "variant": "sdpa", "steps": 4, "val_loss": 1.0}
    metrics |= {"loss_by_position": [2.0, 1.0], "unit": "character"}
    (folder / "metrics.json").write_text(json.dumps(metrics))
    (folder / ".hydra" / "config.yaml").write_text(json.dumps(CONFIG))
    (folder / ".hydra" / "overrides.yaml").write_text("- attn=sdpa\n")
    if content is not None:
        (folder / "checkpoints" / "last.ckpt").write_bytes(content)
    return folder


def recipe(changes: dict[str, Any], folder: Path, outside: Path) -> None:
    """A run whose checkpoint has these changes; CANARY stands for a file that code would make."""
    told = {k: canary(x, outside) for k, x in changes.items()}
    run(folder, saved(checkpoint(**told)))


def canary(value: Any, outside: Path) -> Any:
    if isinstance(value, str):
        return value.replace("CANARY", str(outside / "canary"))
    if isinstance(value, dict):
        return {key: canary(x, outside) for key, x in value.items()}
    return [canary(x, outside) for x in value] if isinstance(value, list) else value


NODE = {"_target_": "os.system", "command": "touch CANARY", "_partial_": True}
RECIPES: dict[str, dict[str, Any]] = {
    "os.system as model": {"model._target_": "os.system", "model.command": "touch CANARY"},
    "os.system as attention": {"attn._target_": "os.system", "attn.command": "touch CANARY"},
    "eval": {"attn._target_": "builtins.eval", "attn.source": "open('CANARY', 'w')"},
    "exec": {"model._target_": "builtins.exec", "model.source": "open('CANARY', 'w')"},
    "torch.hub": {
        "model._target_": "torch.hub.load",
        **{"model.repo_or_dir": "CANARY", "model.model": "m", "model.source": "local"},
    },
    "Popen": {"attn._target_": "subprocess.Popen", "attn.args": ["touch", "CANARY"]},
    "hydra call": {"attn._target_": "hydra.utils.call", "attn.config": NODE},
    "hydra instantiate": {"model._target_": "hydra.utils.instantiate", "model.config": NODE},
    "partial": {
        "attn._target_": "functools.partial",
        "attn.func": {"_target_": "functools.partial", "func": NODE},
    },
    "nested node": {"attn.kernel": NODE},
    "nested activation": {"model.activation": {"_target_": "torch.hub.load", "model": "CANARY"}},
    "list of nodes": {"attn.heads": [NODE, NODE]},
    "kernel": {"attn.kernel": "subprocess.run"},
    "mask": {"attn.may_attend": "os.path.samefile"},
    "head rule": {"attn.head_init": "os.system"},
    "activation": {"model.activation": "os.system"},
    "norm": {"model.norm": "builtins.open"},
    "numpy load": {"model.activation": "numpy.load"},
    "module beside": {"model.activation": "evil.run"},
    "package of tests": {"attn.kernel": "tests.security.evil.run"},
    "lab's own by path": {"attn.kernel": "attnlab.commands.cli.main"},
    "through the lab": {"attn.kernel": "attnlab.commands.cli.sys.exit"},
    "through torch": {"model.activation": "torch.nn.functional.os.system"},
    "torch function as attention": {"attn._target_": "torch.nn.functional.gelu"},
    "another class as model": {"model._target_": "Block"},
    "no class": {"model._target_": "gelu"},
    "unknown name": {"model._target_": "Nothing"},
    "call is false": {"attn._call_": False},
    "positional": {"attn._args_": ["touch CANARY"]},
    "recursive": {"attn._recursive_": True, "attn.kernel": NODE},
    "convert": {"attn._convert_": "all"},
    "partial is false": {"attn._partial_": False},
    "env": {"model.activation": "${oc.env:HOME}"},
    "decode": {"attn.scale": "${oc.decode:1}"},
    "create": {"model.norm": "${oc.create:{_target_:os.system}}"},
    "hydra resolver": {"attn.kernel": "${hydra:runtime.cwd}"},
    "reference": {"attn.kernel": "${model._target_}"},
    "missing": {"attn.kernel": "???"},
    "target is a number": {"model._target_": 7},
    "target is nothing": {"attn._target_": None},
    "markup": {"attn.kernel": "[red]x.y[/][/b]"},
    "escapes": {"attn.kernel": "\x1b]0;mine\x07.\x1b[31m\r"},
    "long name": {"attn.kernel": "x." * 100_000},
    "key with escapes": {"attn.\x1b[31m": "os.system"},
    "wide": {"model.n_embd": 2**40},
    "wide enough": {"model.n_embd": 30_000},
    "width below zero": {"model.n_embd": -8},
    "width in digits": {"model.n_embd": "8"},
    "deep": {"model.n_layer": 10**9},
    "many smeared": {"model.smear": 10**9},
    "long context": {"model.block_size": 10**7},
    "long context without positions": {
        "model.learned_positions": False,
        "model.block_size": 10**6,
    },
    "beyond 64 bits": {"model.n_layer": 10**30},
    "alphabet of half a pair": {"alphabet": ALPHABET[:-1] + "\ud800"},
    "alphabet twice": {"alphabet": "a" * len(ALPHABET)},
    "alphabet is a number": {"alphabet": 19},
    "alphabet of words": {"alphabet": [c * 2 for c in ALPHABET]},
    "no alphabet": {"alphabet": ""},
    "config is a list": {"config": [1]},
    "no config": {"config": {}},
    "NaN scale": {"attn.scale": float("nan")},
    "weights of another size": {"net.ln_f.weight": torch.ones(9)},
    "sparse weights": {"net.ln_f.weight": torch.ones(8).to_sparse()},
    "weights on no device": {"net.ln_f.weight": torch.ones(8, device="meta")},
    "complex weights": {"net.ln_f.weight": torch.ones(8, dtype=torch.complex64)},
    "weights that are stretched": {"net.ln_f.weight": torch.ones(1).expand(8)},
    "a terabyte that is stretched": {"net.ln_f.weight": torch.ones(1).expand(2**20, 2**18)},
    "weights that are a text": {"net.ln_f.weight": "os.system"},
}


class Bomb:
    """Pickled by reference to a function and its arguments."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def with_bomb(function: Any, folder: Path, outside: Path) -> None:
    content = checkpoint()
    content["state_dict"]["net.ln_f.weight"] = Bomb(function, f"touch {outside}/canary")
    run(folder, saved(content))


def plain_pickle(folder: Path, outside: Path) -> None:
    content = pickle.dumps(Bomb(os.system, f"touch {outside}/canary")) + b"\0\0"
    run(folder, seal(content))


def archive(
    change: Callable[[zipfile.ZipFile, str, bytes], None], folder: Path, outside: Path
) -> None:
    """A checkpoint repacked entry by entry."""
    del outside
    stream, packed = io.BytesIO(), io.BytesIO()
    torch.save(checkpoint(), stream)
    with zipfile.ZipFile(stream) as old, zipfile.ZipFile(packed, "w") as new:
        for name in old.namelist():
            change(new, name, old.read(name))
    run(folder, seal(packed.getvalue()))


def compressed(new: zipfile.ZipFile, name: str, content: bytes) -> None:
    if name.endswith("data.pkl"):
        content += b"\0" * 20_000_000
    new.writestr(name, content, zipfile.ZIP_DEFLATED)


def climbing(new: zipfile.ZipFile, name: str, content: bytes) -> None:
    new.writestr(name, content)
    if name.endswith("data.pkl"):
        new.writestr("../../../canary", content)


def absolute(new: zipfile.ZipFile, name: str, content: bytes) -> None:
    new.writestr(f"/tmp/{name}", content)


def with_code(new: zipfile.ZipFile, name: str, content: bytes) -> None:
    new.writestr(name, content)
    if name.endswith("data.pkl"):
        new.writestr(name.replace("data.pkl", "constants.pkl"), content)
        new.writestr(name.replace("data.pkl", "code/__torch__.py"), b"import os")


def too_short(new: zipfile.ZipFile, name: str, content: bytes) -> None:
    new.writestr(name, content[:4] if "/data/" in name else content)


def declared_larger(new: zipfile.ZipFile, name: str, content: bytes) -> None:
    new.writestr(name, content.replace(b"K\x08\x85", b"J\x00\x00\x00\x20\x85"))


def link(name: str, target: str, folder: Path, outside: Path) -> None:
    """A run with one of its files replaced by a symbolic link out of it."""
    run(folder, saved(checkpoint()), status="running")
    file = folder / name
    if file.exists():
        file.rename(outside / file.name)
    file.symlink_to(outside / target)


def replaced(name: str, make: Callable[[Path], object], folder: Path, outside: Path) -> None:
    run(folder, saved(checkpoint()))
    file = folder / name
    file.unlink(missing_ok=True)
    make(file)


def write(content: bytes | str) -> Callable[[Path], object]:
    raw = content if isinstance(content, bytes) else content.encode()
    return lambda file: file.write_bytes(raw)


def sparse(size: int) -> Callable[[Path], object]:
    def make(file: Path) -> None:
        file.touch()
        os.truncate(file, size)

    return make


def record(content: bytes, length: int | None = None) -> bytes:
    size = struct.pack("<Q", len(content) if length is None else length)
    return size + b"\0" * 4 + content + b"\0" * 4


EVENTS = "events.out.tfevents.1700000000.host.1"
LAUGHS = "a: &a [1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join([f'*{chr(97 + i)}'] * 9)}]\n" for i in range(12)
)
MERGES = "a: &a {x: 1}\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} {{<<: [{','.join([f'*{chr(97 + i)}'] * 9)}]}}\n"
    for i in range(12)
)
METRICS = {"variant": "sdpa", "val_loss": 1.0}
FILES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "checkpoint is a pipe": ("checkpoints/last.ckpt", lambda f: os.mkfifo(f)),
    "checkpoint is a folder": ("checkpoints/last.ckpt", lambda f: f.mkdir()),
    "checkpoint is endless": ("checkpoints/last.ckpt", lambda f: f.symlink_to("/dev/zero")),
    "checkpoint is a terminal": ("checkpoints/last.ckpt", lambda f: f.symlink_to("/dev/tty")),
    "checkpoint is itself": ("checkpoints/last.ckpt", lambda f: f.symlink_to(f)),
    "checkpoint is empty": ("checkpoints/last.ckpt", write(b"")),
    "checkpoint is a petabyte": ("checkpoints/last.ckpt", sparse(2**42)),
    "checkpoint of 15 GB": ("checkpoints/last.ckpt", sparse(15 * 2**30)),
    "status is a pipe": ("status.json", lambda f: os.mkfifo(f)),
    "status is nested": ("status.json", write("[" * 200_000)),
    "status of many digits": ("status.json", write('{"status": "running", "step": ' + "9" * 9**5)),
    "status with escapes": (
        "status.json",
        write(json.dumps({"status": "\x1b[31m[bold]", "step": 1, "fingerprint": "0"})),
    ),
    "metrics is a device": ("metrics.json", lambda f: f.symlink_to("/dev/zero")),
    "metrics of other types": ("metrics.json", write(json.dumps({"loss_by_position": "x"}))),
    "metrics with markup": (
        "metrics.json",
        write(json.dumps(METRICS | {"variant": "[/][red]\x1b]0;x\x07$\\frac{"})),
    ),
    "metrics with large numbers": ("metrics.json", write(json.dumps({"val_loss": 10**400}))),
    "settings with tags": (
        ".hydra/config.yaml",
        write("seed: !!python/object/apply:os.system ['touch CANARY']\n"),
    ),
    "settings that multiply": (".hydra/config.yaml", write(LAUGHS)),
    "settings that merge": (".hydra/config.yaml", write(MERGES)),
    "settings that hold themselves": (".hydra/config.yaml", write("a: &a {b: *a}")),
    "settings nested deeply": (".hydra/config.yaml", write("seed: " + "[" * 300_000)),
    "settings nested in a list": (".hydra/config.yaml", write("- " * 300_000 + "1")),
    "settings with dates": (".hydra/config.yaml", write("seed: 2024-01-01\n")),
    "settings are a pipe": (".hydra/config.yaml", lambda f: os.mkfifo(f)),
    "overrides with escapes": (
        ".hydra/overrides.yaml",
        write('- "optim.lr=\\e[31m[/][red]"\n- 7\n- {a: b}\n'),
    ),
    "history is a pipe": ("history.json", lambda f: os.mkfifo(f)),
    "history is endless": ("history.json", lambda f: f.symlink_to("/dev/zero")),
    "history of 15 GB": ("history.json", sparse(15 * 2**30)),
    "history nested": ("history.json", write("[" * 200_000)),
    "history with escapes": ("history.json", write(json.dumps({"\x1b[31m" * 9999: 1}))),
    "events of zeros": (EVENTS, sparse(2**26)),
    "events that declare much": (EVENTS, write(record(b"", 2**63))),
    "events that are noise": (EVENTS, write(record(bytes(range(256))) * 50)),
    "events are a pipe": (EVENTS, lambda f: os.mkfifo(f)),
    "events are a folder": (EVENTS, lambda f: f.mkdir()),
    "events of nothing": (EVENTS, lambda f: f.symlink_to("nowhere")),
}
LINKS = {
    "lock": (".lock", "precious"),
    "look.png": ("look.png", "precious"),
    "explore.html": ("explore.html", "precious"),
    "plots": ("plots", "."),
    "checkpoints": ("checkpoints", "checkpoints"),
    "settings": (".hydra", ".hydra"),
    "status": ("status.json", "status.json"),
    "metrics to a secret": ("metrics.json", "precious"),
}


def every_run() -> dict[str, Build]:
    """Name -> what builds the run directory."""
    found: dict[str, Build] = {name: partial(recipe, x) for name, x in RECIPES.items()}
    found |= {f"file: {name}": partial(replaced, *x) for name, x in FILES.items()}
    found |= {f"link: {name}": partial(link, *x) for name, x in LINKS.items()}
    found["pickle: os.system"] = partial(with_bomb, os.system)
    found["pickle: eval"] = partial(with_bomb, eval)
    found["pickle: torch.load"] = partial(with_bomb, torch.load)
    found["pickle: without an archive"] = plain_pickle
    changes = (compressed, climbing, absolute, with_code, too_short, declared_larger)
    found |= {f"archive: {change.__name__}": partial(archive, change) for change in changes}
    found["weights that are NaN"] = partial(
        recipe, {"net.ln_f.weight": torch.full((8,), float("nan"))}
    )
    return found
