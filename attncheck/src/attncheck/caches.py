"""Does decoding with a cache give the outputs of one pass, whatever the steps are?

Letters: B batch, T time, V symbols.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from math import isfinite
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from typing_extensions import Unpack

from .calls import Call, Model, Own, arguments_of, names_of_parts, outputs_of, parts_of, plainly
from .outcomes import (
    REFUSALS,
    CannotCheck,
    CheckFailed,
    Passed,
    as_assertion,
    cause_from,
    in_one_line,
    in_words,
    is_deliberate,
    ranges_in_words,
)
from .states import EVALUATION, TRAINING, State, Weights
from .subject import (
    Sizes,
    Subject,
    compared_columns,
    is_rounding,
    mask_dtype,
    prepared,
    prime_up_to,
    steady,
)
from .visits import Visits

# From the model, the next ids (B, n), and the cache (None at first), to logits (B, n, V) and the
# cache. `real` (B, T) is 1 for tokens and 0 for padding, of all tokens so far.
DecodingStep = Callable[[Own, Tensor, Own], tuple[object, Own]]
PaddedStep = Callable[[Own, Tensor, Own, Tensor], tuple[object, Own]]
AnyStep = Callable[..., tuple[object, Own]]  # one of the two
SEVERAL = 3  # tokens of a step of several
OTHER_ROWS = "in a wrong step, a row of the batch reads another row"
IS_READ = 1e-4  # a change of this share of the largest is no rounding
MOST_EXPLAINED = 6  # wrong steps of which it is seen what they read
MOST_READ = 96  # inputs that are changed one by one to see what a wrong step reads
CACHE_STATES = (EVALUATION, State(weights=Weights.LARGER), TRAINING)
LOSSY = 1e-4  # of the standard deviation; a cache in bf16 or int8 changes outputs by more
# Arguments under which models take a cache or a state.
CACHES = (
    "past_key_values", "past_key_value", "layer_past", "past", "past_kv", "past_kvs", "kv_cache",
    "kv_caches", "kv", "kvs", "cache", "caches", "cache_params", "state", "states", "past_state",
    "past_states", "prev_state", "prev_states", "recurrent_state", "recurrent_states",
    "conv_state", "ssm_state", "hidden", "hidden_state", "hx", "mems", "carry",
)  # fmt: skip
# Arguments that make a model return one.
FLAGS = ("use_cache", "return_cache", "return_kv", "return_kv_cache", "return_past",
         "return_state", "return_states", "return_present", "output_cache")  # fmt: skip
# Arguments that say where a step begins.
PLACES = ("position_ids", "positions", "cache_position", "input_pos", "start_pos", "pos", "offset",
          "begin", "start")  # fmt: skip


@runtime_checkable
class Reorders(Protocol):
    """A cache that can change the order of its rows, as beam search needs it: its own, or those of
    a cache that it returns."""

    def reorder_cache(self, rows: Tensor, /) -> object: ...


@dataclass(frozen=True)
class CacheStep:
    """A `DecodingStep` and `PaddedStep` of a model that takes a cache under one name and returns
    it under another. The cache is a pair: that of the model, and how many tokens are in it."""

    argument: str  # that takes the cache
    part: str  # of what the model returns, which is the cache, see `parts_of`
    flags: dict[str, bool] = field(default_factory=dict)  # arguments that make it return one
    place: str = ""  # an argument that is told where the step begins
    place_as: str = ""  # "number", "row" (n,) or "rows" (B, n)
    mask_dtype: torch.dtype = torch.int64

    def __call__(
        self,
        model: Model,
        ids: Tensor,
        cache: tuple[object, int] | None,
        real: Tensor | None = None,
    ) -> tuple[object, tuple[object, int]]:
        """What the model returns for the next ids (B, n), and the cache after them. `real` (B, T)
        is the mask of all tokens so far."""
        more: dict[str, object] = dict(self.flags)
        of_model, begin = cache if cache is not None else (None, 0)
        end = begin + ids.shape[1]
        if of_model is not None:
            more[self.argument] = of_model
        if real is not None:
            more["attention_mask"] = real.to(self.mask_dtype)
        match self.place_as:
            case "number":
                more[self.place] = begin
            case "row":
                more[self.place] = torch.arange(begin, end, device=ids.device)
            case "rows":
                more[self.place] = torch.arange(begin, end, device=ids.device).expand(len(ids), -1)
        returned = plainly(model, ids, **more)
        new = parts_of(returned).get(self.part)
        return returned, (of_model if new is None else new, end)  # None: it was changed in place


def cache_step_of(tried: Subject) -> CacheStep:
    """How a model takes and returns its cache: by the names of its arguments, and of the parts
    that it returns in a first step. CannotCheck if it takes or returns none, or refuses that
    step."""
    takes = arguments_of(tried.model)
    arguments = [name for name in CACHES if name in takes]
    if not arguments:
        raise CannotCheck("no argument for a cache is known")
    flags = {name: True for name in FLAGS if name in takes}
    choices = [flags]
    has_keywords = any(p.kind is p.VAR_KEYWORD for p in takes.values())
    if has_keywords and "use_cache" not in takes:  # which **kwargs may take
        choices = [{**flags, "use_cache": True}, flags]
    errors: list[str] = []
    for chosen in choices:
        x = tried.draw(tried.rows_at_once(2), min(tried.length, 8))
        with tried.evaluating(), torch.no_grad():
            try:
                returned = plainly(tried.model, x.to(tried.device), **chosen)
            except REFUSALS as error:
                errors.append(in_one_line(error))
                continue
        for argument in arguments:
            part = _part_with_cache(returned, argument, is_only_one=len(arguments) == 1)
            if part:
                return CacheStep(argument, part, chosen, mask_dtype=mask_dtype(tried))
    all_refused = len(errors) == len(choices)
    why = errors[0] if all_refused else "the model returns none"
    raise CannotCheck(f"the cache {', '.join(arguments)} is not tried: {why}; give step")


def _part_with_cache(returned: object, argument: str, *, is_only_one: bool) -> str:
    """The name of the part of what a model returns that is the cache of an argument; "" if none is
    known. Other names than that of the argument are only taken for the only cache of the model."""
    if isinstance(returned, Tensor):
        return ""
    parts = {name: x for name, x in parts_of(returned).items() if x is not None}
    usual = (argument, f"new_{argument}", f"next_{argument}", f"present_{argument}")
    for name in usual:
        if name in parts:
            return name
    if not is_only_one:
        return ""
    if isinstance(returned, tuple) and not names_of_parts(returned):
        # Logits first, then the cache, unless that is a loss.
        caches = [
            name
            for name, x in list(parts.items())[1:]
            if not (isinstance(x, Tensor) and x.numel() == 1)
        ]
        return caches[0] if caches else ""
    named = [name for name in parts if name.removeprefix("new_") in CACHES or "present" in name]
    return named[0] if len(named) == 1 else ""


@as_assertion
def assert_cache_equal(
    model: Model,
    step: DecodingStep | None = None,
    sample: Tensor | None = None,
    *,
    padded_step: PaddedStep | None = None,
    call: Call | None = None,
    **sizes: Unpack[Sizes],
) -> str:
    """Assert that decoding with a cache gives the outputs of one pass, whatever the steps are.

    Steps of one token and of several, after a prefill and from the beginning, beyond windows and
    rings, with larger weights, in training mode, and with rows in another order where the cache
    has `reorder_cache`. Rounding, of caches of half precision or of integers, is no fault.

    Args:
        step: see `DecodingStep`; by default the cache that the model takes and returns.
        padded_step: the same with a mask, to decode rows of different lengths.
    """
    return str(check_cache_equal(prepared(model, sample, call, **sizes), step, padded_step))


@dataclass(frozen=True)
class StepPlan:
    """The sizes of the steps in which a sequence is decoded."""

    name: str
    sizes: tuple[int, ...]  # tokens of each step
    real: Tensor | None = None  # (B, T) bool, True = token, False = padding; None: no mask
    rows_reversed: bool = False  # the order of rows is reversed before each step with a cache


@dataclass(frozen=True)
class Wrong:
    """The first step of a plan whose outputs differ from those of one pass."""

    plan: StepPlan
    number: int  # of the step, the first is 0 and has no cache
    change: float  # of the outputs, relative to their standard deviation
    by_chance: bool = False  # whether the step gives other outputs each time

    @property
    def begin(self) -> int:
        """The position of the first token of the step."""
        return sum(self.plan.sizes[: self.number])

    @property
    def size(self) -> int:
        """How many tokens the step has."""
        return self.plan.sizes[self.number]

    @property
    def plan_up_to_it(self) -> StepPlan:
        """The plan without the steps after this one."""
        return replace(self.plan, sizes=self.plan.sizes[: self.number + 1])

    @property
    def is_unclear(self) -> bool:
        """Whether nothing can be said of what it reads: its outputs are different each time, or
        not finite."""
        return self.by_chance or not isfinite(self.change)

    def __str__(self) -> str:
        """The plan, where it is wrong first, and by how much, in a line."""
        step = f"in a step of {self.size} tokens, " if self.size > 1 else ""
        by = f"by {self.change:.2g} of the std"
        return f"{self.plan.name}: wrong from position {self.begin} on, {step}{by}"


@dataclass(frozen=True)
class Reads:
    """By how much each of the n outputs of a step moves with each of the T inputs up to its end,
    as a share of the largest such change: with the cache (T, n), and in one pass (T, n)."""

    begin: int  # the position of the first token of the step
    cached: Tensor
    one_pass: Tensor
    tolerance: float  # what moves an output by no more is not read
    padding: tuple[int, ...] = ()  # the inputs that are padding

    def reads_ahead(self) -> bool:
        """Whether with the cache, an output reads later tokens of its own step."""
        n = self.cached.shape[1]
        j = torch.arange(len(self.cached))[:, None]
        later = j > self.begin + torch.arange(n)
        return bool(((self.cached > IS_READ) & later).any())

    def only_cached(self) -> list[int]:
        """The inputs that some output reads with the cache and not in one pass. What is between
        the limits of both, `IS_READ` and `tolerance`, is not known to be read or unread."""
        more = (self.cached > IS_READ) & (self.one_pass <= self.tolerance)  # (input, output)
        return more.any(1).nonzero().flatten().tolist()

    def only_one_pass(self) -> list[int]:
        """The inputs that some output reads in one pass and not with the cache, see
        `only_cached`."""
        less = (self.one_pass > IS_READ) & (self.cached <= self.tolerance)  # (input, output)
        return less.any(1).nonzero().flatten().tolist()


def step_plans(T: int, prefill: int, single_steps: int) -> list[StepPlan]:
    """Plans for sequences of up to T tokens: so many single steps, two for the first 2 * prefill
    tokens, in steps of one after a prefill and in steps of several, and further ones up to the
    end."""
    short = min(T, 2 * prefill)
    prefill = min(prefill, short - 1)
    plans = [
        StepPlan("one token at a time", (1,) * min(T, single_steps)),
        StepPlan("after a prefill", (prefill,) + (1,) * (short - prefill)),
        StepPlan("several tokens at a time", (SEVERAL,) * (short // SEVERAL)),
    ]
    if short + 8 < T:  # beyond a window
        plans.append(StepPlan(f"up to {T}", (T - 8,) + (1,) * 8))
        plans.append(StepPlan(f"several up to {T}", (T - 8, SEVERAL, SEVERAL)))
    if T > 2 * SEVERAL:
        plans.append(StepPlan(f"a long step after {SEVERAL}", (SEVERAL, T - SEVERAL)))
    return plans


def plans_of_each_size(T: int, most: int) -> list[StepPlan]:
    """Plans of T tokens in three steps: a prompt, the rest but one token, and that token, which
    reads what the second step has left in the cache. Prompts are of all lengths, or of `most` at
    random, the same for the same T."""
    prompts = list(range(1, T - 1))
    if len(prompts) > most:
        order = torch.randperm(len(prompts), generator=torch.Generator().manual_seed(T))
        prompts = [prompts[n] for n in sorted(order[:most].tolist())]
    return [
        StepPlan(f"a prompt of {n} and a step of {T - 1 - n}", (n, T - 1 - n, 1)) for n in prompts
    ]


def with_prefix_at_once(plan: StepPlan, prefix: int) -> StepPlan:
    """The plan, whose first steps are merged until they have all tokens of a prefix, which may see
    each other. It begins at the first token of the row with most padding before it."""
    padding = 0 if plan.real is None else int(plan.real.int().argmax(1).max())
    sizes = [*plan.sizes]
    while prefix and len(sizes) > 1 and sizes[0] < padding + prefix:
        sizes[:2] = [sizes[0] + sizes[1]]
    return replace(plan, sizes=tuple(sizes))


def padded_step_plans(plans: list[StepPlan], rows: int) -> list[StepPlan]:
    """Three plans for each plan: with one row that is padded left, and with two rows (one, if the
    model takes one at a time), the second of which is padded left, or before its middle."""
    padded: list[StepPlan] = []
    for plan in plans:
        at = torch.arange(sum(plan.sizes))[None]
        n = at.shape[1]
        padding = prime_up_to(n // 4)
        left = at >= padding
        # The end of the prefill is padding, but no later step, so that each has tokens.
        right = (at < n // 2 - padding) | (at >= n // 2)
        padded.append(replace(plan, name=f"{plan.name}, a padded row alone", real=left))
        for name, real in (("rows padded left", left), ("right", right)):
            if rows > 1:
                real = torch.cat([torch.ones_like(real), real])
            padded.append(replace(plan, name=f"{plan.name}, {name}", real=real))
    return padded


@dataclass
class PlansTried:
    """What the plans have shown in one state."""

    ran: list[StepPlan] = field(default_factory=list)
    wrong: list[Wrong] = field(default_factory=list)
    refused: dict[str, Exception] = field(default_factory=dict)  # by plan, what the model raised
    rounded: list[str] = field(default_factory=list)  # by how much rounding changes outputs

    def sizes_in_words(self) -> str:
        """Which lengths of prompts and sizes of steps were tried, as the end of a sentence."""
        prompts = ranges_in_words([plan.sizes[0] for plan in self.ran])
        steps = ranges_in_words([size for plan in self.ran for size in plan.sizes[1:]])
        return f", in steps of {steps} after prompts of {prompts} tokens"

    def refused_in_words(self) -> list[str]:
        """Which plans the model refuses, in a phrase for each reason."""
        names_of: dict[str, list[str]] = {}
        for name, error in self.refused.items():
            names_of.setdefault(in_one_line(error), []).append(name)
        lines = []
        for why, names in names_of.items():
            others = f" and {len(names) - 1} other ways" if names[1:] else ""
            verb = "are" if others else "is"
            lines.append(f"{names[0]}{others}, which {verb} refused ({why})")
        return lines


def check_cache_equal(
    tried: Subject, step: DecodingStep | None = None, padded_step: PaddedStep | None = None
) -> Passed:
    """Decoding with a cache gives the outputs of one pass, see `assert_cache_equal`."""
    remarks: list[str] = []
    if step is None:
        step = _told_where_it_begins(tried, cache_step_of(tried), remarks)
    return _check_in_some_dtype(tried, Decoding(step, padded_step), remarks)


def check_padded_cache(tried: Subject) -> Passed:
    """Decoding rows of different lengths with a cache, which are padded, gives the outputs of one
    step of all tokens, for a model that takes `attention_mask`."""
    step = _told_where_it_begins(tried, cache_step_of(tried), [])
    return _check_in_some_dtype(tried, Decoding(step, step, only_padded=True), [])


@dataclass(frozen=True)
class Decoding:
    """How a model is decoded, and whether only with padding."""

    step: DecodingStep
    padded_step: PaddedStep | None
    only_padded: bool = False

    def step_of(self, plan: StepPlan) -> AnyStep:
        """The step that a plan takes: with a mask if it has padding."""
        if plan.real is not None and self.padded_step is not None:
            return self.padded_step
        return self.step


def _check_in_some_dtype(tried: Subject, decoding: Decoding, remarks: list[str]) -> Passed:
    """`_check_cache` in the best dtype or, if no step works there, in the model's own: some caches
    are of that, whatever the dtype of the weights is."""
    try:
        return _check_cache(tried, decoding, remarks)
    except CannotCheck:
        if tried.best_dtype is None:  # that was the model's own
            raise
    return _check_cache(replace(tried, best_dtype=None), decoding, remarks)


def _check_cache(tried: Subject, decoding: Decoding, remarks: list[str]) -> Passed:
    """Decoding gives the outputs of one pass in each state of `CACHE_STATES`; CannotCheck if no
    step works.

    `remarks` are those on the step, which are told with others.
    """
    said = "decoding with a cache gives the outputs of one pass"
    visits = Visits(tried, "a cache ", remarks=[*remarks])
    cache_rounds = False
    for state in visits.through(CACHE_STATES):
        # Padded steps are not tried in training mode, and of a large model in evaluation mode
        # alone.
        is_left_out = state != EVALUATION and not tried.effort.every_state
        if decoding.only_padded and (state.training or is_left_out):
            continue
        if cache_rounds and state.weights is not Weights.OWN:  # see `is_rounding`
            visits.not_tried.append(f"a cache {state}, for it rounds")
            continue
        with visits.visit(state) as there, torch.no_grad():
            plans = _require_plans_right(there, decoding)
            if state == EVALUATION:
                said += plans.sizes_in_words()
                visits.not_tried += plans.refused_in_words()
                visits.remarks += plans.rounded[:1]
                cache_rounds = bool(plans.rounded)
    if not can_reorder(tried, decoding.step):
        visits.not_tried.append("another order of rows in the cache, as in beam search")
    return visits.passed(said)


def _require_plans_right(tried: Subject, decoding: Decoding) -> PlansTried:
    """CheckFailed if a step is wrong in the state of the subject. Returns what the plans have
    shown. CannotCheck if calls in training mode change the model, if outputs in the best dtype are
    not finite, or if no step works."""
    steadied = steady(tried)
    if steadied.restore_each_call and tried.state.training:
        raise CannotCheck("each call changes the model there, so steps differ from one pass")
    without_graph = replace(steadied, state=replace(tried.state, grad=False))
    plans = _try_plans(without_graph, decoding)
    is_finite = all(isfinite(wrong.change) for wrong in plans.wrong)
    is_best_dtype = tried.best_dtype is not None and not tried.state.in_own_dtype
    if is_best_dtype and not is_finite:  # the caller then tries the model's own dtype
        raise CannotCheck("outputs are not finite in this precision")
    if plans.wrong:
        raise _failed(without_graph, decoding, plans)
    return plans


def _plans_for(tried: Subject, decoding: Decoding) -> list[StepPlan]:
    """The plans that are tried in the state of the subject: all in evaluation mode, and fewer in
    other states and of a large model; in training mode only single steps after a prefill."""
    effort = tried.effort
    prefill = max(effort.prefill, tried.prefix)
    usual = step_plans(tried.length, prefill, tried.prefix + effort.single_steps)
    plans: list[StepPlan] = []
    if not decoding.only_padded:
        is_large = tried.affordable_sequences(tried.length) < 64
        plans = usual[:3] if is_large else usual[:]
        is_plain = replace(tried.state, in_own_dtype=False) == EVALUATION
        if tried.state.training or not (is_plain or effort.every_state):
            return plans[1:2]
        if tried.state == EVALUATION:
            plans += plans_of_each_size(min(tried.length, effort.steps_up_to), effort.prompts)
        if can_reorder(tried, decoding.step):
            first = max(effort.prefill // 2, tried.prefix)
            most = max(0, min(effort.steps_reordered, tried.length - first))
            sizes = (first,) + (1,) * most
            plans.append(StepPlan("rows in another order", sizes, rows_reversed=True))
    if decoding.padded_step is not None:
        padded = padded_step_plans(usual[1:3], tried.rows)
        plans += padded[-effort.plans_padded :]
    return plans


def _try_plans(tried: Subject, decoding: Decoding) -> PlansTried:
    """What all plans for the state of the subject show, such as the first wrong step of each;
    CannotCheck if the model refuses them all, or if none is left behind the prefix. A crash is
    raised if only padded plans are tried, for other steps work then."""
    plans = PlansTried()
    wanted = [with_prefix_at_once(plan, tried.prefix) for plan in _plans_for(tried, decoding)]
    wanted = [plan for plan in wanted if len(plan.sizes) > 1]
    if not wanted:
        raise CannotCheck(f"no step with a cache begins behind the prefix of {tried.prefix}")
    texts: dict[int, Text] = {}  # by length
    for plan in wanted:
        try:
            text = _text_for(tried, plan, texts)
            wrong = first_wrong_step(tried, decoding.step_of(plan), plan, plans.rounded, text)
        except REFUSALS as error:
            plans.refused[plan.name] = error
            continue
        plans.ran.append(plan)
        if wrong is not None:
            plans.wrong.append(wrong)
    if not plans.ran:
        first = next(iter(plans.refused.values()))
        if decoding.only_padded and not is_deliberate(first):
            raise first
        raise CannotCheck(f"no step with a cache works: {plans.refused_in_words()[0]}")
    return plans


def _failed(tried: Subject, decoding: Decoding, plans: PlansTried) -> CheckFailed:
    """The error that tells the wrong steps of the plans, what they have in common, and what they
    read."""
    faulty = plans.wrong
    lines = [str(wrong) for wrong in faulty[:2]]
    if len(faulty) > 2:
        lines[-1] += f"; {len(faulty) - 2} more"
    reads = [
        cause_from(partial(_what_is_read, tried, decoding.step_of(wrong.plan), wrong), None)
        for wrong in faulty[:MOST_EXPLAINED]
    ]
    another_row = partial(_reads_another_row, tried, decoding.step, faulty[0])
    rows_mix = cause_from(another_row, unknown=False)
    ways = f"{len(faulty)} of {len(plans.ran)} ways to step"
    return tried.failed(
        f"decoding with the cache gives other outputs than one pass, in {ways}",
        *lines,
        which_steps_are_wrong(plans.ran, faulty),
        OTHER_ROWS if rows_mix else what_wrong_steps_read([x for x in reads if x is not None]),
    )


def what_wrong_steps_read(known: list[Reads]) -> str:
    """What one of the wrong steps reads, in a sentence: later tokens, if one does; else more than
    one pass, less, or the same to another extent; "" if nothing is known."""
    for reads in known:
        if reads.reads_ahead():
            return "a wrong step reads its own later tokens"
    for reads in known:
        more = reads.only_cached()
        if more and set(more) <= set(reads.padding):
            return f"a wrong step reads padding: {in_words('input', more)}"
        if more:
            return f"a wrong step reads {in_words('input', more)}, which one pass does not"
    for reads in known:
        if less := reads.only_one_pass():
            return f"a wrong step does not read {in_words('input', less)}, which one pass does"
    return (
        "wrong steps read the inputs that one pass reads, but to another extent" if known else ""
    )


def which_steps_are_wrong(plans: list[StepPlan], faulty: list[Wrong]) -> str:
    """Which steps are wrong and which are right, in a sentence, from the plans that were tried and
    the first wrong step of each faulty one."""
    if all(wrong.by_chance for wrong in faulty):
        return "the same steps give other outputs each time: is dropout on in them?"
    if all(wrong.plan.rows_reversed for wrong in faulty):
        return "only with rows in another order: a part of the cache is not reordered"
    if all(wrong.plan.real is not None for wrong in faulty):
        return "only with padding"
    wrong_of = {wrong.plan.name: wrong for wrong in faulty}
    right_sizes: set[int] = set()  # of cached steps before the first wrong one
    for plan in plans:
        wrong = wrong_of.get(plan.name)
        end = len(plan.sizes) if wrong is None else wrong.number
        right_sizes.update(plan.sizes[1:end])
    without_cache = [wrong for wrong in faulty if wrong.number == 0]
    cached = [wrong for wrong in faulty if wrong.number > 0]
    single = any(wrong.size == 1 for wrong in cached)
    several = any(wrong.size > 1 for wrong in cached)
    parts = []
    if without_cache:
        parts.append("the first step, whose cache is empty, is wrong")
    if single and several:
        parts.append("steps of one token and of several are wrong")
    elif single:
        also = ", those of several are right" if right_sizes - {1} else ""
        parts.append(f"steps of one token are wrong{also}")
    elif several:
        also = ", those of one token are right" if 1 in right_sizes else ""
        parts.append(f"steps of several tokens are wrong{also}")
    numbers = {wrong.number for wrong in cached}
    if numbers == {1}:
        parts.append("from the first cached step on")
    elif numbers == {2}:
        parts.append("the first cached step is right, the second is not")
    elif cached:
        parts.append(f"the first wrong one begins at position {min(w.begin for w in cached)}")
    return "; ".join(parts)


def decoded(tried: Subject, step: AnyStep, ids: Tensor, plan: StepPlan) -> Tensor:
    """The outputs for ids (B, T) in the steps of a plan, (B, sum of its sizes, V) fp64 on the CPU,
    see `compared_columns`. Where the plan reverses rows, outputs are in the order of the ids."""
    parts = []
    cache = None
    end = 0
    is_reversed = False
    for size in plan.sizes:
        new_ids = ids[:, end : end + size].to(tried.device)
        end += size
        if plan.rows_reversed and cache is not None:
            rows = torch.arange(len(ids) - 1, -1, -1, device=tried.device)
            cache = reordered(cache, rows)
            is_reversed = not is_reversed
        if is_reversed:
            new_ids = new_ids.flip(0)
        if plan.real is None:
            returned, cache = step(tried.model, new_ids, cache)
        else:
            mask = plan.real[:, :end].long().to(tried.device)
            returned, cache = step(tried.model, new_ids, cache, mask)
        y = compared_columns(outputs_of(returned, tuple(new_ids.shape[:2])))
        parts.append(y.flip(0) if is_reversed else y)
    return torch.cat(parts, 1)


def reordered(cache: tuple[object, int], rows: Tensor) -> tuple[object, int]:
    """The cache of a `CacheStep` whose row n is the earlier row `rows[n]`. Some caches change
    themselves and return nothing, others return a new one."""
    of_model, end = cache
    assert isinstance(of_model, Reorders)
    new = of_model.reorder_cache(rows)
    return of_model if new is None else new, end


def can_reorder(tried: Subject, step: DecodingStep) -> bool:
    """Whether the cache that a model returns has `reorder_cache`. False for a step of the user's,
    for a model that takes one row at a time, and if it refuses the step."""
    if not isinstance(step, CacheStep) or tried.rows < 2:
        return False
    with tried.evaluating(), torch.no_grad():
        try:
            _, cache = step(tried.model, tried.draw(2, 4).to(tried.device), None)
        except REFUSALS:
            return False
    of_model, _ = cache
    return isinstance(of_model, Reorders)


@dataclass(frozen=True)
class Text:
    """Ids (B, T) and their outputs (B, T, V) in a call without a cache."""

    ids: Tensor
    outputs: Tensor


def _text_for(tried: Subject, plan: StepPlan, known: dict[int, Text]) -> Text | None:
    """The text for a plan, which plans of the same length share: it is taken from `known`, by
    length, or drawn and put there. None for a plan with padding: its reference is the same text in
    one step, not a call without a cache."""
    if plan.real is not None:
        return None
    T = sum(plan.sizes)
    if T not in known:
        ids = tried.draw(min(2, tried.rows), T)
        known[T] = Text(ids, tried(ids))
    return known[T]


def first_wrong_step(
    tried: Subject, step: AnyStep, plan: StepPlan, rounded: list[str], text: Text | None = None
) -> Wrong | None:
    """The first step of a plan whose outputs differ from those of one pass, or of one step of all
    tokens if the plan has padding; None if none does. If outputs differ by rounding alone, but
    by more than that of fp32, a remark that says so is appended to `rounded`.

    `text` is the text to decode; by default a random one.
    """
    if text is None:
        B = min(2, tried.rows) if plan.real is None else len(plan.real)
        ids = tried.draw(B, sum(plan.sizes))
    else:
        ids = text.ids

    def one_pass() -> Tensor:
        """The outputs of a call without a cache; with padding, those of one step of all tokens."""
        if plan.real is None:
            return tried(ids)
        return decoded(tried, step, ids, replace(plan, sizes=(ids.shape[1],)))

    def off_by(expected: Tensor) -> Tensor:
        """By how much the outputs in steps differ from what is expected (B, T, V), 0 at
        padding."""
        off = decoded(tried, step, ids, plan) - expected
        return off if plan.real is None else off.where(plan.real[..., None], 0.0)

    def difference(begin: int = 0, end: int | None = None) -> Tensor:
        """By how much the outputs in steps differ from one pass, from one position to another."""
        return off_by(one_pass())[:, begin:end]

    expected = one_pass() if text is None else text.outputs
    std = float(expected.std()) or 1.0
    off = off_by(expected).abs().amax((0, 2)) / std  # (T,)
    ends = list(accumulate(plan.sizes))
    changes = [float(off[e - n : e].max()) for n, e in zip(plan.sizes, ends, strict=True)]
    limit = max(1e-6, tried.tolerance)
    wrong = [n for n, change in enumerate(changes) if not change <= limit]  # not >, for NaN
    if not wrong:
        return None
    finite = all(map(isfinite, changes))
    # Where a small change may be rounding, the first change of about the largest size counts.
    first_large = next((n for n in wrong if changes[n] > 0.1 * max(changes)), wrong[0])
    if finite and not tried.state.training:  # in training mode, chance may be meant
        again = off_by(expected).abs().amax((0, 2)) / std
        if float((again - off).abs().max()) > limit:
            return Wrong(plan, first_large, changes[first_large], by_chance=True)
    if finite and is_rounding(tried, difference):
        if max(changes) > LOSSY:
            rounded.append(
                f"rounding of the cache changes outputs by {max(changes):.1g} of the std"
            )
        return None
    number = wrong[0]
    end = ends[number]
    if finite and is_rounding(tried, partial(difference, end - plan.sizes[number], end)):
        number = first_large
    return Wrong(plan, number, changes[number])


def _what_is_read(tried: Subject, step: AnyStep, wrong: Wrong) -> Reads | None:
    """What the wrong step reads, by changing one input at a time; in a long text, one of the first
    16 and the last 80. None if that is unclear, or rows are reversed."""
    plan = wrong.plan_up_to_it
    if plan.rows_reversed or wrong.is_unclear:
        return None
    begin = wrong.begin
    end = begin + wrong.size
    real = None if plan.real is None else plan.real[-1:]  # of the row with padding
    (x,) = tried.draw(1, end)
    places = list(range(end)) if end <= MOST_READ else [*range(16), *range(end - 80, end)]
    one_input = torch.eye(end, dtype=torch.bool)[places]
    like_x = one_input.view(len(places), end, *[1] * (x.ndim - 1))
    changed = torch.where(like_x, tried.other_inputs(x), x)  # N sequences

    def moved(run: Callable[[Tensor], Tensor]) -> Tensor:
        """By how much each output of the step moves with each input, as in `Reads`, if ids are
        given to the model by `run`."""
        parts = []
        for ids in changed.split(tried.rows):
            # x is in the same rows as the changed ids, for a fault may be one of some rows.
            change = (run(ids) - run(x.expand_as(ids)))[:, begin:].abs().amax(-1)
            parts.append(change if real is None else change.where(real[:, begin:end], 0.0))
        sizes = torch.cat(parts)  # (N, n)
        reads = torch.zeros(end, end - begin, dtype=torch.float64)
        reads[places] = sizes / (float(sizes.max()) or 1.0)
        return reads

    def stepwise(ids: Tensor) -> Tensor:
        """The outputs for ids in the steps of the plan."""
        return decoded(tried, step, ids, _for_rows(plan, len(ids)))

    def at_once(ids: Tensor) -> Tensor:
        """The outputs for ids in a call without a cache; with padding, in one step of all."""
        if real is None:
            return tried(ids)
        return decoded(tried, step, ids, _for_rows(replace(plan, sizes=(end,)), len(ids)))

    tolerance = min(1e-9 if tried.tolerance < 1e-6 else 1e-5, IS_READ)
    padding = () if real is None else tuple((~real[0, :end]).nonzero().flatten().tolist())
    return Reads(begin, moved(stepwise), moved(at_once), tolerance, padding)


def _for_rows(plan: StepPlan, rows: int) -> StepPlan:
    """The plan for so many rows, all padded as its last row is; itself if it has no padding."""
    return plan if plan.real is None else replace(plan, real=plan.real[-1:].expand(rows, -1))


def _reads_another_row(tried: Subject, step: DecodingStep, wrong: Wrong) -> bool:
    """Whether outputs of the wrong step depend on another row of the batch. False also where this
    is not looked at: with one row, reversed or padded rows, or outputs that are unclear."""
    plan = wrong.plan_up_to_it
    if tried.rows < 2 or plan.rows_reversed or plan.real is not None or wrong.is_unclear:
        return False
    x = tried.draw(2, wrong.begin + wrong.size)
    outputs = decoded(tried, step, x, plan)
    limit = max(1e-6, tried.tolerance) * float(outputs.std())
    for row, changed_row in ((1, 0), (0, 1)):
        changed = x.clone()
        changed[changed_row] = tried.other_inputs(x)[changed_row]
        moved = decoded(tried, step, changed, plan)[row] - outputs[row]
        if float(moved[wrong.begin :].abs().max()) > limit:
            return True
    return False


def _told_where_it_begins(tried: Subject, step: CacheStep, remarks: list[str]) -> CacheStep:
    """The step, or one that gives an argument of the model where it begins, if the step is wrong
    without it and right with it; that is then appended to `remarks`."""
    takes = arguments_of(tried.model)
    places = [name for name in PLACES if name in takes]
    if not places:
        return step
    prefill = max(tried.effort.prefill, tried.prefix)
    _, after_a_prefill, *_ = step_plans(tried.length, prefill, 1)
    plan = with_prefix_at_once(after_a_prefill, tried.prefix)
    choices = [step]
    for name in places:
        choices += [replace(step, place=name, place_as=kind) for kind in ("number", "row", "rows")]
    with tried.in_state(EVALUATION) as there, torch.no_grad():
        for choice in choices:
            try:
                wrong = first_wrong_step(there.anew(), choice, plan, [])
            except REFUSALS:
                continue
            if wrong is None:
                if choice.place:
                    remarks.append(f"steps with a cache are right only if {choice.place} is given")
                return choice
    return step
