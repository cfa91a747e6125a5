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
    "conv_state", "ssm_state", "hidden", "hidden_state", "hx", "mems", "mem", "carry",
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
    """A step of a model that takes a cache under one name and returns it under another."""

    argument: str
    part: str
    flags: dict[str, bool] = field(default_factory=dict)
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
        more: dict[str, object] = dict(self.flags)
        held, begin = cache if cache is not None else (None, 0)
        end = begin + ids.shape[1]
        if held is not None:
            more[self.argument] = held
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
        return returned, (held if new is None else new, end)  # None if it was changed in place


def cache_step_of(tried: Subject) -> CacheStep:
    """How a model takes and returns its cache, seen from what it returns; CannotCheck if it does
    not."""
    takes = arguments_of(tried.model)
    arguments = [name for name in CACHES if name in takes]
    if not arguments:
        raise CannotCheck("no argument for a cache is known")
    flags = {name: True for name in FLAGS if name in takes}
    open_ended = any(p.kind is p.VAR_KEYWORD for p in takes.values())
    choices = [flags]
    if "use_cache" not in takes and open_ended:
        choices = [{**flags, "use_cache": True}, flags]
    errors: list[str] = []
    for chosen in choices:
        x = tried.draw(tried.batch(2), min(tried.length, 8))
        with tried.evaluating(), torch.no_grad():
            try:
                returned = plainly(tried.model, x.to(tried.device), **chosen)
            except REFUSALS as error:
                errors.append(in_one_line(error))
                continue
        for argument in arguments:
            part = _returned_cache(returned, argument, arguments)
            if part:
                return CacheStep(argument, part, chosen, mask_dtype=mask_dtype(tried))
    why = errors[0] if len(errors) == len(choices) else "the model returns none"
    raise CannotCheck(f"the cache {', '.join(arguments)} is not tried: {why}; give step")


def _returned_cache(returned: object, argument: str, arguments: list[str]) -> str:
    """The part of what a model returns that is its cache, or ""."""
    if isinstance(returned, Tensor):
        return ""
    parts = {name: x for name, x in parts_of(returned).items() if x is not None}
    usual = (argument, f"new_{argument}", f"next_{argument}", f"present_{argument}")
    for name in usual:
        if name in parts:
            return name
    if isinstance(returned, tuple) and not names_of_parts(returned):
        # Logits first, then the cache, unless that is a loss.
        for name, x in list(parts.items())[1:]:
            if not (isinstance(x, Tensor) and x.numel() == 1) and len(arguments) == 1:
                return name
        return ""
    named = [name for name in parts if name.removeprefix("new_") in CACHES or "present" in name]
    return named[0] if len(named) == 1 and len(arguments) == 1 else ""


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
    sizes: tuple[int, ...]
    real: Tensor | None = None  # (B, T) bool, True = token
    turned: bool = False  # the rows of the cache are turned around before each step


@dataclass(frozen=True)
class Wrong:
    """The first step of a plan whose outputs differ from those of one pass."""

    plan: StepPlan
    number: int  # of the step, the first is 0 and has no cache
    change: float  # relative to the standard deviation
    chance: bool = False  # whether it gives other outputs each time

    @property
    def begin(self) -> int:
        return sum(self.plan.sizes[: self.number])

    @property
    def size(self) -> int:
        return self.plan.sizes[self.number]

    @property
    def plan_up_to_it(self) -> StepPlan:
        """The steps up to this one."""
        return replace(self.plan, sizes=self.plan.sizes[: self.number + 1])

    @property
    def is_unclear(self) -> bool:
        """Whether nothing can be said of what it reads."""
        return self.chance or not isfinite(self.change)

    def __str__(self) -> str:
        step = f"in a step of {self.size} tokens, " if self.size > 1 else ""
        by = f"by {self.change:.2g} of the std"
        return f"{self.plan.name}: wrong from position {self.begin} on, {step}{by}"


