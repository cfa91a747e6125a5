"""Whether a user's layer can be trained and measured; tried before a run starts with it.

Letters: B batch, T time, C channels.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn

from attncheck import causal
from attncheck.modes import (
    SAME_OUTPUTS,
    require_memoryless,
    require_rows_apart,
    require_same_twice,
)
from attncheck.outcomes import CheckFailed
from attncheck.states import State, Weights
from attncheck.subject import Subject, find_best_dtype, is_rounding, relative, steady
from attnlab.attention.core import SelfAttention, function_name, manual, sdpa
from attnlab.attention.layer import HasMask, HasPattern, Memo, symbols_from, uses_memo
from attnlab.errors import BadInput
from attnlab.model import GPT
from attnlab.probes.capture import attention_layers

LENGTH = 16  # positions, of which each is changed in turn
AGREES = 1e-4  # of the standard deviation, between `forward` and the pattern
SHOWS = 1e-3  # a weight of a pattern that must show in the output
# Noise opens gates that start at 0. In training mode dropout does nothing.
EVALUATED = State(weights=Weights.NOISE)
TRAINED = State(training=True, grad=True, dropout_off=True, weights=Weights.NOISE)
TRAINED_IN_OWN_DTYPE = replace(TRAINED, in_own_dtype=True)  # as of a fused kernel


def check_layers(net: GPT, *, pattern: bool = True) -> None:
    """`check_layer` for every attention layer of a GPT, each after the layers before it, which may
    leave it something in the memo. BadInput if one fails. `pattern` False skips the checks of
    attention patterns."""
    layers = attention_layers(net)
    for number, layer in enumerate(layers):
        check_layer(
            layer,
            n_embd=net.wte.embedding_dim,
            block_size=net.block_size,
            vocab_size=net.vocab_size,
            before=layers[:number],
            pattern=pattern,
        )


def check_layer(
    layer: nn.Module,
    *,
    n_embd: int,
    block_size: int,
    vocab_size: int = 2,
    before: Iterable[nn.Module] = (),
    pattern: bool = True,
) -> None:
    """Refuse a layer that cannot be trained fairly, or that its instruments would misdescribe.

    With noise on its weights, in evaluation and in training mode, in this order:

    1. The same input gives the same output, as `attncheck.assert_deterministic` has it. In
       training mode, with the same random seed.
    2. No row of a batch changes another, as `attncheck.assert_rows_independent` has it.
    3. No input after i changes the output at i, unless the layer's own mask admits it. If nothing
       later is admitted, the first outputs of a text are those of its beginning alone. In
       training mode also in the precision of the weights.
    4. Its pattern is 0 where its mask blocks, and what has weight in it changes the output. What
       an output reads beside that, as by a convolution of the input, is not limited.
    5. A `SelfAttention` is proj(merge(pattern @ v, x, v)) of the pattern in evaluation mode, also
       in training mode and at the whole length.
    6. A `SelfAttention` uses the settings of its scores and its kernel that it was given. One with
       an `attend` of its own may not, and would be recorded with a setting that does nothing.

    Args:
        layer: called as layer(x), or layer(x, memo) where it declares `uses_memo`.
        n_embd, block_size: C, and the largest T.
        vocab_size: the number of symbols, for a layer that reads memo["ids"].
        before: the layers before it in a model, which fill the memo.
        pattern: False skips 4 and 5.

    Raises BadInput with the first requirement that fails.
    """
    call = Caller(list(before), vocab_size)
    sample = torch.randn(8, block_size, n_embd, generator=torch.Generator().manual_seed(0))
    tried = Subject(layer, sample, call, rows=32)  # at most 32 sequences in one call
    tried = replace(tried, best_dtype=find_best_dtype(tried))
    _check_mask(layer, _placed(tried, sample[:1, : min(block_size, LENGTH)]))
    for state in (EVALUATED, TRAINED):
        with tried.in_state(state) as there, _refusing(layer):
            _require_the_same_again(there)
            require_rows_apart(there)
            _require_nothing_later(steady(there))
    with tried.in_state(TRAINED_IN_OWN_DTYPE) as there, _refusing(layer):
        _require_nothing_later(steady(there))
    if pattern and isinstance(layer, HasPattern):
        with tried.in_state(EVALUATED) as there:
            _check_pattern(there, call)
    if pattern and isinstance(layer, SelfAttention):
        for T in sorted({min(block_size, LENGTH), block_size}):
            _check_forward(tried, call, T)
    if isinstance(layer, SelfAttention):
        with tried.in_state(EVALUATED) as there:
            _check_settings_are_used(replace(there, seed_each_call=True))


@dataclass(frozen=True)
class Caller:
    """Calls a layer as a model does, with the memo of the layers before it."""

    before: list[nn.Module]
    vocab_size: int

    def __call__(self, layer: nn.Module, x: Tensor) -> Tensor:
        """The output (B, T, C) for x (B, T, C)."""
        y: Tensor = layer.forward(x, *self.arguments_after_x(layer, x))
        return y

    def arguments_after_x(self, layer: nn.Module, x: Tensor) -> tuple[()] | tuple[Memo]:
        """What the layer takes after x: nothing, or the memo that the layers before it have filled
        from x."""
        if not uses_memo(layer):
            return ()
        memo: Memo = {"ids": symbols_from(x, self.vocab_size)}
        with torch.no_grad():
            for each in self.before:
                if uses_memo(each):
                    each(x.to(next(each.parameters())), memo)  # for what it leaves in the memo
        # The layers before may compute in another precision.
        return (
            apply_to_collection(memo, Tensor, lambda y: y.to(x) if y.is_floating_point() else y),
        )


def _placed(tried: Subject, x: Tensor) -> Tensor:
    """x on the device of the layer's weights and in their dtype; a layer without weights gets it
    on the CPU in fp32."""
    return x.to(next(iter(tried.weights), torch.empty(0)))


@contextmanager
def _refusing(layer: nn.Module) -> Iterator[None]:
    """Where a property of attncheck fails inside, raise BadInput with the name of the layer."""
    try:
        yield
    except CheckFailed as failed:
        raise BadInput(f"{layer_name(layer)}: {_one_line(failed)}") from failed


# ---- 1: the same again


def _require_the_same_again(tried: Subject) -> None:
    """CheckFailed if outputs are not finite, or if earlier calls change them, or chance does in
    evaluation mode."""
    x = tried.draw(1, tried.length)
    if not bool(tried(x).isfinite().all()):
        raise tried.failed("outputs are not finite for random inputs")
    outputs_depend_on_calls = require_memoryless(tried, x)
    if outputs_depend_on_calls:
        raise tried.failed(
            "outputs depend on the number of earlier calls", "let nothing stay from call to call"
        )
    # In training mode, a layer may have noise of its own.
    if not tried.state.training:
        require_same_twice(tried, x)


# ---- 3: nothing later


def _check_mask(layer: nn.Module, x: Tensor) -> None:
    """BadInput if the layer's mask is not bool, or leaves a query without keys."""
    if not isinstance(layer, HasMask):
        return
    T = x.shape[1]
    mask = layer.mask(x)
    if mask.dtype != torch.bool:
        raise BadInput(
            f"the mask of {layer_name(layer)} is {mask.dtype}; return bool, True = may attend"
        )
    has_keys = mask.reshape(-1, T, T).any(0).any(-1)  # (T,): each query, in some head
    if not has_keys.all():
        query = has_keys.tolist().index(False)
        raise BadInput(
            f"the mask of {layer_name(layer)} leaves query {query} of {T} without keys; let every "
            "query attend to one"
        )


