"""What can be trained: which model learns from which data, and how its attention is built.

The target of the configuration's model decides: a language model, or a translator.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from omegaconf import DictConfig

from attnlab.data.corpus import Corpus
from attnlab.errors import BadInput
from attnlab.init import init_weights
from attnlab.model import GPT, Block
from attnlab.training.instantiate import locate
from attnlab.translation import measures
from attnlab.translation import model as translator
from attnlab.translation.aligner import Aligner
from attnlab.translation.model import Translator
from attnlab.translation.pairs import Pairs

Net = GPT | Translator
Data = Corpus | Pairs


@dataclass(frozen=True)
class Task:
    """One kind of model with its kind of data.

    Args:
        net: what the model's target must give.
        data: what the data's target must give.
        needs: the groups of the configuration that fit, for messages.
        layer: what the model tells each attention layer.
        apart: keys of the group model that are not its target's.
        draw: gives the model the weights that a configuration asks for.
        try_out: runs the attention once, so that one that cannot work says so.
        check: refuses data that are too few for a model and its configuration.
    """

    net: type[torch.nn.Module]
    data: type
    needs: str
    layer: tuple[str, ...]
    apart: tuple[str, ...]
    draw: Callable[[Any, DictConfig], None]
    try_out: Callable[[Any], None]
    check: Callable[[Any, Any, DictConfig], None]


def task_of(cfg: DictConfig) -> Task:
    """What `cfg.model` is, and whether `cfg.attn` is for it.

    Raises:
        BadInput: there is no such model or attention, or they are not for one another.
    """
    model = locate(str(cfg.model._target_), "model._target_")
    attn = locate(str(cfg.attn._target_), "attn._target_")
    task = TRANSLATION if _is_a(model, Translator) else LANGUAGE_MODEL
    if _is_a(attn, Aligner) != (task is TRANSLATION):
        hint = "; preset=translation brings a model for it" if _is_a(attn, Aligner) else ""
        raise BadInput(
            f"attn._target_ = {cfg.attn._target_} is not for "
            f"model._target_ = {cfg.model._target_}, which needs {task.needs}{hint}"
        )
    return task


def _is_a(target: Any, cls: type) -> bool:
    return inspect.isclass(target) and issubclass(target, cls)


def _draw_gpt(net: GPT, cfg: DictConfig) -> None:
    init_weights(net, cfg.seed, cfg.model.init, cfg.model.qk_std)


@torch.no_grad()
def _try_out_gpt(net: GPT) -> None:
    """Two positions through the model: a kernel or layer that cannot work says so at once."""
    net.eval()
    x = net.embed(torch.zeros(1, min(2, net.block_size), dtype=torch.long))
    for block in net.blocks:
        assert isinstance(block, Block)
        y = block.attn(x)
        if y.shape != x.shape:
            raise ValueError(
                f"the attention layer must keep the shape (B, T, C) = {tuple(x.shape)}; "
                f"it gave {tuple(y.shape)}"
            )
    net.train()


def _check_text(net: GPT, corpus: Corpus, cfg: DictConfig) -> None:
    corpus.check_length(net.block_size)


def _draw_translator(net: Translator, cfg: DictConfig) -> None:
    translator.init_weights(net, cfg.seed)


@torch.no_grad()
def _try_out_translator(net: Translator) -> None:
    """One look at two source words: a score that cannot work says so at once."""
    H = net.bridge.out_features
    memory, may_attend = torch.zeros(1, 2, 2 * H), torch.ones(1, 2, dtype=torch.bool)
    context, _ = net.attn(torch.zeros(1, H), net.attn.keys(memory), memory, may_attend)
    if context.shape != (1, 2 * H):
        raise ValueError(f"the attention must give {(1, 2 * H)}; it gave {tuple(context.shape)}")


def _check_pairs(net: Translator, pairs: Pairs, cfg: DictConfig) -> None:
    measures.sacrebleu()  # that it is missing is to be said before the training, not after
    if len(pairs.train) < cfg.data.batch_size:
        raise BadInput(
            f"data.batch_size = {cfg.data.batch_size} is more than the {len(pairs.train)} pairs "
            f"that {pairs.name} has to train on"
        )


LANGUAGE_MODEL = Task(
    net=GPT,
    data=Corpus,
    needs="attn=sdpa or another of its kind, and a text: data=auto",
    layer=("n_embd", "n_head", "block_size", "bias", "dropout"),
    apart=("init", "qk_std"),
    draw=_draw_gpt,
    try_out=_try_out_gpt,
    check=_check_text,
)
TRANSLATION = Task(
    net=Translator,
    data=Pairs,
    needs="attn=cross/additive, cross/dot or cross/scaled_dot, and pairs of sentences: data=pairs",
    layer=("query_size", "key_size"),
    apart=(),
    draw=_draw_translator,
    try_out=_try_out_translator,
    check=_check_pairs,
)
