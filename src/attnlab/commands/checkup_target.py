"""`attnlab checkup TARGET`: load a target, examine it, write the reports."""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import yaml
from torch import nn

from attnlab.checkup.checkup_report import Report
from attnlab.checkup.embedded_layer import EmbeddedLayer
from attnlab.checkup.findings import FAULT, Finding, passed
from attnlab.checkup.model_adapter import parameter_names
from attnlab.checkup.runner import checkup
from attnlab.errors import BadInput, first_line
from attnlab.files import write_atomically
from attnlab.init import init_weights
from attnlab.interop import transformers_loading
from attnlab.model import GPT, Block
from attnlab.probes.layer_check import check_layer

_MOST_WEIGHTS = 40_000_000


@dataclass(frozen=True)
class Target:
    """A model to examine, and its sizes if they are known."""

    model: Callable[..., object]
    name: str
    vocab_size: int | None = None
    block_size: int | None = None


def examine_target(
    target: str,
    *,
    vocab_size: int | None,
    block_size: int | None,
    prove: bool,
    seconds: float | None,
    fail_on: str,
    json: Path | None,
    html: Path | None,
    trust: bool = False,
    layer: bool = False,
) -> Report:
    """Examine a target, or with `layer` the attention layer that it names, and write the reports
    that were asked for; BadInput if the target or an option is impossible, OSError if a report
    cannot be written."""
    if fail_on not in ("fault", "suspicious"):
        raise BadInput(f"--fail-on {fail_on} must be fault or suspicious")
    for path in (json, html):
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            raise BadInput(f"{path} cannot be written; give a file in an existing directory")
    loaded = load_layer(target) if layer else load_target(target, trust=trust)
    report = checkup(
        loaded.model,
        vocab_size=loaded.vocab_size if vocab_size is None else vocab_size,
        block_size=loaded.block_size if block_size is None else block_size,
        prove=prove,
        seconds=seconds,
        name=loaded.name,
    )
    if isinstance(loaded.model, GPT) and layer:
        report = replace(report, findings=(*report.findings, check_contract(loaded.model)))
    for path, text in ((json, report.to_json), (html, report.to_html)):
        if path is not None:
            write_atomically(path, (text() + "\n").encode())
    return report


def load_target(target: str, *, trust: bool = False) -> Target:
    """Load the model that a target names; BadInput if it does not exist or gives no model.

    Args:
        target: a run directory or checkpoint, "package.module:factory",
            "path/to/file.py:factory", "path/to/file.py" with one model, "hf:<model type>", or a
            local directory of transformers.
        trust: for a run or checkpoint, as for `attnlab.training.checkpoints.load_model`; for a
            directory of transformers, whether code in it may run.
    """
    if target.startswith("hf:"):
        return tiny_transformer(target.removeprefix("hf:"))
    path = Path(target)
    if path.is_dir() and (path / "config.json").exists():
        library = transformers_loading.transformers()
        with _errors_as_bad_input(f"{path} holds no causal language model"):
            # Without an answer, transformers would ask on the terminal whether to run code there.
            model = library.AutoModelForCausalLM.from_pretrained(
                path, local_files_only=True, trust_remote_code=trust
            )
        return Target(model, str(path))
    place, colon, name = target.rpartition(":")
    if path.suffix == ".py" and path.exists():
        place, name = target, ""
    elif path.exists():
        from attnlab.training.checkpoints import load_model  # imports all of training

        net, alphabet = load_model(path, trust=trust)
        return Target(net, str(path), len(alphabet), net.block_size)
    elif not colon:
        raise BadInput(
            f"there is no file or directory {target}; a target is a run directory, a checkpoint, "
            f"package.module:factory, path/to/file.py:factory, hf:<model type> or a directory of "
            f"transformers"
        )
    with _importing_from_here():  # until the factory has returned, which may import modules, too
        return Target(_made(_named(place, name, target), target), target)


