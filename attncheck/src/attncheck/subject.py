"""A model together with how it is called, its inputs, and the state it is in.

Letters: B batch, T time, V symbols.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from typing import TypedDict

import torch
from torch import Tensor, nn

from .calls import (
    DOCUMENTS,
    Call,
    Model,
    arguments_of,
    floats_of,
    missing_arguments,
    module_of,
    outputs_of,
    parts_below,
    ways_to_call,
)
from .effort import (
    FOR_HUGE,
    FOR_LARGE,
    FOR_SMALL,
    FOR_VERY_LARGE,
    HUGE,
    MULTIPLICATIONS,
    VERY_LARGE,
    Effort,
)
from .outcomes import PROBE_ERRORS, CannotCheck, CheckFailed, in_one_line
from .states import (
    EVALUATION,
    LARGE,
    TRAINING,
    State,
    Weights,
    WithoutDropout,
    change_of,
    changed,
    random_states,
    seed_all,
    seen_in,
    slightly_other,
)

LONGEST_TRIED = 4096  # attention needs memory that grows with the square
MOST_IDS = 300  # of a vocabulary whose ids all occur, and are tried one by one
UNDECLARED = 64  # the length of a model that declares none
DENSE = 64  # up to this length, every suffix is changed
MOST_ROWS = 32  # of one call
MOST_NUMBERS = 2**25  # that one call returns; a quarter of a gigabyte in fp64
MOST_COLUMNS = 4096  # of outputs (B, T, V); of more, some and random sums of all are compared
MOST_COPIED = 2**28  # numbers of all weights, of which copies in fp64 are kept; two gigabytes
PADDINGS = ("left", "right", "both sides", "between")
VOCABULARY = ("vocab_size", "n_vocab", "padded_vocab_size")
LENGTHS = ("block_size", "max_position_embeddings", "n_ctx", "n_positions", "max_seq_len")


class Sizes(TypedDict, total=False):
    """The keyword arguments of `prepared` that say which inputs are tried."""

    vocab_size: int | None
    block_size: int | None
    rows: int | None
    prefix: int
    causal: bool


class SizesAndCall(Sizes, total=False):
    """The same and how the model is called."""

    call: Call | None


@dataclass(frozen=True)
class Given:
    """An optional tensor of a model, which a user would give."""

    said: str
    name: str  # of the argument
    values: Callable[[Tensor], Tensor]  # inputs (B, T, ...) -> (B, T)
    judged: Callable[[int], Tensor]  # T -> (T,) bool: where outputs mean something
    pads: bool = False  # whether some tokens are padding


@dataclass(frozen=True)
class Calm:
    """How a model must be called in a state, so that the same inputs give the same outputs."""

    rows: int
    seeded: bool
    restored: bool


@dataclass
class Shared:
    """What the properties of one checkup need again, while nobody changes the model."""

    copies: dict[int, Tensor] | None  # of spared weights, in the best dtype
    calm: dict[tuple[State, torch.dtype | None], Calm] = field(default_factory=dict)


@dataclass(frozen=True)
class Subject:
    """A model, how it is called, and inputs that show how its inputs look."""

    model: Model
    sample: Tensor  # (N, L) int64 ids, or (N, L, C) vectors
    call: Call
    rows: int  # most sequences in one call
    exact: bool = False  # whether each call must have so many
    own_call: bool = False  # whether the user said how it is called
    declared: bool = True  # whether the length was given, or is the model's
    shortened: int = 0  # the length of the model, if it is too long to be tried
    prefix: int = 0  # the first inputs, which may all see each other
    seeded: bool = False  # seed before each call, so that chance is the same
    restored: bool = False  # restore the model after each call, which leaves something behind
    state: State = EVALUATION
    held: bool = False  # whether the property held in a plainer state
    best: torch.dtype | None = None  # the dtype in which leaks stand out from rounding
    spared: frozenset[int] = frozenset()  # see `unwritten_weights`
    optional: dict[str, Given] = field(default_factory=dict)
    lengths: dict[int, int] = field(default_factory=dict)  # what `fitting` has found
    shared: "Shared | None" = None  # by all properties of one checkup
    rng: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))

    # ---- inputs

    @property
    def length(self) -> int:
        """L, the longest sequence."""
        return self.sample.shape[1]

    @cached_property
    def pool(self) -> Tensor:
        """The ids that may be used, in order."""
        return self.sample.unique()

    def draw(self, n: int, T: int) -> Tensor:
        """n sequences of T inputs, windows of the sample."""
        row = torch.randint(len(self.sample), (n, 1), generator=self.rng)
        first = torch.randint(self.length - T + 1, (n, 1), generator=self.rng)
        return self.sample[row, first + torch.arange(T)]

    def other(self, x: Tensor) -> Tensor:
        """Other inputs at every position."""
        if x.is_floating_point():
            return torch.randn(x.shape, generator=self.rng).to(x) * x.std()
        by = torch.randint(1, len(self.pool), x.shape, generator=self.rng)
        return self.pool[(torch.searchsorted(self.pool, x) + by) % len(self.pool)]

    def anew(self) -> "Subject":
        """The same subject, which draws from the beginning."""
        return replace(self, rng=torch.Generator().manual_seed(0))

    def fitting(self, T: int) -> int:
        """T, or the length of the sample if the model is of one length."""
        T = min(T, self.length)
        x = self.draw(2, T)
        if T not in self.lengths:
            self.lengths[T] = T
            try:
                with self.restoring():
                    self(x)
            except PROBE_ERRORS:
                self.lengths[T] = self.length
        return self.lengths[T]

    # ---- the model

    @cached_property
    def weights(self) -> list[Tensor]:
        """The parameters of the module, if it is one."""
        module = module_of(self.model)
        return [] if module is None else list(module.parameters())

    @property
    def device(self) -> torch.device:
        return self.weights[0].device if self.weights else torch.device("cpu")

    @property
    def half(self) -> bool:
        """Whether some weights are of half precision."""
        return any(w.dtype in (torch.float16, torch.bfloat16) for w in self.weights)

    @property
    def tolerance(self) -> float:
        """The share of the largest change that counts as rounding."""
        dtype = next((w.dtype for w in self.weights if w.is_floating_point()), torch.float32)
        return {torch.float64: 1e-7, torch.float32: 1e-5, torch.float16: 2e-3}.get(dtype, 2e-2)

    @contextmanager
    def put(self, state: State) -> Iterator["Subject"]:
        """The subject in a state, in which its model is for the while."""
        change = change_of(state.weights, self.model)
        dtype = None if state.own_dtype else self.best
        call = self.call
        if state.given:
            optional = self.optional[state.given]
            call = partial(call_with_given, self.call, optional)
        with ExitStack() as undo:
            training = state.training
            undo.enter_context(
                changed(
                    self.model, dtype=dtype, change=change, training=training,
                    spared=self.spared, copies=self.shared.copies if self.shared else None,
                )
            )  # fmt: skip
            if not state.dropout:
                undo.enter_context(WithoutDropout())
            yield replace(self, state=state, call=call)

    def __call__(self, x: Tensor) -> Tensor:
        """(B, T, ...) -> (B, T, V) fp64 on the CPU, in as many calls as fit."""
        parts = []
        for y in x.split(self.rows):
            n = len(y)
            if self.exact and n < self.rows:
                y = torch.cat([y, y[-1:].expand(self.rows - n, *y.shape[1:])])
            returned = outputs_of(self.raw(y), tuple(y.shape[:2])).detach()[:n]
            parts.append(torch.cat([compared_columns(row) for row in returned.split(1)]))
        return torch.cat(parts)

    def raw(self, x: Tensor) -> object:
        """What the model returns for x (B, T, ...) in one call."""
        if self.seeded:
            seed_all(0, self.device)
        place = next(iter(self.weights), torch.empty(0))
        own = x.to(place) if x.is_floating_point() else x.to(place.device)
        if self.state.grad and x.is_floating_point():  # as the inputs of a layer do in training
            own = own.detach().requires_grad_()
        with ExitStack() as undo:
            undo.enter_context(torch.set_grad_enabled(self.state.grad))
            if self.restored:
                undo.enter_context(self.restoring())
            return self.call(self.model, own.clone())  # a model may write into its input

    def restoring(self) -> AbstractContextManager[None]:
        """Afterward the model is as it is now, whatever calls change. For use inside of `put`."""
        return changed(self.model, training=None, spared=self.spared)

    def repeatable(self) -> AbstractContextManager[None]:
        """In training mode, in which a call may change the model, afterward it is as now."""
        return self.restoring() if self.state.training else nullcontext()

    def evaluating(self) -> AbstractContextManager[None]:
        """The model is in evaluation mode with its own weights, and afterward as it was."""
        return changed(self.model, spared=self.spared)

    def with_chance(self, x: Tensor) -> tuple[Tensor, bool]:
        """The outputs for x, and whether the call draws random numbers."""
        before = random_states()
        outputs = replace(self, seeded=False, restored=False)(x)
        return outputs, random_states() != before

    def moved(self, x: Tensor, changed_inputs: Tensor) -> Tensor:
        """x (T, ...) and (N, T, ...) -> (N, T): the largest change of any output at t.

        Every call also holds x, so that the same kernels compute both.
        """
        if self.rows == 1:
            return (self(changed_inputs) - self(x[None])).abs().amax(-1)
        parts = []
        for some in changed_inputs.split(self.rows - 1):
            outputs = self(torch.cat([x[None], some]))
            parts.append((outputs[1:] - outputs[:1]).abs().amax(-1))
        return torch.cat(parts)

    def failed(
        self, what: str, *look: str, map: Tensor | None = None, grave: bool = True
    ) -> CheckFailed:
        """What the model lacks, and where to look; the second line says in which state it is."""
        where = seen_in(self.state, held=self.held)
        return CheckFailed(what, where, *look, map=map, grave=grave, state=str(self.state))

    def batch(self, wanted: int) -> int:
        """How many of the wanted sequences the model takes at once."""
        return self.rows if self.exact else min(wanted, self.rows)

    # ---- the size of the model

    @cached_property
    def multiplications(self) -> int:
        """How many a position needs, about: those of all matrices."""
        return max(1, sum(w.numel() for w in self.weights if w.ndim > 1))

    def sharing(self) -> "Subject":
        """The subject, whose properties share what they need again."""
        copies: dict[int, Tensor] | None = {}
        if sum(w.numel() for w in self.weights) > MOST_COPIED:
            copies = None
        return replace(self, shared=Shared(copies))

    @cached_property
    def effort(self) -> Effort:
        """How much is tried of the model."""
        if self.multiplications >= HUGE:
            return FOR_HUGE
        if self.multiplications >= VERY_LARGE:
            return FOR_VERY_LARGE
        return FOR_LARGE if self.dense < min(self.length, DENSE) else FOR_SMALL

    def affordable(self, T: int, share: float = 1.0) -> int:
        """How many sequences of T inputs a scan may try."""
        return int(share * MULTIPLICATIONS / (self.multiplications * T))

    @property
    def dense(self) -> int:
        """The length up to which every suffix is changed; less for a large model."""
        most = int((MULTIPLICATIONS / self.multiplications) ** 0.5)
        return min(self.length, max(min(DENSE, max(8, most)), 2 * self.prefix))

    @cached_property
    def usual_length(self) -> int:
        """The length of most sequences: the whole one, but of a large model a shorter one."""
        if self.affordable(self.length) >= 2 * MOST_ROWS:
            return self.length
        return self.fitting(self.dense)

    @property
    def first_length(self) -> int:
        """The length of sequences with which a subject is prepared."""
        return self.length if self.effort.whole_first else self.usual_length

    def not_tried(self, looked_at: set[str]) -> list[str]:
        """What no property looks at: arguments but some, outputs beside the first, lengths."""
        missing = []
        tried = looked_at | {given.name for given in self.optional.values()}
        arguments = [name for name in optional_arguments(self.model) if name not in tried]
        if self.own_call:
            missing.append("other calls than yours")
        elif arguments:
            missing.append(f"the arguments {', '.join(arguments)} (give call)")
        x = self.draw(self.batch(2), self.usual_length)
        try:
            others = list(floats_of(self.raw(x), tuple(x.shape[:2])))[1:]
        except PROBE_ERRORS as error:
            missing.append(f"outputs beside the first, for the model raises {in_one_line(error)}")
        else:
            if others:
                missing.append(f"the outputs {', '.join(others)} (give call)")
        if self.effort.not_tried:
            missing.append(self.effort.not_tried)
        if self.shortened:
            missing.append(
                f"more than {self.length} of {self.shortened} inputs, for the model is large "
                f"(block_size={self.shortened} tries all)"
            )
        return missing


def call_with_given(call: Call, optional: Given, model: Model, x: Tensor) -> object:
    """What a model returns for x (B, T, ...) and an optional tensor."""
    return call(model, x, **{optional.name: optional.values(x).to(x.device)})


def compared_columns(y: Tensor) -> Tensor:
    """Outputs (B, T, V) in fp64 on the CPU; of a large vocabulary, some columns and random sums of
    all, which change if any does."""
    y = y.to("cpu", torch.float64)
    if (y.amin(-1) == -torch.inf).any():
        blocked = y == -torch.inf  # the logit of a symbol that is never chosen
        y = y.masked_fill(blocked & ~blocked.all(-1, keepdim=True), 0.0)
    V = y.shape[-1]
    if V <= MOST_COLUMNS:
        return y
    some = torch.linspace(0, V - 1, MOST_COLUMNS // 4).long()
    return torch.cat([y[..., some], y @ _random_signs(V) / V**0.5], -1)


@cache
def _random_signs(V: int) -> Tensor:
    """(V, 4), each -1 or 1."""
    rng = torch.Generator().manual_seed(V)
    return torch.randint(0, 2, (V, 4), generator=rng).double() * 2 - 1


def optional_arguments(model: Model) -> list[str]:
    """The arguments of a model that a call may leave out."""
    takes = list(arguments_of(model).values())[1:]
    return [p.name for p in takes if p.kind <= p.KEYWORD_ONLY and p.kind != p.VAR_POSITIONAL]


# ---- making a subject


def prepared(
    model: Model,
    sample: Tensor | None = None,
    call: Call | None = None,
    *,
    vocab_size: int | None = None,
    block_size: int | None = None,
    rows: int | None = None,
    prefix: int = 0,
    causal: bool = True,
) -> Subject:
    """A model with inputs: those given, or random ids below its vocabulary size.

    Args:
        model: any callable from inputs to outputs (B, T, V), or to something that holds them.
        sample: ids (N, T) int64, or vectors (N, T, C) for a layer.
        call: from the model and inputs to what it returns, such as
            `lambda model, ids: model(ids, targets=ids)`.
        vocab_size, block_size: of random ids; by default those of the model or its config. The
            ids are random permutations, so that every id of a small vocabulary occurs.
        rows: most sequences in one call; by default up to 32, if the model takes so many.
        prefix: the first inputs, which may all see each other, as in a prefix-LM.
        causal: False for an encoder, whose inputs may all see each other.
    """
    if not callable(model):
        raise CannotCheck(f"the model is a {type(model).__name__}, which cannot be called")
    needed = missing_arguments(model)
    if call is None and needed:
        given = ", ".join(f"{name}=..." for name in needed)
        raise CannotCheck(
            f"the model needs {', '.join(needed)} beside its inputs: give "
            f"call=lambda model, ids: model(ids, {given}), or a module that does so"
        )
    declared = sample is not None
    shortened = 0
    if sample is None:
        V = vocab_size or _size_from(model, VOCABULARY)
        if V is None or V < 2:
            raise CannotCheck(_without_vocabulary(model))
        L = block_size or _size_from(model, LENGTHS)
        declared = L is not None
        length = min(L or UNDECLARED, LONGEST_TRIED)
        affordable = _affordable_length(model)
        if block_size is None and length > affordable:
            shortened, length = length, affordable
        sample = random_ids(V, length)
    if sample.ndim < 2 or sample.shape[1] < 3:
        raise CannotCheck(
            f"the sample {tuple(sample.shape)} must be (N, T) ids or (N, T, C), T > 2"
        )
    if not sample.is_floating_point() and len(sample.unique()) < 2:
        raise CannotCheck("the sample holds one id only; give two or more")
    made = _called_somehow(model, sample.cpu(), call, rows)
    made = replace(made, declared=declared, shortened=shortened)
    made = replace(made, prefix=prefix if causal else made.length)
    made = replace(made, spared=unwritten_weights(made))
    made = replace(made, best=best_dtype(made))
    return replace(made, optional={} if call else optional_tensors(made)).anew()


def random_ids(V: int, length: int) -> Tensor:
    """(N, length), permutations of the vocabulary."""
    rng = torch.Generator().manual_seed(0)
    rows = max(8, -(-min(V, MOST_IDS) // length))
    rounds = -(-rows * length // V)
    ids = torch.cat([torch.randperm(V, generator=rng) for _ in range(rounds)])
    return ids[: rows * length].view(rows, length)


def _called_somehow(model: Model, sample: Tensor, call: Call | None, rows: int | None) -> Subject:
    """The first call and number of rows that the model takes; CannotCheck if it takes none."""
    calls = [call] if call else ways_to_call(model)
    # Some models take one sequence at a time, or one size of a batch.
    sizes = [(n, False) for n in (2, 1)] + [(n, True) for n in (4, 8, 16, 3, 32)]
    if rows is not None:
        sizes = [(min(rows, 2), False), (rows, True)]
    errors: list[Exception] = []
    with changed(model):
        for n, exact in sizes:
            for each in calls:
                made = Subject(model, sample, each, n, exact, own_call=call is not None)
                try:
                    with torch.no_grad():
                        returned = made.raw(made.draw(n, made.length))
                        y = outputs_of(returned, (n, made.length))
                except PROBE_ERRORS as error:
                    errors.append(error)
                    continue
                if exact or n == 1:
                    return made
                most = min(
                    MOST_ROWS if rows is None else rows,
                    2 * MOST_NUMBERS // y.numel(),
                    max(2, made.affordable(made.length, 4.0)),
                )
                return replace(made, rows=_most_rows(made, most))
    raise CannotCheck(_why_not_called(model, sample, errors[0])) from errors[0]


def _most_rows(made: Subject, most: int) -> int:
    """The most rows, at most `most`, that the model takes in one call."""
    while most > 2:
        try:
            replace(made, rows=most).raw(made.draw(most, made.first_length))
            return most
        except PROBE_ERRORS:
            most //= 2
    return 2


def _why_not_called(model: object, sample: Tensor, error: Exception) -> str:
    """One sentence on why no call has worked, with the argument that would make one."""
    if isinstance(error, CannotCheck):
        return str(error)
    said = f"the model fails on inputs {(2, *sample.shape[1:])}: {in_one_line(error)}"
    if [p.kind for p in arguments_of(model).values()] == [inspect.Parameter.VAR_KEYWORD]:
        said += (
            "; it takes arguments by name, such as call=lambda model, ids: model(input_ids=ids)"
        )
    tables = [p for p in parts_below(model) if isinstance(p, nn.Embedding)]
    if isinstance(error, IndexError) and not sample.is_floating_point() and tables:
        sizes = sorted({table.num_embeddings for table in tables})
        if int(sample.max()) >= sizes[-1]:
            said += f"; ids up to {int(sample.max())} were given, give vocab_size={sizes[-1]}"
        elif sample.shape[1] > sizes[0]:
            said += f"; {sample.shape[1]} inputs were given, give block_size={sizes[0]}"
    return said


def _without_vocabulary(model: object) -> str:
    said = "the model has no vocab_size above 1: give vocab_size (--vocab-size), or ids as sample"
    parts = parts_below(model)
    if parts and not any(isinstance(part, nn.Embedding) for part in parts):
        said += "; if it takes vectors, give them: checkup(model, torch.randn(4, 24, C))"
    if not parts:
        takes = ", ".join(arguments_of(model))
        said += f"; if it is a function of ({takes}) that makes the model, call it first"
    return said


def _affordable_length(model: object) -> int:
    """The longest sequence of which a scan may try a few."""
    module = module_of(model)
    if module is None:
        return LONGEST_TRIED
    size = max(1, sum(w.numel() for w in module.parameters() if w.ndim > 1))
    return max(32, MULTIPLICATIONS // (2 * size))


def _size_from(model: object, names: tuple[str, ...]) -> int | None:
    for owner in (model, module_of(model)):
        for place in (owner, getattr(owner, "config", None)):
            for name in names:
                size = getattr(place, name, None)
                if isinstance(size, int):
                    return size
    return None


def best_dtype(made: Subject) -> torch.dtype | None:
    """fp64 if the model runs in it with finite outputs, where leaks stand out from rounding, or
    fp32 for one of half precision; None for its own, which a very large model keeps: a copy in
    fp64 is twice as large."""
    if not made.weights:
        return None
    dtypes = [torch.float64] if made.effort.in_double else []
    if made.half:
        dtypes.append(torch.float32)
    for dtype in dtypes:
        try:
            with changed(made.model, dtype=dtype):
                if bool(made(made.draw(2, made.first_length)).isfinite().all()):
                    return dtype
        except PROBE_ERRORS:
            continue
    return None


def unwritten_weights(made: Subject) -> frozenset[int]:
    """The ids of large weights, if the model writes into none of them, in evaluation mode and in
    training mode. Inside of `put` they are not copied again for each call."""
    large = [w for w in made.weights if w.numel() >= LARGE]
    if not large:
        return frozenset()
    x = made.draw(made.rows if made.exact else 1, made.first_length)
    for mode in (EVALUATION, TRAINING):
        with made.put(replace(mode, own_dtype=True)) as there:
            before = _fingerprints(large)
            try:
                there(x)
            except PROBE_ERRORS:
                return frozenset()
            if _fingerprints(large) != before:
                return frozenset()
    return frozenset(map(id, large))


def _fingerprints(weights: list[Tensor]) -> list[tuple[int, float]]:
    """Of each weight, where it is and the sum of its numbers."""
    return [(w.data_ptr(), float(w.detach().sum(dtype=torch.float64))) for w in weights]


# ---- optional tensors


def prime_up_to(most: int) -> int:
    """The largest prime up to a number, or 1: of so many padded tokens no chunk is full."""
    for n in range(most, 1, -1):
        if all(n % k for k in range(2, n)):
            return n
    return 1


def real_tokens(side: str, T: int) -> Tensor:
    """(T,) bool, True = token: padding on a side, or between tokens."""
    at = torch.arange(T)
    n = prime_up_to(T // 3)
    match side:
        case "left":
            return at >= n
        case "right":
            return at < T - n
        case "both sides":
            return (at >= n) & (at < T - n)
        case _:
            return (at < T // 3) | (at >= T // 3 + n)


def _mask_of(side: str, dtype: torch.dtype, x: Tensor) -> Tensor:
    real = real_tokens(side, x.shape[1]) if side else torch.ones(x.shape[1])
    return real.to(dtype).expand(len(x), -1)


def _all_positions(T: int) -> Tensor:
    return torch.ones(T, dtype=torch.bool)


def document_numbers(x: Tensor) -> Tensor:
    """(B, T): three documents."""
    T = x.shape[1]
    return (torch.arange(T) * 3 // T).expand(len(x), -1)


def optional_tensors(made: Subject) -> dict[str, Given]:
    """The optional tensors that are tried: masks of padding (1 = token), and documents."""
    takes = arguments_of(made.model)
    found: dict[str, Given] = {}
    if "attention_mask" in takes:
        for dtype in (torch.int64, torch.bool):
            ones = Given(
                "attention_mask of ones", "attention_mask", partial(_mask_of, "", dtype),
                _all_positions,
            )  # fmt: skip
            if _accepts(made, ones):
                if _inverted(made, ones):
                    break  # `assert_padding_ignored` says so
                found[ones.said] = ones
                for side in ("left", "right"):
                    said = f"padding on the {side}"
                    padded = Given(
                        said, "attention_mask", partial(_mask_of, side, dtype),
                        partial(real_tokens, side), pads=True,
                    )  # fmt: skip
                    if _accepts(made, padded):
                        found[said] = padded
                break
    for name in DOCUMENTS:
        documents = Given(f"{name} of three", name, document_numbers, _all_positions)
        if name in takes and _accepts(made, documents):
            found[documents.said] = documents
    return found


def mask_dtype(tried: Subject) -> torch.dtype:
    """The dtype in which the model takes a mask of padding."""
    ones = tried.optional.get("attention_mask of ones")
    return torch.int64 if ones is None else ones.values(tried.sample[:1]).dtype


def _inverted(made: Subject, ones: Given) -> bool:
    """Whether a mask of zeros gives the outputs of no mask, and one of ones does not."""
    zeros = replace(ones, values=partial(_zeros_like, ones))
    x = made.draw(made.batch(made.effort.rows), made.first_length)
    try:
        with made.evaluating():
            plain = made(x)
            with_ones, with_zeros = (
                replace(made, call=partial(call_with_given, made.call, given))(x)
                for given in (ones, zeros)
            )
    except PROBE_ERRORS:  # a row without tokens may be refused
        return False
    return relative(with_zeros, plain) <= 1e-5 < relative(with_ones, plain)


def _zeros_like(ones: Given, x: Tensor) -> Tensor:
    return torch.zeros_like(ones.values(x))


def _accepts(made: Subject, optional: Given) -> bool:
    x = made.draw(made.batch(made.effort.rows), made.first_length)
    try:
        with made.evaluating():
            replace(made, call=partial(call_with_given, made.call, optional)).raw(x)
    except PROBE_ERRORS:
        return False
    return True


# ---- the same outputs for the same inputs


def steady(tried: Subject) -> Subject:
    """The subject, called so that the same inputs give the same outputs: with a random seed and
    row by row where there is chance or rows mix, and restored where calls leave something behind;
    CannotCheck if outputs still differ."""
    rows = 2 if tried.exact else tried.effort.rows
    x = tried.draw(rows, tried.usual_length)
    more = tried.draw(rows, tried.usual_length)
    known: dict[tuple[State, torch.dtype | None], Calm] = {}
    if tried.shared is not None:
        known = tried.shared.calm
    same_as = tried.state if tried.effort.every_state else State(training=tried.state.training)
    key = (same_as, tried.best)
    if key not in known:
        calm = _calmed(tried, x, more)
        known[key] = Calm(calm.rows, calm.seeded, calm.restored)
    way = known[key]
    return replace(tried, rows=way.rows, seeded=way.seeded, restored=way.restored)


def _calmed(tried: Subject, x: Tensor, more: Tensor) -> Subject:
    """`steady`, seen from two batches of inputs."""
    first = tried(x)
    if tried.effort.every_state:
        tried(more)
    beside_others = tried(torch.cat([x, more]))[: len(x)]
    again, chance = tried.with_chance(x)  # outputs may be the same by chance
    if not chance and _same(again, first) and _same(beside_others, first):
        return tried
    alone = replace(tried, rows=tried.rows if tried.exact else 1)
    seeded = replace(alone, seeded=True)
    choices = [seeded, replace(seeded, restored=True)]
    for one in choices if chance else [alone, *choices]:
        first = one(x)
        one(more)
        if _same(one(x), first):
            return one
    raise CannotCheck("outputs of the same inputs differ, even with the same random seed")


def _same(a: Tensor, b: Tensor) -> bool:
    if not bool(b.isfinite().all()):
        return True  # what is not finite is told where outputs are compared
    return relative(a, b) <= 1e-5


# ---- comparing


def relative(a: Tensor, b: Tensor) -> float:
    """The largest difference, relative to b's standard deviation."""
    if not b.numel():
        return 0.0
    spread = float(b.std()) if b.numel() > 1 else 0.0
    return float((a - b).abs().max()) / (spread or float(b.abs().max()) or 1.0)


# By which shares weights are changed to see whether a difference is rounding.
SHARES = (0.01, -0.01, 0.02)
# With larger weights scores are far apart, and 1 % of change makes other outputs altogether.
SMALL_SHARES = (1e-4, -1e-4, 2e-4)


def is_rounding(tried: Subject, difference: Callable[[], Tensor]) -> bool:
    """Whether a small difference of outputs is rounding: with slightly other weights, it is then
    another one, while that of a model that reads something hardly changes.

    Of a real difference, all cosines with 1 to 2 % of change are above 0.9; of rounding to
    integers or half precision, few are above 0.3. With larger weights, only rounding that is much
    finer than 1e-4 is recognized. NaN and infinity are not rounding.
    """
    if not tried.weights:
        return False
    larger = tried.state.weights is Weights.LARGER
    shares: tuple[float, ...] = SMALL_SHARES if larger else SHARES
    before = difference().flatten()
    if not before.isfinite().all():
        return False
    for share in shares[: tried.effort.shares]:
        other_weights = partial(slightly_other, share=share)
        with changed(tried.model, change=other_weights, training=None):
            after = difference().flatten()
        if not float(torch.nn.functional.cosine_similarity(before, after, dim=0)) > 0.8:
            return True
    return False
