"""Models with their initial weights from settings, also for texts longer than in the training."""

from collections.abc import Callable

from torch import nn

from attnlab.attention import AttentionConfig
from attnlab.errors import BadInput
from attnlab.init import init_weights
from attnlab.model import GPT, AttentionFactory
from attnlab.settings.bind import bind
from attnlab.settings.own_code import Node
from attnlab.settings.types import ModelSettings

LONGEST_TEXT = 2**14  # a mask of length x length is built: 256 MB


def attention_factory(attn: Node) -> AttentionFactory:
    """The attention of a model: one variant, or `attn.layers`, several in turn."""
    attn = {key: value for key, value in attn.items() if key != "source"}
    if "layers" not in attn:
        return bind(attn, "attn", supplied=["config"])
    variants = [
        bind(node, f"attn.layers.{n}", supplied=["config"]) for n, node in attn["layers"].items()
    ]

    def in_turn(config: AttentionConfig) -> nn.Module:
        return variants[config.layer % len(variants)](config)

    return in_turn


def model_factory(model: ModelSettings, attn: Node, seed: int) -> Callable[[int], GPT]:
    """Makes the model with its initial weights from a vocabulary size; BadInput for settings that
    no class takes, and from the factory for those that do not fit together."""
    arguments = model.plain()
    make = bind(
        arguments,
        "model",
        supplied=["attn", "vocab_size"],
        ignored=["init", "qk_std", "source"],
    )
    make_attention = attention_factory(attn)

    def with_initial_weights(vocab_size: int) -> GPT:
        net: GPT = make(attn=make_attention, vocab_size=vocab_size)
        init_weights(net, seed, scheme=model.init, qk_std=model.qk_std)
        return net

    return with_initial_weights


def at_length(net: GPT, model: ModelSettings, attn: Node, length: int) -> GPT:
    """A model with the same weights for `length` symbols; the same model, if they fit into it.

    The settings are those of its run. Raises BadInput if the length is out of range, or if the
    model has weights for each position.
    """
    if not 1 <= length <= LONGEST_TEXT:
        raise BadInput(f"length = {length} must be from 1 to {LONGEST_TEXT:,}")
    if length <= net.block_size:
        return net
    beyond = f"length = {length} is beyond model.block_size = {net.block_size}"
    if net.wpe is not None:
        raise BadInput(
            f"{beyond}, and the model has learned no embeddings for positions there; train with "
            "model.positions=none, and attn=rotary or attn=alibi for example"
        )
    make = model_factory(model.model_copy(update={"block_size": length}), attn, seed=0)
    longer = make(net.vocab_size)
    try:
        longer.load_state_dict(net.state_dict())
    except RuntimeError as error:
        raise BadInput(f"{beyond}, on which the shapes of its weights depend") from error
    return longer.to(next(net.parameters())).train(net.training)  # device and dtype