def load_layer(target: str) -> Target:
    """A small GPT with the attention layer that a target names, if it is made from a config as
    `SelfAttention` is; else the layer alone, after an embedding.

    Args:
        target: "package.module.Layer", "package.module:Layer" or "path/to/file.py:Layer".
    """
    place, _, name = target.rpartition(":" if ":" in target else ".")
    if not place or target.endswith(".py"):
        raise BadInput(f"{target} names no layer; give package.module.Layer or file.py:Layer")
    with _importing_from_here():
        made = _named(place, name, target)
        if parameter_names(made)[:1] != ["config"]:
            layer = _made(made, target)
            if not isinstance(layer, nn.Module):
                raise BadInput(f"{target} gives a {type(layer).__name__}, not a layer")
            return Target(EmbeddedLayer(layer), name, block_size=32)
        failed = f"{target} cannot be built from an AttentionConfig"
        with _errors_as_bad_input(f"{failed} (name a function that makes it)"):
            net = GPT(made, 29, block_size=32, n_layer=2, n_head=4, n_embd=32)
            init_weights(net, 0)
    return Target(net, name)


def check_contract(net: GPT) -> Finding:
    """Does the first attention layer keep the promises of docs/own.md?"""
    try:
        block = net.blocks[0]
        assert isinstance(block, Block)
        check_layer(block.attn, n_embd=32, block_size=net.block_size)
    except BadInput as error:
        return Finding("contract", FAULT, str(error), "contract")
    return passed("contract", "forward, mask, pattern, and declared properties agree")


@contextmanager
def _importing_from_here() -> Iterator[None]:
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)


def _named(place: str, name: str, target: str) -> Any:
    """What a module or a file holds under a name; without one, its only model or factory."""
    module = _module(place)
    if name and hasattr(module, name):
        return getattr(module, name)
    public = {n: x for n, x in vars(module).items() if not n.startswith("_")}
    if name:
        known = ", ".join(public) or "nothing"
        raise BadInput(f"{target}: the module has no {name}; it has {known}")
    offered = [n for n, x in public.items() if _could_be_model(x, module)]
    if len(offered) == 1:
        return public[offered[0]]
    said, example = f"offers {', '.join(offered)}; name one", (*offered, "make_model")[0]
    if not offered:
        said = "offers no model; add a function without arguments that makes one, and name it"
    raise BadInput(f"{target} {said}, as in {target}:{example}")


def _could_be_model(x: Any, module: ModuleType) -> bool:
    """Whether it is a model, or a class or function of this module that may make one."""
    if isinstance(x, nn.Module):
        return True
    own = callable(x) and hasattr(x, "__module__") and x.__module__ == module.__name__
    return own and not _needed(x) and (not inspect.isclass(x) or issubclass(x, nn.Module))


def _needed(function: Callable[..., object]) -> bool:
    """Whether it has parameters by position without a default."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    arguments = inspect.signature(function).parameters.values()
    return any(p.default is p.empty and p.kind in kinds for p in arguments)


def _module(place: str) -> ModuleType:
    """Import a module by its name or from its file."""
    path = Path(place)
    if path.suffix == ".py" and not path.exists():
        raise BadInput(f"there is no file {place}")
    with _errors_as_bad_input(f"{place} cannot be imported"):
        if path.suffix != ".py":
            return importlib.import_module(place)
        spec = importlib.util.spec_from_file_location(place, path)
        assert spec is not None and spec.loader is not None, "it ends in .py"
        module = sys.modules[place] = importlib.util.module_from_spec(spec)  # for dataclasses
        spec.loader.exec_module(module)
        return module


@contextmanager
def _errors_as_bad_input(what: str) -> Iterator[None]:
    """Turn any error of the user's code into BadInput with one sentence."""
    try:
        yield
    except Exception as error:
        raise BadInput(f"{what}: {first_line(error, with_class=True)}") from error


