"""A model together with how it is called, its inputs, and the state it is in.

Letters: B batch, T time, V symbols.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property, partial
from math import ceil
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
LARGEST_FILL = -1e3  # of logits; with larger ones, a symbol could be chosen
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
class OptionalTensor:
    """An optional tensor of a model, such as a mask, and the values that are tried."""

    said: str  # its name in a report, such as "attention_mask of ones"
    name: str  # of the argument
    values: Callable[[Tensor], Tensor]  # inputs (B, T, ...) -> (B, T)
    judged: Callable[[int], Tensor]  # T -> (T,) bool: where outputs mean something
    pads: bool = False  # whether some tokens are padding


@dataclass(frozen=True)
class SteadyCall:
    """How a model must be called in a state, so that the same inputs give the same outputs: three
    fields of `Subject`."""

    rows: int
    seed_each_call: bool
    restore_each_call: bool


@dataclass
class Shared:
    """What the properties of one checkup need again, while nobody changes the model."""

    copies: dict[int, Tensor] | None  # of unwritten weights, in the best dtype
    # By state and best dtype.
    steady_calls: dict[tuple[State, torch.dtype | None], SteadyCall] = field(default_factory=dict)


@dataclass(frozen=True)
class Subject:
    """A model, how it is called, and inputs that show how its inputs look."""

    model: Model
    sample: Tensor  # (N, L) int64 ids, or (N, L, C) vectors
    call: Call
    rows: int  # most sequences in one call
    fixed_rows: bool = False  # whether each call must have exactly so many
    call_given: bool = False  # whether the user gave `call`
    length_declared: bool = True  # whether the length was given, or is the model's
    shortened_from: int = 0  # the length of the model, if it is too long to be tried
    prefix: int = 0  # the first inputs, which may all see each other
    seed_each_call: bool = False  # so that random numbers are the same
    restore_each_call: bool = False  # undo what a call leaves behind in the model
    state: State = EVALUATION
    held_before: bool = False  # whether the property held in a plainer state
    best_dtype: torch.dtype | None = None  # see `find_best_dtype`; None: the model's own
    unwritten: frozenset[int] = frozenset()  # see `unwritten_weights`
    optional_tensors: dict[str, OptionalTensor] = field(default_factory=dict)  # by `said`
    accepted_lengths: dict[int, int] = field(default_factory=dict)  # of `accepted_length`
    shared: Shared | None = None  # by all properties of one checkup
    rng: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))

    # ---- inputs

    @property
    def length(self) -> int:
        """L, the longest sequence."""
        return self.sample.shape[1]

    @cached_property
    def usable_ids(self) -> Tensor:
        """The ids of the sample, each once, in order."""
        return self.sample.unique()

    def draw(self, n: int, T: int) -> Tensor:
        """n random windows of T inputs of the sample: (n, T, ...)."""
        row = torch.randint(len(self.sample), (n, 1), generator=self.rng)
        first = torch.randint(self.length - T + 1, (n, 1), generator=self.rng)
        return self.sample[row, first + torch.arange(T)]

    def other_inputs(self, x: Tensor) -> Tensor:
        """Random inputs that differ from x at every position: ids, or normal vectors of x's
        standard deviation."""
        if x.is_floating_point():
            return torch.randn(x.shape, generator=self.rng).to(x) * x.std()
        ids = self.usable_ids
        by = torch.randint(1, len(ids), x.shape, generator=self.rng)  # not 0: no id stays
        return ids[(torch.searchsorted(ids, x) + by) % len(ids)]

    def anew(self) -> "Subject":
        """The same subject, which draws the same random inputs again, from the first on."""
        return replace(self, rng=torch.Generator().manual_seed(0))

    def accepted_length(self, T: int) -> int:
        """T, at most the length of the sample; or that whole length if the model refuses T, as it
        does if it takes no other length."""
        T = min(T, self.length)
        x = self.draw(2, T)  # also if T is known, so that later inputs do not depend on that
        if T not in self.accepted_lengths:
            self.accepted_lengths[T] = T
            try:
                with self.restoring():
                    self(x)
            except PROBE_ERRORS:
                self.accepted_lengths[T] = self.length
        return self.accepted_lengths[T]

    # ---- the model

    @cached_property
    def weights(self) -> list[Tensor]:
        """The parameters of the module behind the model; none if there is no module."""
        module = module_of(self.model)
        return [] if module is None else list(module.parameters())

    @property
    def device(self) -> torch.device:
        """The device of the weights; the CPU if there are none."""
        return self.weights[0].device if self.weights else torch.device("cpu")

    @property
    def has_half_weights(self) -> bool:
        """Whether some weights are of half precision."""
        return any(w.dtype in (torch.float16, torch.bfloat16) for w in self.weights)

    @property
    def tolerance(self) -> float:
        """The share of the largest change of outputs that counts as rounding, by the dtype that
        the weights have at the moment."""
        dtype = next((w.dtype for w in self.weights if w.is_floating_point()), torch.float32)
        of_bfloat16 = 2e-2
        known = {torch.float64: 1e-7, torch.float32: 1e-5, torch.float16: 2e-3}
        return known.get(dtype, of_bfloat16)

    @contextmanager
    def in_state(self, state: State) -> Iterator["Subject"]:
        """The subject in a state: inside, its model has the mode, the weights and the dtype of the
        state, and calls of the subject give its optional tensor; afterward all is as before."""
        call = self.call
        if state.given_tensor:
            call = partial(call_with, self.optional_tensors[state.given_tensor], self.call)
        with ExitStack() as undo:
            # To save time, weights that no call writes into are not copied, and in a checkup their
            # copies in the best dtype are kept for the next state.
            undo.enter_context(
                changed(
                    self.model,
                    dtype=None if state.in_own_dtype else self.best_dtype,
                    change=change_of(state.weights, self.model),
                    training=state.training,
                    unwritten=self.unwritten,
                    copies=self.shared.copies if self.shared else None,
                )
            )
            if state.dropout_off:
                undo.enter_context(WithoutDropout())
            yield replace(self, state=state, call=call)

    def __call__(self, x: Tensor) -> Tensor:
        """The model's outputs for x (B, T, ...), at most `rows` rows in a call: (B, T, V) fp64 on
        the CPU, see `compared_columns`."""
        parts = []
        for inputs in x.split(self.rows):
            n = len(inputs)
            if self.fixed_rows and n < self.rows:  # fill the batch with copies of the last row
                inputs = torch.cat([inputs, inputs[-1:].expand(self.rows - n, *x.shape[1:])])
            outputs = outputs_of(self.call_once(inputs), tuple(inputs.shape[:2])).detach()[:n]
            # Row by row, for a copy of all outputs in fp64 may be too large.
            parts.append(torch.cat([compared_columns(row) for row in outputs.split(1)]))
        return torch.cat(parts)

    def call_once(self, x: Tensor) -> object:
        """What the model returns for x (B, T, ...) in one call, in the mode that it has."""
        if self.seed_each_call:
            seed_all(0, self.device)
        weight = next(iter(self.weights), torch.empty(0))
        inputs = x.to(weight) if x.is_floating_point() else x.to(weight.device)
        if self.state.grad and x.is_floating_point():  # as the inputs of a layer do in training
            inputs = inputs.detach().requires_grad_()
        with ExitStack() as undo:
            undo.enter_context(torch.set_grad_enabled(self.state.grad))
            if self.restore_each_call:
                undo.enter_context(self.restoring())
            return self.call(self.model, inputs.clone())  # a model may write into its input

    def restoring(self) -> AbstractContextManager[None]:
        """Afterward the model is as it is now, whatever calls inside change."""
        return changed(self.model, training=None, unwritten=self.unwritten)

    def repeatable(self) -> AbstractContextManager[None]:
        """`restoring` for a model in training mode, in which a call may change it; in evaluation
        mode nothing is restored."""
        return self.restoring() if self.state.training else nullcontext()

    def evaluating(self) -> AbstractContextManager[None]:
        """Inside, the model is in evaluation mode, with its own weights and dtype; afterward it is
        as before."""
        return changed(self.model, unwritten=self.unwritten)

    def unseeded_outputs(self, x: Tensor) -> tuple[Tensor, bool]:
        """The outputs for x of a call that is neither seeded nor undone, and whether it draws
        random numbers."""
        before = random_states()
        outputs = replace(self, seed_each_call=False, restore_each_call=False)(x)
        return outputs, random_states() != before

    def output_changes(self, x: Tensor, changed_inputs: Tensor) -> Tensor:
        """By how much outputs move if the inputs x (T, ...) are replaced by each of the changed
        ones (N, T, ...): (N, T), the largest change of any number of the output at t.

        Every call also holds x, so that the same kernels compute both.
        """
        if self.rows == 1:
            return (self(changed_inputs) - self(x[None])).abs().amax(-1)
        parts = []
        for beside_x in changed_inputs.split(self.rows - 1):
            outputs = self(torch.cat([x[None], beside_x]))
            parts.append((outputs[1:] - outputs[:1]).abs().amax(-1))
        return torch.cat(parts)

    def failed(
        self, what: str, *look: str, map: Tensor | None = None, grave: bool = True
    ) -> CheckFailed:
        """The error to raise: what the model lacks, where to look, and between them in which state
        it was seen. See `CheckFailed`."""
        where = seen_in(self.state, held_before=self.held_before)
        return CheckFailed(what, where, *look, map=map, grave=grave, state=str(self.state))

    def rows_at_once(self, wanted: int) -> int:
        """How many rows of a batch to give the model in one call: as many as wanted, at most
        `rows`, or just `rows` if it takes no other number."""
        return self.rows if self.fixed_rows else min(wanted, self.rows)

    # ---- the size of the model

    @cached_property
    def multiplications_per_position(self) -> int:
        """How many the model needs, about: one for each number of its matrices."""
        return max(1, sum(w.numel() for w in self.weights if w.ndim > 1))

    def sharing(self) -> "Subject":
        """The subject with an empty `Shared`, which is filled as its properties are tried. Copies
        of many weights would need too much memory; then there are none."""
        size = sum(w.numel() for w in self.weights)
        return replace(self, shared=Shared(copies={} if size <= MOST_COPIED else None))

    @cached_property
    def effort(self) -> Effort:
        """How much is tried of the model, by its size."""
        if self.multiplications_per_position >= HUGE:
            return FOR_HUGE
        if self.multiplications_per_position >= VERY_LARGE:
            return FOR_VERY_LARGE
        # A model is large if not every suffix of a sequence is affordable.
        return FOR_LARGE if self.dense_length < min(self.length, DENSE) else FOR_SMALL

    def affordable_sequences(self, T: int, share: float = 1.0) -> int:
        """How many sequences of T inputs may be given to the model, at the cost of one scan, or of
        a share of it."""
        return int(share * MULTIPLICATIONS / (self.multiplications_per_position * T))

    @property
    def dense_length(self) -> int:
        """The length up to which every suffix of a sequence is changed; less for a large model."""
        # T sequences of T inputs: the cost grows with the square of the length.
        affordable = int((MULTIPLICATIONS / self.multiplications_per_position) ** 0.5)
        usual = min(DENSE, max(8, affordable))  # of fewer than 8 inputs, few faults show
        # A prefix may see itself, so as many inputs behind it are needed.
        return min(self.length, max(usual, 2 * self.prefix))

    @cached_property
    def usual_length(self) -> int:
        """The length of most sequences that are tried: the whole one, but of a large model a
        shorter one."""
        if self.affordable_sequences(self.length) >= 2 * MOST_ROWS:  # two whole batches
            return self.length
        return self.accepted_length(self.dense_length)

    @property
    def prepared_length(self) -> int:
        """The length of the sequences with which `prepared` tries the model."""
        return self.length if self.effort.whole_first else self.usual_length

    def not_tried(self, arguments_tried: set[str]) -> list[str]:
        """What no property looks at, a phrase for each: arguments beside these and the optional
        tensors, outputs beside the first, sequences and lengths that a large model is spared."""
        missing = []
        tried = arguments_tried | {tensor.name for tensor in self.optional_tensors.values()}
        arguments = [name for name in optional_arguments(self.model) if name not in tried]
        if self.call_given:
            missing.append("other calls than yours")
        elif arguments:
            missing.append(f"the arguments {', '.join(arguments)} (give call)")
        x = self.draw(self.rows_at_once(2), self.usual_length)
        try:
            others = list(floats_of(self.call_once(x), tuple(x.shape[:2])))[1:]
        except PROBE_ERRORS as error:
            missing.append(f"outputs beside the first, for the model raises {in_one_line(error)}")
        else:
            if others:
                missing.append(f"the outputs {', '.join(others)} (give call)")
        if self.effort.not_tried:
            missing.append(self.effort.not_tried)
        if self.shortened_from:
            missing.append(
                f"more than {self.length} of {self.shortened_from} inputs, for the model is large "
                f"(block_size={self.shortened_from} tries all)"
            )
        return missing


def call_with(optional: OptionalTensor, call: Call, model: Model, x: Tensor) -> object:
    """What a model returns if it is called with x (B, T, ...) and an optional tensor."""
    return call(model, x, **{optional.name: optional.values(x).to(x.device)})


def compared_columns(y: Tensor) -> Tensor:
    """Outputs (B, T, V) in fp64 on the CPU, with 0 for the logit of a symbol that is never chosen;
    of a large vocabulary, some columns and random sums of all, which change if any column does."""
    y = without_unused(y.to("cpu", torch.float64))
    V = y.shape[-1]
    if V <= MOST_COLUMNS:
        return y
    chosen = torch.linspace(0, V - 1, MOST_COLUMNS // 4).long()
    return torch.cat([y[..., chosen], y @ _random_signs(V) / V**0.5], -1)


def without_unused(y: Tensor) -> Tensor:
    """Outputs (B, T, V), with 0 for the logit of a symbol that is never chosen, which is -inf or a
    constant that is as good as that."""
    for _ in range(2):  # -inf, then a finite fill
        lowest = y.amin(-1, keepdim=True)
        if not (lowest <= LARGEST_FILL).any():
            break
        unused = (y == lowest) & _is_fill(y, lowest)
        all_unused = unused.all(-1, keepdim=True)  # which is a fault, and stays
        y = y.masked_fill(unused & ~all_unused, 0.0)
    return y


def _is_fill(y: Tensor, lowest: Tensor) -> Tensor:
    """Whether the lowest of the outputs y (B, T, V) at a position is a constant such as -1e9 that
    stands for a symbol that is never chosen: a whole number, far below all others. (B, T, 1)."""
    of_others = y.masked_fill(y == lowest, 0.0).abs().amax(-1, keepdim=True)
    return (lowest <= LARGEST_FILL) & (lowest == lowest.round()) & (100 * of_others < -lowest)


@cache
def _random_signs(V: int) -> Tensor:
    """(V, 4), each -1 or 1, the same for the same V."""
    rng = torch.Generator().manual_seed(V)
    return torch.randint(0, 2, (V, 4), generator=rng).double() * 2 - 1


def optional_arguments(model: Model) -> list[str]:
    """The names of the arguments of a model beside its inputs, without *args and **kwargs."""
    takes = list(arguments_of(model).values())[1:]  # the first is that of the inputs
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

    Calls of the model show how it is called, how many rows it takes, in which dtype it runs,
    whether it writes into its weights, and which optional tensors it takes.

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

    Raises:
        CannotCheck: the model cannot be called, or more must be said of its inputs.
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
    made = _subject_that_can_be_called(model, sample.cpu(), call, rows)
    made = replace(made, length_declared=declared, shortened_from=shortened)
    made = replace(made, prefix=prefix if causal else made.length)
    made = replace(made, unwritten=unwritten_weights(made))
    made = replace(made, best_dtype=find_best_dtype(made))
    found = {} if call else find_optional_tensors(made)  # a call of the user's gives what it needs
    return replace(made, optional_tensors=found).anew()


def random_ids(V: int, length: int) -> Tensor:
    """(N, length): random permutations of the V ids, one after another, in N rows. There are at
    least 8 rows, and as many as it takes that all ids of a small vocabulary occur."""
    rng = torch.Generator().manual_seed(0)
    rows = max(8, ceil(min(V, MOST_IDS) / length))
    permutations = ceil(rows * length / V)
    ids = torch.cat([torch.randperm(V, generator=rng) for _ in range(permutations)])
    return ids[: rows * length].view(rows, length)


def _subject_that_can_be_called(
    model: Model, sample: Tensor, call: Call | None, rows: int | None
) -> Subject:
    """A subject with the first call and number of rows that the model takes; CannotCheck if it
    takes none."""
    calls = [call] if call else ways_to_call(model)
    # Numbers of rows, and whether the model takes just so many: most take any number, and some one
    # sequence at a time, or one size of a batch.
    sizes = [(n, False) for n in (2, 1)] + [(n, True) for n in (4, 8, 16, 3, 32)]
    if rows is not None:  # an upper limit or, if the model refuses fewer, what each call must have
        sizes = [(min(rows, 2), False), (rows, True)]
    errors: list[Exception] = []
    with changed(model):
        for n, fixed_rows in sizes:
            for way in calls:
                made = Subject(model, sample, way, n, fixed_rows, call_given=call is not None)
                try:
                    with torch.no_grad():
                        returned = made.call_once(made.draw(n, made.length))
                        y = outputs_of(returned, (n, made.length))
                except PROBE_ERRORS as error:
                    errors.append(error)
                    continue
                if fixed_rows or n == 1:
                    return made
                most = min(
                    MOST_ROWS if rows is None else rows,
                    2 * MOST_NUMBERS // y.numel(),  # y is of 2 rows
                    # One call may cost as much as 4 scans; 2 rows have just worked.
                    max(2, made.affordable_sequences(made.length, share=4.0)),
                )
                return replace(made, rows=_most_rows(made, most))
    raise CannotCheck(_why_not_called(model, sample, errors[0])) from errors[0]


def _most_rows(made: Subject, most: int) -> int:
    """`most` rows if the model takes them in one call, else the first half, quarter, and so on
    that it takes, at least 2."""
    while most > 2:
        try:
            made.call_once(made.draw(most, made.prepared_length))
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
    """One sentence for a model that says no size of its vocabulary: what to give instead."""
    said = "the model has no vocab_size above 1: give vocab_size (--vocab-size), or ids as sample"
    parts = parts_below(model)
    if parts and not any(isinstance(part, nn.Embedding) for part in parts):
        said += "; if it takes vectors, give them: checkup(model, torch.randn(4, 24, C))"
    if not parts:
        takes = ", ".join(arguments_of(model))
        said += f"; if it is a function of ({takes}) that makes the model, call it first"
    return said


def _affordable_length(model: object) -> int:
    """The longest sequence of which a scan may try two, at least 32; `LONGEST_TRIED` if the size
    of the model is not known."""
    module = module_of(model)
    if module is None:
        return LONGEST_TRIED
    size = max(1, sum(w.numel() for w in module.parameters() if w.ndim > 1))
    return max(32, MULTIPLICATIONS // (2 * size))


def _size_from(model: object, names: tuple[str, ...]) -> int | None:
    """The first integer that a model, its module, or the config of one of them holds under one of
    the names; None if there is none."""
    for owner in (model, module_of(model)):
        for place in (owner, getattr(owner, "config", None)):
            for name in names:
                size = getattr(place, name, None)
                if isinstance(size, int):
                    return size
    return None


def find_best_dtype(made: Subject) -> torch.dtype | None:
    """The dtype in which leaks stand out most from rounding: fp64 if the model runs in it with
    finite outputs, else fp32 if that works for one of half precision; None for its own. A huge
    model is not tried in fp64, for a copy is twice as large."""
    if not made.weights:
        return None
    dtypes = [torch.float64] if made.effort.in_double else []
    if made.has_half_weights:
        dtypes.append(torch.float32)
    for dtype in dtypes:
        try:
            with changed(made.model, dtype=dtype):
                if bool(made(made.draw(2, made.prepared_length)).isfinite().all()):
                    return dtype
        except PROBE_ERRORS:
            continue
    return None


def unwritten_weights(made: Subject) -> frozenset[int]:
    """The ids (of Python) of the large weights, if a call in evaluation mode and one in training
    mode write into none of them; else, or if a call fails, none. `changed` need not copy them."""
    large = [w for w in made.weights if w.numel() >= LARGE]
    if not large:
        return frozenset()
    x = made.draw(made.rows_at_once(1), made.prepared_length)
    for mode in (EVALUATION, TRAINING):
        with made.in_state(replace(mode, in_own_dtype=True)) as there:
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
    """The largest prime up to a number, or 1. So many padded tokens do not fill chunks of a model
    that reads several tokens at a time, whatever their size is."""
    for n in range(most, 1, -1):
        if all(n % k for k in range(2, n)):
            return n
    return 1


def real_tokens(side: str, T: int) -> Tensor:
    """(T,) bool, true at the tokens of a row. The rest is padding, up to a third of the row, on
    the side "left", "right", so much on each of "both sides", or else between the tokens."""
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


def _mask_of_ones(dtype: torch.dtype, x: Tensor) -> Tensor:
    """A mask without padding (B, T) for inputs x (B, T, ...)."""
    return torch.ones(x.shape[1], dtype=dtype).expand(len(x), -1)


def _mask_with_padding(side: str, dtype: torch.dtype, x: Tensor) -> Tensor:
    """A mask (B, T) of inputs x (B, T, ...), 1 = token, with the same padding in each row."""
    return real_tokens(side, x.shape[1]).to(dtype).expand(len(x), -1)


def _all_positions(T: int) -> Tensor:
    """(T,) bool: outputs mean something everywhere, for no input is padding."""
    return torch.ones(T, dtype=torch.bool)


def document_numbers(x: Tensor) -> Tensor:
    """(B, T): each row of x (B, T, ...) holds three documents, 0, 1 and 2."""
    T = x.shape[1]
    return (torch.arange(T) * 3 // T).expand(len(x), -1)


def two_documents(x: Tensor) -> Tensor:
    """(B, T): each row of x (B, T, ...) holds two documents, 0 and 1."""
    T = x.shape[1]
    return (torch.arange(T) * 2 // T).expand(len(x), -1)


def find_optional_tensors(made: Subject) -> dict[str, OptionalTensor]:
    """The optional tensors that the model takes, by their names in a report: masks of ones and
    with padding (1 = token), of the first dtype that it takes, and numbers of documents."""
    takes = arguments_of(made.model)
    found = _masks_taken(made) if "attention_mask" in takes else []
    for name in DOCUMENTS:
        documents = OptionalTensor(f"{name} of three", name, document_numbers, _all_positions)
        if name in takes and _takes(made, documents):
            found.append(documents)
    return {tensor.said: tensor for tensor in found}


def _masks_taken(made: Subject) -> list[OptionalTensor]:
    """The masks that the model takes: of ones, and with padding on the left and on the right, all
    of the first dtype of which it takes one of ones. None if 1 means padding in the model, which
    `assert_padding_ignored` says."""
    mask = "attention_mask"
    for dtype in (torch.int64, torch.bool):
        ones = OptionalTensor(
            f"{mask} of ones", mask, partial(_mask_of_ones, dtype), _all_positions
        )
        if not _takes(made, ones):
            continue
        if _means_padding(made, ones):
            return []
        padded = [
            OptionalTensor(
                f"padding on the {side}", mask, partial(_mask_with_padding, side, dtype),
                partial(real_tokens, side), pads=True,
            )
            for side in ("left", "right")
        ]  # fmt: skip
        return [ones, *[tensor for tensor in padded if _takes(made, tensor)]]
    return []


def mask_dtype(tried: Subject) -> torch.dtype:
    """The dtype in which the model takes a mask of padding, as `find_optional_tensors` has found;
    int64 if it takes none."""
    ones = tried.optional_tensors.get("attention_mask of ones")
    return torch.int64 if ones is None else ones.values(tried.sample[:1]).dtype


def _means_padding(made: Subject, ones: OptionalTensor) -> bool:
    """Whether 1 means padding in a model: a mask of zeros gives the outputs of no mask, and one of
    ones does not."""

    def zeros_at(x: Tensor) -> Tensor:
        return torch.zeros_like(ones.values(x))

    zeros = replace(ones, values=zeros_at)
    x = made.draw(made.rows_at_once(made.effort.rows), made.prepared_length)
    try:
        with made.evaluating():
            without_mask = made(x)
            with_ones, with_zeros = (
                replace(made, call=partial(call_with, mask, made.call))(x)
                for mask in (ones, zeros)
            )
    except PROBE_ERRORS:  # a row without tokens may be refused
        return False
    return relative(with_zeros, without_mask) <= 1e-5 < relative(with_ones, without_mask)


def _takes(made: Subject, optional: OptionalTensor) -> bool:
    """Whether a call with an optional tensor raises no error."""
    x = made.draw(made.rows_at_once(made.effort.rows), made.prepared_length)
    try:
        with made.evaluating():
            replace(made, call=partial(call_with, optional, made.call)).call_once(x)
    except PROBE_ERRORS:
        return False
    return True


# ---- the same outputs for the same inputs


def steady(tried: Subject) -> Subject:
    """The subject, called so that the same inputs give the same outputs: seeded and row by row
    where calls draw random numbers or rows mix, and restored where calls leave something behind;
    CannotCheck if outputs still differ. What was found for a state is used again."""
    rows = 2 if tried.fixed_rows else tried.effort.rows
    x = tried.draw(rows, tried.usual_length)
    more = tried.draw(rows, tried.usual_length)
    known: dict[tuple[State, torch.dtype | None], SteadyCall] = {}
    if tried.shared is not None:
        known = tried.shared.steady_calls
    # Of a large model, all states of one mode are taken to need the same.
    same_as = tried.state if tried.effort.every_state else State(training=tried.state.training)
    key = (same_as, tried.best_dtype)
    if key not in known:
        known[key] = steady_call_of(_find_steady(tried, x, more))
    return replace(tried, **asdict(known[key]))


def steady_call_of(tried: Subject) -> SteadyCall:
    """How the model of a subject is called."""
    return SteadyCall(tried.rows, tried.seed_each_call, tried.restore_each_call)


def _find_steady(tried: Subject, x: Tensor, more: Tensor) -> Subject:
    """The subject, called in the plainest way in which outputs for x are the same again after a
    call with `more`; see `steady`."""
    first = tried(x)
    if tried.effort.every_state:
        tried(more)  # after which outputs may differ
    beside_others = tried(torch.cat([x, more]))[: len(x)]
    again, draws = tried.unseeded_outputs(x)
    # Outputs may be the same by chance though random numbers are drawn.
    if not draws and _same(again, first) and _same(beside_others, first):
        return tried
    alone = replace(tried, rows=tried.rows if tried.fixed_rows else 1)
    seeded = replace(alone, seed_each_call=True)
    restored = replace(seeded, restore_each_call=True)
    for choice in [seeded, restored] if draws else [alone, seeded, restored]:
        first = choice(x)
        choice(more)
        if _same(choice(x), first):
            return choice
    raise CannotCheck("outputs of the same inputs differ, even with the same random seed")


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether outputs are the same but for rounding. Also true if b is not finite, which is told
    where outputs are compared."""
    return not bool(b.isfinite().all()) or relative(a, b) <= 1e-5


# ---- comparing


def relative(a: Tensor, b: Tensor) -> float:
    """The largest difference of a from b, divided by b's standard deviation; if that is 0, by b's
    largest number; and if b is 0 throughout, by 1. 0 if both are empty."""
    if not b.numel():
        return 0.0
    spread = float(b.std()) if b.numel() > 1 else 0.0
    return float((a - b).abs().max()) / (spread or float(b.abs().max()) or 1.0)


# By which shares weights are changed to see whether a difference is rounding.
SHARES = (0.01, -0.01, 0.02)
# With larger weights scores are far apart, and 1 % of change makes other outputs altogether.
SMALL_SHARES = (1e-4, -1e-4, 2e-4)


def is_rounding(tried: Subject, difference: Callable[[], Tensor]) -> bool:
    """Whether a small difference of outputs is rounding, which turns into another one if the
    weights change slightly; that of a model that reads something hardly changes.

    Args:
        difference: computes the difference from the weights that the model has when it is called.

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
        cosine = float(torch.nn.functional.cosine_similarity(before, after, dim=0))
        if not cosine > 0.8:  # not <=, so that NaN of other weights counts as another difference
            return True
    return False
