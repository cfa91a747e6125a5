"""The configuration of a run: checked in one pass and turned into the objects that it names."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from attnlab.errors import BadInput, first_line
from attnlab.training.factories import (
    attention_nodes,
    data_factory,
    make_callback,
    make_logger,
    model_factory,
    refused,
    users_errors,
)
from attnlab.training.instantiate import build, checked, locate, parameters, unknown

if TYPE_CHECKING:
    import lightning.pytorch as L
    from lightning.pytorch.loggers import Logger
    from torch import nn

    from attnlab.data.batches import TaskData
    from attnlab.training.lightning_module import OptimizerFactory, TaskModule

GROUPS = {"attn", "model", "data", "optim", "trainer", "probes", "callbacks", "logger"}
SETTINGS: dict[str, Any] = {
    **{"name": str | int | float, "module": str, "outputs": str, "seed": int, "force": bool},
    **{"compile": bool, "check_layer": bool, "train_loss": bool, "checkpoint_every": int},
    **{"continue_from": str | None, "init_from": str | None},
}
COUNTS = (
    *("data.batch_size", "checkpoint_every", "trainer.max_steps", "trainer.val_check_interval"),
    *("trainer.log_every_n_steps", "trainer.accumulate_grad_batches"),
)
# Gradients of a scaled fp16 loss are clipped wrongly beside a fused optimizer, so no 16-mixed.
PRECISIONS = ("auto", "fastest", "32-true", "bf16-mixed", "bf16-true", "64-true")


@dataclass(frozen=True)
class RunConfig:
    """A checked configuration: plain settings, and a factory for each object of a run."""

    settings: dict[str, Any]  # all values, resolved
    module: "type[TaskModule]"
    data: "Callable[[], TaskData]"
    model: "Callable[[int], Any]"  # vocabulary size -> the model with its initial weights
    optimizer: "OptimizerFactory"
    probes: "list[Callable[[], L.Callback]]"
    callbacks: "list[Callable[[], L.Callback]]"
    loggers: "list[Callable[[Path, int | None], Logger]]"  # run directory, step if it resumes
    trainer: "partial[L.Trainer]"


def read_config(cfg: DictConfig) -> RunConfig:
    """Check a composed configuration of conf/train.yaml; BadInput with the first error found."""
    cfg = spread(cfg)
    _check_settings(cfg)
    _check_trainer(cfg)
    import torch  # only now, since importing PyTorch and Lightning takes seconds

    module = _module(cfg)
    optimizer = build(cfg.optim, "optim", supplied=("net", "max_steps"))
    optimizer(torch.nn.Linear(1, 1), cfg.trainer.max_steps)  # refuses bad numbers
    return RunConfig(
        settings=cast(dict[str, Any], OmegaConf.to_container(cfg)),
        module=module,
        data=data_factory(cfg.data),
        model=_initialized(cfg, module),
        optimizer=optimizer,
        probes=[build(node, f"probes.{name}") for name, node in cfg.probes.items()],
        callbacks=[partial(make_callback, x, f"callbacks.{k}") for k, x in cfg.callbacks.items()],
        loggers=[partial(make_logger, x, f"logger.{k}") for k, x in cfg.logger.items()],
        trainer=build(_for_lightning(cfg.trainer), "trainer"),
    )


def spread(cfg: DictConfig) -> DictConfig:
    """The configuration with each key beside a list of variants in all layers that have it."""
    if not isinstance(cfg.get("attn"), DictConfig) or "layers" not in cfg.attn:
        return cfg
    cfg = cfg.copy()
    OmegaConf.set_struct(cfg, False)
    if "_partial_" in cfg.attn:  # one variant, chosen in place of a preset's list
        del cfg.attn["layers"]
        OmegaConf.set_struct(cfg, True)
        return cfg
    layers, n_layer = cfg.attn.layers, cfg.model.get("n_layer", len(cfg.attn.layers))
    if len(layers) > n_layer:
        raise BadInput(
            f"attn lists {len(layers)} variants for model.n_layer = {n_layer} layers; "
            "list at most as many"
        )
    for key in [key for key in cfg.attn if key != "layers"]:
        value, having = cfg.attn.pop(key), [layer for layer in layers.values() if key in layer]
        if not having:
            raise BadInput(f"attn.{key} is not a setting of any of the variants in attn")
        for layer in having:
            layer[key] = value
    OmegaConf.set_struct(cfg, True)
    return cfg


def _check_settings(cfg: DictConfig) -> None:
    """Refuse unknown or missing settings, and values of the wrong type or range."""
    try:
        OmegaConf.resolve(cfg)
        missing = sorted(str(key) for key in OmegaConf.missing_keys(cfg))
    except OmegaConfBaseException as error:
        raise BadInput(first_line(error)) from error
    for key in map(str, cfg):
        if key in SETTINGS and key not in missing:
            checked(cfg[key], SETTINGS[key], key)
        elif key not in SETTINGS.keys() | GROUPS:
            raise BadInput(unknown(key, "", SETTINGS.keys() | GROUPS))
    for key in GROUPS:
        if not isinstance(cfg.get(key), DictConfig):
            raise BadInput(f"{key} = {cfg.get(key)} must be one of the files of conf/{key}")
    for key in missing:
        raise BadInput(f"{key} must be given: {key}=...")
    if cfg.continue_from is not None and cfg.init_from is not None:
        raise BadInput("init_from starts a new run and continue_from continues one; use either")
    for key in ("outputs", "continue_from", "init_from"):
        try:
            Path(cfg[key] or "").expanduser()
        except RuntimeError as error:
            raise BadInput(
                f"{key} = {cfg[key]} begins with a user name that this machine does not have"
            ) from error
    if cfg.seed < 0:
        raise BadInput(f"seed = {cfg.seed} must be at least 0")
    for key in COUNTS:
        value = checked(OmegaConf.select(cfg, key), int, key)
        if value < 1:
            raise BadInput(f"{key} = {value} must be at least 1")


def _check_trainer(cfg: DictConfig) -> None:
    """Refuse Trainer arguments that Lightning accepts and our guarantees for runs rule out."""
    for key, (accepted, reason) in refused()["arguments"].items():
        value = cfg.trainer.get(key, accepted)
        if value != accepted or type(value) is not type(accepted):  # 1 batch is not 1.0, all
            raise BadInput(f"trainer.{key} = {value} is not supported: {reason}")
    if cfg.trainer.precision not in PRECISIONS:
        allowed = ", ".join(PRECISIONS)
        raise BadInput(f"trainer.precision = {cfg.trainer.precision} must be one of {allowed}")
    clip = checked(cfg.trainer.gradient_clip_val, float | None, "trainer.gradient_clip_val")
    if clip is not None and not clip >= 0:
        raise BadInput(f"trainer.gradient_clip_val = {clip} must be at least 0, or null")


def _module(cfg: DictConfig) -> "type[TaskModule]":
    """The class of the task; BadInput if the attention is for another task."""
    from attnlab.training.lightning_module import TaskModule

    module = locate(str(cfg.module), "module")
    if not isinstance(module, type) or not issubclass(module, TaskModule):
        raise BadInput(f"module = {cfg.module} must be a subclass of {TaskModule.__name__}")
    if cfg.data.get("eval_lengths") and not module.takes_lengths:
        raise BadInput(f"data.eval_lengths is not for module = {cfg.module}; remove it")
    for path, node in attention_nodes(cfg.attn).items():
        attn = locate(str(node._target_), f"{path}._target_")
        if isinstance(attn, type) and not issubclass(attn, module.attention_class):
            raise BadInput(
                f"{path}._target_ = {node._target_} is not for module = {cfg.module}, which needs "
                f"{module.needs}"
            )
    return module


def _initialized(cfg: DictConfig, module: "type[TaskModule]") -> "Callable[[int], nn.Module]":
    """`model_factory` with a trial run of the attention, and with initial weights."""
    init = dict(list(parameters(module.init_weights, "module").items())[2:])  # not net and seed
    # With the keys of the initialization apart, every other key must be the model's.
    build(cfg.model, "model", apart=init, supplied=("attn", "vocab_size"))
    settings = {name: checked(cfg.model[name], init[name], f"model.{name}") for name in init}
    make = model_factory(cfg.model, cfg.attn)

    def make_initialized(vocab_size: int) -> "nn.Module":
        net = make(vocab_size)
        if not isinstance(net, module.model_class):
            raise BadInput(
                f"model._target_ = {cfg.model._target_} must be a {module.model_class.__name__} "
                f"for module = {cfg.module}"
            )
        with users_errors("trying the attention"):
            module.try_forward(net)
            module.init_weights(net, cfg.seed, **settings)
        return net

    return make_initialized


def _for_lightning(node: DictConfig) -> DictConfig:
    """Our trainer settings in Lightning's terms."""
    import torch

    node = node.copy()
    if node.precision in {"auto", "fastest"}:
        on_gpu = node.accelerator in {"auto", "gpu", "cuda"} and torch.cuda.is_available()
        # Emulated, bf16 is slower than fp32.
        cpu_has_it = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
        bf16 = on_gpu or (node.precision == "fastest" and cpu_has_it)
        node.precision = "bf16-mixed" if bf16 else "32-true"
    if "min_steps" in node:  # otherwise the one epoch would have to end before the run may stop
        node = DictConfig({**node, "min_epochs": 0})
    if isinstance(node.val_check_interval, int):  # in steps; Lightning counts batches
        node.val_check_interval *= node.accumulate_grad_batches
    return node