def _allowed_dependence(tried: Subject, T: int) -> Tensor:
    """(T, T) bool: whether the output at i may depend on the input at j, as it may if j is not
    later than i, or the layer's mask admits j in some head."""
    past = torch.ones(T, T, dtype=torch.bool).tril()
    layer = tried.model
    if not isinstance(layer, HasMask):
        return past
    mask = layer.mask(_placed(tried, tried.sample[:1, :T]))
    return past | mask.reshape(-1, T, T).any(0).cpu()


def _require_nothing_later(tried: Subject) -> None:
    """CheckFailed or BadInput if an output depends on inputs that are later, and that the layer's
    mask does not admit."""
    # In a short text, each input alone; in a whole one, which would take too many calls, all
    # inputs from a position on.
    T = min(tried.length, LENGTH)
    _refuse_dependence(tried, torch.eye(T, dtype=torch.bool))
    starts = torch.tensor(causal.cuts_of(tried.length))[:, None]
    _refuse_dependence(tried, torch.arange(tried.length) >= starts)
    admits_later = bool(_allowed_dependence(tried, tried.length).triu(1).any())
    if tried.state == EVALUATED and not admits_later:
        causal.check_prefixes(tried)


def _refuse_dependence(tried: Subject, replaced: Tensor) -> None:
    """BadInput that names a position whose output changes though it may depend on none of the
    inputs that are replaced: in turn, those of each row of `replaced` (N, T). No rounding counts.
    """
    # Of two texts, for what depends on the inputs, as a choice of keys does.
    texts = [(x, torch.where(replaced[..., None], tried.other_inputs(x), x))
             for x in tried.draw(2, replaced.shape[1])]  # fmt: skip
    changes = _forbidden_changes(tried, replaced, texts)
    if not float(changes.max()) > tried.tolerance:
        return
    text, n, worst = (int(k) for k in torch.unravel_index(changes.argmax(), changes.shape))
    x, others = texts[text]
    if float(changes.max()) < causal.SURE and _is_rounding_at(worst, tried, x, others[n]):
        return
    raise BadInput(_words_of_dependence(tried, replaced, changes.amax(0) > tried.tolerance))