def _made(made: object, target: str) -> Callable[..., object]:
    """The model that a name refers to: the object itself, or what it returns without arguments."""
    if isinstance(made, nn.Module):
        return made
    if not callable(made):
        raise BadInput(f"{target} is a {type(made).__name__}, not a model or a factory of one")
    without = f"{target} cannot be called without arguments (name a function that makes it)"
    with _errors_as_bad_input(without):
        if _needed(made) and not inspect.isclass(made):
            return made  # a function of tokens
        model = made()
    if not callable(model):
        raise BadInput(f"{target} returned a {type(model).__name__}, not a model")
    return model


def tiny_transformer(model_type: str) -> Target:
    """A small random model of a model type of transformers such as "llama", from its config only;
    BadInput if there is no such causal model, or no small one can be built."""
    transformers = transformers_loading.transformers()
    known = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    names = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    if model_type not in known or model_type not in names:
        near = sorted(name for name in names if name[:2] == model_type[:2]) or ["gpt2", "llama"]
        raise BadInput(f"there is no causal model type {model_type!r}; try {', '.join(near)}")
    reasons = []
    # Some hybrids have attention in every fourth layer only, and some models need all parts small.
    for layers, parts in ((2, "text"), (4, "text"), (8, "text"), (2, "")):
        try:
            model, vocab_size = _tiny_model(tiny_config(known[model_type], layers, parts))
        except Exception as error:
            name = "" if isinstance(error, BadInput) else f"{type(error).__name__}: "
            reasons.append(name + " ".join(str(error).split())[:300])
        else:
            return Target(model, f"hf:{model_type}", vocab_size, 48)
    raise BadInput(f"a tiny {model_type} cannot be built: {reasons[0]}")


def _tiny_model(config: Any) -> tuple[nn.Module, int | None]:
    """A model that runs, and its vocabulary's size if the configuration has it."""
    build = transformers_loading.transformers().AutoModelForCausalLM.from_config
    with torch.device("meta"):
        count = sum(p.numel() for p in build(config).parameters())
    if count > _MOST_WEIGHTS:
        large = f"it has {count:,} weights even in its smallest version"
        raise BadInput(f"{large}; write a factory with your own config")
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model: nn.Module = build(config)
        model(torch.arange(2, 8)[None])
    return model, config.get_text_config().vocab_size


def tiny_config(config_class: Callable[..., object], layers: int, parts: str) -> object:
    """A configuration with small values for all sizes that it has, and for such parts of it."""
    usual: Any = config_class()
    names = set(vars(usual)) | set(usual.attribute_map)
    own = usual.attribute_map.get("layer_types", "layer_types")
    kinds = list(dict.fromkeys(vars(usual).get(own) or []))  # of hybrids: a layer of each kind
    layers = max(layers, len(kinds))
    named = yaml.safe_load(files("attnlab").joinpath("tiny_sizes.yaml").read_text())
    sizes: dict[str, Any] = {k: n for n, keys in named.items() for k in keys if k in names}
    sizes |= {k: layers for k, n in sizes.items() if n == "layers"}
    if kinds:
        sizes[own] = (kinds * layers)[:layers]
    if "kv_lora_rank" in names:  # latent attention has a key for every query head
        sizes["num_key_value_heads"] = sizes["num_attention_heads"]
    if {"expand", "head_dim", "num_heads"} <= names:  # of Mamba 2: heads fill the inner layer
        sizes["head_dim"] = usual.expand * sizes["hidden_size"] // sizes["num_heads"]
    if "is_decoder" in names:  # of encoders such as BERT, which have no causal mask without it
        sizes["is_decoder"] = True
    if "attention_types" in names:  # of GPT-Neo, one entry per layer
        sizes["attention_types"] = [[["global", "local"], layers // 2]]
    for name, part in usual.sub_configs.items():
        if parts in name and hasattr(part, "attribute_map"):
            sizes[name] = tiny_config(part, layers, parts)
    return config_class(**sizes)