@dataclass(frozen=True)
class Reads:
    """What a step reads with the cache and in one pass: (T, n), by how much each of its n outputs
    moves with each input, as a share of the largest such change."""

    begin: int
    cached: Tensor
    one_pass: Tensor
    tolerance: float  # what rounding moves
    padding: tuple[int, ...] = ()  # the inputs that are padding

    def reads_ahead(self) -> bool:
        """Whether an output reads later tokens of its own step."""
        n = self.cached.shape[1]
        j = torch.arange(len(self.cached))[:, None]
        later = j > self.begin + torch.arange(n)
        return bool(((self.cached > IS_READ) & later).any())

    def only_cached(self) -> list[int]:
        """The inputs that are read with the cache alone."""
        more = (self.cached > IS_READ) & (self.one_pass <= self.tolerance)
        return more.any(1).nonzero().flatten().tolist()

    def only_one_pass(self) -> list[int]:
        """The inputs that are read in one pass alone."""
        less = (self.one_pass > IS_READ) & (self.cached <= self.tolerance)
        return less.any(1).nonzero().flatten().tolist()


def step_plans(T: int, prefill: int) -> list[StepPlan]:
    """The ways to step that are tried."""
    short = min(T, 2 * prefill)
    prefill = min(prefill, short - 1)
    tried = [
        StepPlan("one token at a time", (1,) * short),
        StepPlan("after a prefill", (prefill,) + (1,) * (short - prefill)),
        StepPlan("several tokens at a time", (SEVERAL,) * (short // SEVERAL)),
    ]
    if short + 8 < T:  # beyond a window
        tried.append(StepPlan(f"up to {T}", (T - 8,) + (1,) * 8))
        tried.append(StepPlan(f"several up to {T}", (T - 8, SEVERAL, SEVERAL)))
    if T > 2 * SEVERAL:
        tried.append(StepPlan(f"a long step after {SEVERAL}", (SEVERAL, T - SEVERAL)))
    return tried


def plans_of_each_size(T: int, most: int) -> list[StepPlan]:
    """T tokens as a prompt, a step of the rest, and a step of one token, which reads what the step
    has left in the cache: prompts of all lengths, or some at random."""
    prompts = list(range(1, T - 1))
    if len(prompts) > most:
        order = torch.randperm(len(prompts), generator=torch.Generator().manual_seed(T))
        prompts = [prompts[n] for n in sorted(order[:most].tolist())]
    return [
        StepPlan(f"a prompt of {n} and a step of {T - 1 - n}", (n, T - 1 - n, 1)) for n in prompts
    ]


def with_prefix_at_once(plan: StepPlan, prefix: int) -> StepPlan:
    """A plan whose first step has all tokens of a prefix, which may see each other. It begins at
    the first token if padding is before it."""
    padding = 0 if plan.real is None else int(plan.real.int().argmax(1).max())
    sizes = [*plan.sizes]
    while prefix and len(sizes) > 1 and sizes[0] < padding + prefix:
        sizes[:2] = [sizes[0] + sizes[1]]
    return replace(plan, sizes=tuple(sizes))


def padded_step_plans(plans: list[StepPlan], rows: int) -> list[StepPlan]:
    """The same with padding before or after the first tokens of a row."""
    tried: list[StepPlan] = []
    for plan in plans:
        at = torch.arange(sum(plan.sizes))[None]
        n = at.shape[1]
        padding = prime_up_to(n // 4)
        left = at >= padding
        after = (at < n // 2 - padding) | (at >= n // 2)  # no step behind a prefill is padding
        tried.append(replace(plan, name=f"{plan.name}, a padded row alone", real=left))
        for name, real in (("rows padded left", left), ("right", after)):
            if rows > 1:
                real = torch.cat([torch.ones_like(real), real])
            tried.append(replace(plan, name=f"{plan.name}, {name}", real=real))
    return tried


@dataclass
class PlansTried:
    """What the plans have shown in one state."""

    ran: list[StepPlan] = field(default_factory=list)
    wrong: list[Wrong] = field(default_factory=list)
    refused: dict[str, Exception] = field(default_factory=dict)  # by plan, what the model raised
    rounded: list[str] = field(default_factory=list)  # by how much rounding changes outputs

    def sizes_in_words(self) -> str:
        """Which sizes of steps were tried."""
        prompts = ranges_in_words([plan.sizes[0] for plan in self.ran])
        steps = ranges_in_words([size for plan in self.ran for size in plan.sizes[1:]])
        return f", in steps of {steps} after prompts of {prompts} tokens"

    def refused_in_words(self) -> list[str]:
        """What the model refuses, each reason once."""
        said: dict[str, list[str]] = {}
        for name, error in self.refused.items():
            said.setdefault(in_one_line(error), []).append(name)
        lines = []
        for why, names in said.items():
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
        step = cache_step_of(tried)
        step = _with_places(tried, step, remarks)
    return _in_some_precision(tried, Decoding(step, padded_step), remarks)


def check_padded_cache(tried: Subject) -> Passed:
    """The same of rows of different lengths alone, for a model that takes `attention_mask`."""
    step = _with_places(tried, cache_step_of(tried), [])
    return _in_some_precision(tried, Decoding(step, step, only_padded=True), [])


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


def _in_some_precision(tried: Subject, decoding: Decoding, remarks: list[str]) -> Passed:
    """`_check_cache` in the best precision or, if no step works there, in the model's own: some
    caches are of that, whatever the precision of the weights is."""
    try:
        return _check_cache(tried, decoding, remarks)
    except CannotCheck:
        if tried.best is None:
            raise
    return _check_cache(replace(tried, best=None), decoding, remarks)


def _check_cache(tried: Subject, decoding: Decoding, remarks: list[str]) -> Passed:
    """Decoding in one precision gives the outputs of one pass; CannotCheck if no step works.

    The remarks are those on the step; further ones are added to a copy.
    """
    said = "decoding with a cache gives the outputs of one pass"
    visits = Visits(tried, "a cache ", remarks=[*remarks])
    rounds = False
    for state in visits.through(CACHE_STATES):
        is_left_out = state != EVALUATION and not tried.effort.every_state
        if decoding.only_padded and (state.training or is_left_out):
            continue
        if rounds and state.weights is not Weights.OWN:
            visits.not_tried.append(f"a cache {state}, for it rounds")
            continue
        with visits.visit(state) as there, torch.no_grad():
            plans = _check_state(there, decoding)
            if state == EVALUATION:
                said += plans.sizes_in_words()
                visits.not_tried += plans.refused_in_words()
                visits.remarks += plans.rounded[:1]
                rounds = bool(plans.rounded)
    if not can_reorder(tried, decoding.step):
        visits.not_tried.append("another order of rows in the cache, as in beam search")
    return visits.passed(said)


def _check_state(tried: Subject, decoding: Decoding) -> PlansTried:
    """What the plans show in the state of a subject; CheckFailed if a step is wrong."""
    calm = steady(tried)
    if calm.restored and tried.state.training:
        raise CannotCheck("each call changes the model there, so steps differ from one pass")
    without_graph = replace(calm, state=replace(tried.state, grad=False))
    plans = _try_plans(without_graph, decoding)
    if not all(isfinite(wrong.change) for wrong in plans.wrong):
        own = tried.best is None or tried.state.own_dtype
        if not own:
            raise CannotCheck("outputs are not finite in this precision")
    if plans.wrong:
        raise _failed(without_graph, decoding, plans)
    return plans


def _plans_for(tried: Subject, decoding: Decoding) -> list[StepPlan]:
    """The plans that are tried in the state of a subject."""
    effort = tried.effort
    plans = step_plans(tried.length, max(effort.prefill, tried.prefix))
    every: list[StepPlan] = []
    if not decoding.only_padded:
        every = plans
        if tried.affordable(tried.length) < 64:  # a large model
            every = every[:3]
        every[0] = replace(every[0], sizes=every[0].sizes[: tried.prefix + effort.single_steps])
        plainly = replace(tried.state, own_dtype=False) == EVALUATION
        has_one_plan = not plainly and not effort.every_state
        if tried.state.training or has_one_plan:
            return every[1:2]
        if tried.state == EVALUATION:
            every += plans_of_each_size(min(tried.length, effort.steps_up_to), effort.prompts)
        if can_reorder(tried, decoding.step):
            first = max(effort.prefill // 2, tried.prefix)
            most = max(0, min(effort.steps_reordered, tried.length - first))
            turned = (first,) + (1,) * most
            every.append(StepPlan("rows in another order", turned, turned=True))
    if decoding.padded_step is not None:
        padded = padded_step_plans(plans[1:3], tried.rows)
        every += padded[-effort.plans_padded :]
    return every


def _try_plans(tried: Subject, decoding: Decoding) -> PlansTried:
    """The first wrong step of each plan; CannotCheck if the model refuses them all."""
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
            raise first  # a crash: without padding, steps work
        raise CannotCheck(f"no step with a cache works: {plans.refused_in_words()[0]}")
    return plans


def _failed(tried: Subject, decoding: Decoding, plans: PlansTried) -> CheckFailed:
    """What the wrong steps of the plans have in common."""
    faulty = plans.wrong
    reads = [
        cause_from(partial(_what_is_read, tried, decoding.step_of(wrong.plan), wrong), None)
        for wrong in faulty[:MOST_EXPLAINED]
    ]
    another_row = partial(_reads_another_row, tried, decoding.step, faulty[0])
    rows_mix = cause_from(another_row, unknown=False)
    ways = f"{len(faulty)} of {len(plans.ran)} ways to step"
    return tried.failed(
        f"decoding with the cache gives other outputs than one pass, in {ways}",
        *_some_ways(faulty),
        which_steps_are_wrong(plans.ran, faulty),
        OTHER_ROWS if rows_mix else what_wrong_steps_read([x for x in reads if x is not None]),
    )


def _some_ways(faulty: list[Wrong]) -> list[str]:
    """A line for each of two ways, and how many more there are."""
    lines = [str(wrong) for wrong in faulty[:2]]
    if len(faulty) > 2:
        lines[-1] += f"; {len(faulty) - 2} more"
    return lines


def what_wrong_steps_read(known: list[Reads]) -> str:
    """What one of the wrong steps reads: ahead, more or less than one pass, if one does."""
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
    """Which steps are wrong and which are right, from the first wrong step of each plan."""
    if all(wrong.chance for wrong in faulty):
        return "the same steps give other outputs each time: is dropout on in them?"
    if all(wrong.plan.turned for wrong in faulty):
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
    """(B, sum of the plan's sizes, V) fp64 on the CPU, in steps of these sizes; of a large
    vocabulary, see `compared_columns`."""
    parts = []
    cache = None
    begin = 0
    turned = False
    for size in plan.sizes:
        new = ids[:, begin : begin + size].to(tried.device)
        begin += size
        if plan.turned and cache is not None:
            rows = torch.arange(len(ids) - 1, -1, -1, device=tried.device)
            cache = reordered(cache, rows)
            turned = not turned
        if turned:
            new = new.flip(0)
        if plan.real is None:
            returned, cache = step(tried.model, new, cache)
        else:
            mask = plan.real[:, :begin].long().to(tried.device)
            returned, cache = step(tried.model, new, cache, mask)
        y = compared_columns(outputs_of(returned, tuple(new.shape[:2])))
        parts.append(y.flip(0) if turned else y)
    return torch.cat(parts, 1)


def reordered(cache: tuple[object, int], rows: Tensor) -> tuple[object, int]:
    """The cache of a `CacheStep` with its rows in another order. Some caches change themselves and
    return nothing, others return a new one."""
    own, end = cache
    assert isinstance(own, Reorders)
    new = own.reorder_cache(rows)
    return own if new is None else new, end


def can_reorder(tried: Subject, step: DecodingStep) -> bool:
    """Whether the cache of a model can change the order of its rows."""
    if not isinstance(step, CacheStep) or tried.rows < 2:
        return False
    with tried.evaluating(), torch.no_grad():
        try:
            _, cache = step(tried.model, tried.draw(2, 4).to(tried.device), None)
        except REFUSALS:
            return False
    own, _ = cache
    return isinstance(own, Reorders)


@dataclass(frozen=True)
class Text:
    """Ids (B, T) and their outputs (B, T, V) in a call without a cache."""

    ids: Tensor
    outputs: Tensor


def _text_for(tried: Subject, plan: StepPlan, known: dict[int, Text]) -> Text | None:
    """The text for a plan, which those of the same length share; None if it has padding, for one
    step is then the reference."""
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
    """The first step whose outputs differ from those of one pass, or of one step if padded."""
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
        """(B, T, V), 0 at padding."""
        off = decoded(tried, step, ids, plan) - expected
        return off if plan.real is None else off.where(plan.real[..., None], 0.0)

    def difference(begin: int = 0, end: int | None = None) -> Tensor:
        return off_by(one_pass())[:, begin:end]

    expected = one_pass() if text is None else text.outputs
    size = float(expected.std()) or 1.0
    off = off_by(expected).abs().amax((0, 2)) / size  # (T,)
    ends = list(accumulate(plan.sizes))
    changes = [float(off[e - n : e].max()) for n, e in zip(plan.sizes, ends, strict=True)]
    limit = max(1e-6, tried.tolerance)
    wrong = [n for n, change in enumerate(changes) if not change <= limit]  # not >, for NaN
    if not wrong:
        return None
    finite = all(map(isfinite, changes))
    if finite and not tried.state.training:  # in training mode, chance may be meant
        again = (off_by(expected).abs().amax((0, 2)) / size - off).abs()
        if float(again.max()) > limit:
            number = next(n for n in wrong if changes[n] > 0.1 * max(changes))
            return Wrong(plan, number, changes[number], chance=True)
    if finite and is_rounding(tried, difference):
        if max(changes) > LOSSY:
            rounded.append(
                f"rounding of the cache changes outputs by {max(changes):.1g} of the std"
            )
        return None
    number = wrong[0]
    end = ends[number]
    if finite and is_rounding(tried, partial(difference, end - plan.sizes[number], end)):
        number = next(n for n in wrong if changes[n] > 0.1 * max(changes))
    return Wrong(plan, number, changes[number])


def _what_is_read(tried: Subject, step: AnyStep, wrong: Wrong) -> Reads | None:
    """What the wrong step reads, by changing one input at a time; None if it is not clear."""
    plan = wrong.plan_up_to_it
    if plan.turned or wrong.is_unclear:
        return None
    begin = wrong.begin
    end = begin + wrong.size
    real = None if plan.real is None else plan.real[-1:]  # of the row with padding
    (x,) = tried.draw(1, end)
    places = list(range(end)) if end <= MOST_READ else [*range(16), *range(end - 80, end)]
    one = torch.eye(end, dtype=torch.bool)[places]
    new = torch.where(one.view(len(places), end, *[1] * (x.ndim - 1)), tried.other(x), x)

    def moved(run: Callable[[Tensor], Tensor]) -> Tensor:
        parts = []
        for some in new.split(tried.rows):
            # Beside each other in the same row, for a fault may be one of some rows.
            change = (run(some) - run(x.expand_as(some)))[:, begin:].abs().amax(-1)
            parts.append(change if real is None else change.where(real[:, begin:end], 0.0))
        sizes = torch.cat(parts)  # (N, n)
        reads = torch.zeros(end, end - begin, dtype=torch.float64)
        reads[places] = sizes / (float(sizes.max()) or 1.0)
        return reads

    def stepwise(ids: Tensor) -> Tensor:
        return decoded(tried, step, ids, _for_rows(plan, len(ids)))

    def at_once(ids: Tensor) -> Tensor:
        """In a call without a cache; with padding, in one step of all tokens."""
        if real is None:
            return tried(ids)
        return decoded(tried, step, ids, _for_rows(replace(plan, sizes=(end,)), len(ids)))

    tolerance = min(1e-9 if tried.tolerance < 1e-6 else 1e-5, IS_READ)
    padding = () if real is None else tuple((~real[0, :end]).nonzero().flatten().tolist())
    return Reads(begin, moved(stepwise), moved(at_once), tolerance, padding)


def _for_rows(plan: StepPlan, rows: int) -> StepPlan:
    """A plan for so many rows, all padded as its last one."""
    return plan if plan.real is None else replace(plan, real=plan.real[-1:].expand(rows, -1))


def _reads_another_row(tried: Subject, step: DecodingStep, wrong: Wrong) -> bool:
    """Whether outputs of the wrong step depend on another row of the batch. False also where this
    is not looked at: with one row, turned or padded plans, or a step of chance."""
    plan = wrong.plan_up_to_it
    if tried.rows < 2 or plan.turned or plan.real is not None or wrong.is_unclear:
        return False
    x = tried.draw(2, wrong.begin + wrong.size)
    whole = decoded(tried, step, x, plan)
    limit = max(1e-6, tried.tolerance) * float(whole.std())
    for row in (0, 1):
        new = x.clone()
        new[row] = tried.other(x)[row]
        moved = decoded(tried, step, new, plan)[1 - row] - whole[1 - row]
        if float(moved[wrong.begin :].abs().max()) > limit:
            return True
    return False


def _with_places(tried: Subject, step: CacheStep, remarks: list[str]) -> CacheStep:
    """The step, told where it begins if it is wrong otherwise and right then."""
    takes = arguments_of(tried.model)
    places = [name for name in PLACES if name in takes]
    if not places:
        return step
    prefill = max(tried.effort.prefill, tried.prefix)
    plan = with_prefix_at_once(step_plans(tried.length, prefill)[1], tried.prefix)
    choices = [step]
    for name in places:
        choices += [replace(step, place=name, place_as=kind) for kind in ("number", "row", "rows")]
    with tried.put(EVALUATION) as there, torch.no_grad():
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