def _forbidden_changes(
    tried: Subject, replaced: Tensor, texts: list[tuple[Tensor, Tensor]]
) -> Tensor:
    """(texts, N, T): by how much each output changes with the inputs of a row of `replaced`
    (N, T), as a share of the largest change of any output; 0 where it may depend on one of
    them. A text is its inputs (T, C), and the same with other inputs in their place (N, T, C)."""
    by_text = torch.stack([tried.output_changes(x, others) for x, others in texts])
    allowed = _allowed_dependence(tried, replaced.shape[1])
    may_change = torch.stack([allowed[:, inputs].any(1) for inputs in replaced])  # (N, T)
    return by_text.masked_fill(may_change, 0.0) / (float(by_text.max()) or 1.0)


def _is_rounding_at(position: int, tried: Subject, x: Tensor, other: Tensor) -> bool:
    """Whether only rounding parts the outputs at a position for two texts (T, C)."""
    pair = torch.stack([x, other])

    def difference() -> Tensor:
        outputs, of_other = tried(pair)
        return of_other[position] - outputs[position]

    return is_rounding(tried, difference)


def _words_of_dependence(tried: Subject, replaced: Tensor, changed: Tensor) -> str:
    """Which position's output depends on which input, and what to do: the first of `changed`
    (N, T), whether an output changed with the inputs of each row of `replaced` (N, T)."""
    i, n = changed.T.nonzero()[0].tolist()
    j = int(replaced[n].int().argmax())  # the first that is replaced
    mode = " in training mode" if tried.state.training else ""
    if isinstance(tried.model, HasMask):
        fault = "which its mask blocks; let no output depend on what the mask blocks"
    else:
        fault = "which comes later; let no output depend on a later position"
    return (
        f"{layer_name(tried.model)}: its output at position {i} depends on position {j}{mode}, "
        f"{fault}"
    )


# ---- 4: the mask's own rule


def _check_pattern(tried: Subject, call: Caller) -> None:
    """BadInput if the pattern has another shape than (B, H, T, T), or weight on a position that
    the mask blocks, or on one whose input does not change the output."""
    T = min(tried.length, LENGTH)
    layer = tried.model
    assert isinstance(layer, nn.Module) and isinstance(layer, HasPattern)
    x = tried.draw(1, T)
    with torch.no_grad():
        own = _placed(tried, x)
        pattern = layer.pattern(own, *call.arguments_after_x(layer, own))
    if pattern.ndim != 4 or pattern.shape[2:] != (T, T):
        raise BadInput(
            f"the pattern of {layer_name(layer)} has the shape {tuple(pattern.shape)}; it must be "
            f"(B, H, {T}, {T})"
        )
    weight = pattern.detach().abs().amax((0, 1)).cpu()  # (T, T)
    if isinstance(layer, HasMask):
        blocked = ~layer.mask(_placed(tried, x)).reshape(-1, T, T).any(0).cpu()
        wrong = ((weight > 0) & blocked).nonzero().tolist()
        if wrong:
            i, j = wrong[0]
            raise BadInput(
                f"{layer_name(layer)}: its pattern has weight on position {j} for the output at "
                f"{i}, which its mask blocks; apply the mask, or train it knowingly with "
                "check_layer=false"
            )
    reads = causal.dependence(tried, x.expand(2, -1, -1))  # each input is changed twice
    unread = (weight > SHOWS) & (reads <= tried.tolerance)
    # A layer may take a position's own value out of the average, as exclusive attention does.
    unread.fill_diagonal_(False)
    if unread.any():
        i, j = unread.nonzero()[0].tolist()
        raise BadInput(
            f"{layer_name(layer)}: its pattern has weight on position {j} for the output at {i}, "
            "which does not depend on it; make `pattern` describe `forward`, or train it "
            "knowingly with check_layer=false"
        )


