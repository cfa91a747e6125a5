"""The command `attnlab equalize`."""

from collections.abc import Sequence

import torch
from omegaconf import DictConfig

from attnlab.commands.composing import compose_config, hydra_conf
from attnlab.errors import BadInput
from attnlab.installation import lab_path
from attnlab.training.config import spread
from attnlab.training.factories import data_factory, model_factory
from attnlab.training.main import variants_in_turn

TOLERANCE = 0.005  # relative


def equalize(arms: Sequence[str], overrides: Sequence[str]) -> list[tuple[str, int]]:
    """Overrides with which two arms have equal numbers of parameters, within 0.5 %.

    An arm is a text of overrides, separated by spaces; `overrides` apply to both. The MLP of the
    larger arm becomes narrower, by `model.mlp_ratio`. Returns both arms with their numbers of
    parameters. Raises BadInput if no width of the MLP gives equal numbers.
    """
    with hydra_conf(lab_path("conf")):
        typed = [variants_in_turn([*overrides, *arm.split()]) for arm in arms]
        cfgs = [spread(compose_config(each, 0, lab_path("experiments"))[0]) for each in typed]
    counts, texts = [_parameters(cfg) for cfg in cfgs], list(arms)
    large, wanted = counts.index(max(counts)), min(counts)
    cfg = cfgs[large]
    if counts[large] > wanted and "mlp_ratio" in cfg.model:
        inside = round(cfg.model.mlp_ratio * cfg.model.n_embd)
        of_one = counts[large] - _at(cfg, inside - 1)  # parameters of one unit
        inside = max(1, inside - round((counts[large] - wanted) / of_one))
        counts[large] = _at(cfg, inside)
        texts[large] += f" model.mlp_ratio={inside / cfg.model.n_embd:g}"
    if counts[large] / wanted > 1 + TOLERANCE:
        raise BadInput(f"no model.mlp_ratio gives {arms[large]} only {wanted:,} parameters")
    return list(zip(texts, counts, strict=True))


def _at(cfg: DictConfig, inside: int) -> int:
    """The number of parameters with an MLP of this width inside."""
    narrow = cfg.copy()
    narrow.model.mlp_ratio = inside / cfg.model.n_embd
    return _parameters(narrow)


def _parameters(cfg: DictConfig) -> int:
    symbols = len(data_factory(cfg.data)().alphabet)
    with torch.device("meta"):  # no memory, no time
        net = model_factory(cfg.model, cfg.attn)(symbols)
    return sum(p.numel() for p in net.parameters())