# ---- 5: the pattern and `forward`


def _check_forward(tried: Subject, call: Caller, T: int) -> None:
    """BadInput if outputs for T positions, in evaluation or in training mode, are not those that
    follow from the pattern in evaluation mode."""
    x = tried.draw(1, T)
    with tried.in_state(EVALUATED) as there, torch.no_grad():
        expected = _output_by_pattern(there, call, x)
        change = relative(there(x), expected)
    if change > AGREES:
        where = "" if T <= LENGTH else f" in a text of {T}"
        raise BadInput(
            f"the output of {layer_name(tried.model)} is not proj(merge(pattern @ values))"
            f"{where}, so measures of its pattern would be wrong; make `pattern` describe "
            "`forward`, or train it knowingly with check_layer=false"
        )
    with tried.in_state(TRAINED) as there:
        seeded = replace(there, seed_each_call=True)
        trained = seeded(x)
        chance = relative(there(x), trained)  # by how much the layer's own noise changes outputs

        def difference() -> Tensor:
            return seeded(x) - expected

        # No fault, if the layer has noise of its own and so is another one each time, if outputs
        # agree, or if only rounding parts them.
        if (
            chance > SAME_OUTPUTS
            or relative(trained, expected) <= AGREES
            or is_rounding(there, difference)
        ):
            return
    raise BadInput(
        f"the output of {layer_name(tried.model)} in training mode, without dropout, is not that "
        "of its pattern in evaluation mode, so it would be trained as another function than it is "
        "measured; make both modes compute the same, or train it knowingly with check_layer=false"
    )


def _output_by_pattern(tried: Subject, call: Caller, x: Tensor) -> Tensor:
    """The output that follows from the layer's pattern and its values v in fp64 on the CPU:
    proj(merge(pattern @ v, x, v))."""
    layer = tried.model
    assert isinstance(layer, SelfAttention)
    own = _placed(tried, x)
    _, _, v = layer.split(own, *call.arguments_after_x(layer, own))
    if isinstance(v, Tensor):
        pattern = layer.pattern(own, *call.arguments_after_x(layer, own))
        mixed = pattern.to(v.dtype) @ v
    else:  # several sets of values, each with a pattern of its own
        patterns = layer.patterns(own, *call.arguments_after_x(layer, own))
        mixed = sum(p.to(values.dtype) @ values for p, values in zip(patterns, v, strict=True))
    y: Tensor = layer.proj(layer.merge(mixed, own, v))
    return y.to("cpu", torch.float64)


# ---- 6: the settings that were given


def _nothing_is_read(q: Tensor, k: Tensor, v: Tensor, **_: object) -> Tensor:
    """A kernel whose averages are 0."""
    return torch.zeros_like(v)


def _by_distance(scores: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """A `score_mod` that changes the scores of all but a few distances."""
    return scores + (q - k).cos()


# Setting -> its default, and a value with which any layer that uses the setting has other outputs.
SCORE_SETTINGS: dict[str, tuple[object, object]] = {
    "softcap": (None, 0.1),
    "score_mod": (None, _by_distance),
    "kernel": (sdpa, _nothing_is_read),
}


def _check_settings_are_used(tried: Subject) -> None:
    """BadInput if a setting of `SCORE_SETTINGS` was given to a layer that does not use it."""
    if tried.length < 2:  # a lone key has all weight, whatever its score
        return
    layer = tried.model
    assert isinstance(layer, SelfAttention)
    x = tried.draw(1, tried.length)
    outputs = tried(x)
    for name, (default, other) in SCORE_SETTINGS.items():
        given = vars(layer)[name]
        if given in (default, manual):  # `manual` computes what the default kernel does
            continue
        vars(layer)[name] = other
        try:
            is_used = not torch.equal(tried(x), outputs)
        finally:
            vars(layer)[name] = given
        if not is_used:
            raise BadInput(
                f"{layer_name(layer)} does not use attn.{name}, which it was given: a step of its "
                "own replaces what would; call self.modify(scores, x) there, or self.kernel, or "
                f"leave attn.{name} as it is by default"
            )


# ---- words


def _one_line(message: object) -> str:
    """The lines of a message, with "; " between them."""
    return "; ".join(str(message).splitlines())


def layer_name(layer: object) -> str:
    """The class of a layer; of SelfAttention itself also its kernel, which may be the user's."""
    name = type(layer).__name__
    if type(layer) is SelfAttention:
        name += f" with {function_name(layer.kernel)}"
    return name
