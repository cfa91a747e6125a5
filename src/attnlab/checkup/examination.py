"""The examination of one model: every detector, in order, and what the detectors share."""

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from attnlab.checkup import blackbox, loss_path, serving, stress, whitebox
from attnlab.checkup.attention_calls import AttentionCall
from attnlab.checkup.checkup_report import Report
from attnlab.checkup.dependence import dependence, finite_map
from attnlab.checkup.detectors import DETECTORS, HIDDEN, NO_TIME, SERVED, Meant, lacks
from attnlab.checkup.findings import FAULT, NOT_APPLICABLE, OK, Finding, collect, skipped
from attnlab.checkup.locate import located
from attnlab.checkup.model_adapter import REFUSALS, TARGET_NAMES, ModelAdapter
from attnlab.errors import BadInput, first_line


class Examination:
    """The detectors of one checkup and what they share.

    Args:
        seconds: a time budget; detectors that would begin later are skipped. None for no limit
            on the whole, and a default for each map.
    """

    def __init__(self, adapter: ModelAdapter, meant: Meant, seconds: float | None = None) -> None:
        if seconds is not None and seconds <= 0:
            raise BadInput(f"seconds = {seconds} must be above 0")
        last = adapter.vocab_size - 1
        if meant.separator is not None and not 0 <= meant.separator <= last:
            raise BadInput(f"separator = {meant.separator} must be from 0 to {last}")
        self.adapter = self.precise = adapter  # the second in fp64 if the model runs in it
        self.meant = meant
        self.begin = time.perf_counter()
        self.deadline = math.inf if seconds is None else self.begin + seconds
        self.seconds = 0.8 if seconds is None else seconds / 12  # for one map
        self.lengths = blackbox.accepted_lengths(adapter)
        if not self.lengths:
            raise BadInput("the model ran once and then failed at every length; it must run again")
        self.noisy: ModelAdapter | None = None  # a copy with noise on its weights
        self.changed = 0  # how many tokens of the longest map were changed alone
        self.findings: list[Finding] = []
        self.error = ""  # the traceback if the model raised an error on the way
        self.calls: list[AttentionCall] = []  # recorded in one forward pass
        self.inside: list[Finding] = []  # on these calls
        self.windows: list[int] = []  # of these calls

    @property
    def longest(self) -> int:
        """The longest length of the maps."""
        return self.lengths[0]

    @property
    def recorded(self) -> int:
        """The length at which attention calls were recorded."""
        return self.calls[0].length if self.calls else self.longest

    @property
    def time_for_lengths(self) -> tuple[float, int]:
        """The seconds for sequences beyond the maps, and at how many random positions to cut."""
        return (self.time(10), 16) if self.deadline == math.inf else (self.time(4), self.longest)

    def time(self, shares: float = 1.0) -> float:
        """The seconds for something that may take so many shares of the time."""
        return min(shares * self.seconds, max(self.deadline - time.perf_counter(), 0.01))

    def run(self, *, prove: bool) -> None:
        """Run every detector that applies; an error in the model ends the examination."""
        targets = [] if self.meant.batch is None else [self._batch_targets(*self.meant.batch)]
        self.error = collect(self.findings, self._detectors(prove))
        self.findings += targets

    def report(self, subject: str) -> Report:
        """The report on what has been found so far."""
        seconds, found = time.perf_counter() - self.begin, tuple(self.findings)
        faulty = self.error or any(f.status is FAULT for f in found)
        unseen, severity = () if faulty else tuple(self._unseen()), self.meant.severity
        return Report(subject, self.settings(), found, seconds, self.error, unseen, severity)

    def settings(self) -> dict[str, str]:
        """The sizes, dtypes, lengths, modes and tokens that were looked at."""
        ran = {f.detector: f for f in self.findings if f.status is not NOT_APPLICABLE}
        adapter = self.adapter
        drawn = "uniform" if adapter.text is None else "from the given ids"
        if "tokens" in ran and (count := ran["tokens"].numbers):
            drawn += f"; {count['tried']:.0f} of {count['ids']:.0f} ids tried each"
        dtypes = (str(x.dtype).removeprefix("torch.") for x in (adapter, self.precise))
        windows = ("all" if n == self.recorded else str(n) for n in self.windows)
        settings = {
            "vocab_size": str(adapter.vocab_size),
            "block_size": str(adapter.block_size),
            "lengths": ", ".join(map(str, self.lengths)),
            "copy": adapter.in_place,
            "dtype": ", maps in ".join(dtypes) if adapter.dtype is not None else "unknown",
            "attention calls seen": str(len(self.calls)),
            "windows": ", ".join(windows),
            "modes": "eval and training" if "training mode" in ran else "eval",
            "tokens": drawn,
        }
        return {name: value for name, value in settings.items() if value}

    def examine(self, name: str) -> Finding:
        """Run one detector, unless the model lacks what it needs, refuses it, or time is up."""
        needs, check = DETECTORS[name]
        if lacks(needs, self.precise, self.calls):
            return skipped(name, f"needs {needs}")
        if time.perf_counter() > self.deadline:
            return skipped(name, NO_TIME)
        for model in (self.precise, self.adapter) if name in SERVED else (self.precise,):
            try:
                found = check(self, model)
            except REFUSALS as error:
                reason = f"the model does not support this ({first_line(error, with_class=True)})"
                found = skipped(name, reason)
            if found.status is not NOT_APPLICABLE and not any(
                map(math.isnan, found.numbers.values())
            ):
                break
        return found

    def _detectors(self, prove: bool) -> Iterator[Finding]:
        finite, usable = blackbox.check_finite(self.adapter, self.lengths)
        yield finite
        measurable = self.longest in usable
        if measurable:
            yield from self._how_to_call(usable)
        else:
            reason = f"not examined: logits of {self.longest} tokens are not finite"
            yield skipped("future", reason)
        self.raise_precision()
        self._look_inside()
        if measurable:
            yield from self._outside()
            maps = ("future", "disturbed", "gradient")
            if not any(f.detector in maps and f.status is FAULT for f in self.findings):
                yield from map(self.examine, HIDDEN)
                if self.meant.separator is not None or self.meant.documents is not None:
                    yield self.examine("documents")
            yield self.examine("precision")
            yield from self._training_path()
            if prove:
                yield self.examine("proof")
        yield from self.inside

    def _how_to_call(self, usable: list[int]) -> Iterator[Finding]:
        """Whether logits are random or depend on other rows, which the other detectors avoid."""
        self.lengths = usable
        same = blackbox.check_deterministic(self.adapter, self.longest)
        yield same
        if same.cause in ("dropout_on", "random_in_eval"):
            self.adapter = replace(self.adapter, seeded=True, rows=1)
        rows = blackbox.check_rows_independent(self.adapter, self.longest)
        yield rows
        if rows.cause in ("rows_mix", "batch_time_swapped"):
            self.adapter = replace(self.adapter, rows=1)
        accepted = blackbox.accepted_lengths(self.adapter)  # one row at a time can be refused
        self.lengths = [n for n in accepted if n in usable] or usable

    def raise_precision(self) -> None:
        """Use the model in fp64 if it runs in fp64, where leaks stand out from rounding."""
        self.precise = serving.in_high_precision(self.adapter)

    def _look_inside(self) -> None:
        """Record the attention calls, at a T that no weight has as a size, and examine them."""
        T, sizes = self.precise.block_size, {n for p in self.precise.parameters() for n in p.shape}
        lengths = [n for n in self.lengths if n not in sizes and n > 10]
        if len(self.lengths) > 1:
            lengths = [*(n for n in range(T, 10, -1) if n not in sizes)][:1] + lengths
        self.calls, reason = stress.record(self.precise, dict.fromkeys([*lengths, T]))
        self.windows = whitebox.windows_of(self.calls)
        if reason:
            self.inside = [skipped("inside", reason)]
            return
        self.inside = whitebox.check_calls(self.calls, self.adapter)
        self.inside += whitebox.check_windows(self.calls, self.windows, self.meant.window)

    def _outside(self) -> Iterator[Finding]:
        """Which position reads which, at several lengths, from the logits alone."""
        lengths = self.lengths[:1] + [n for n in self.lengths[1:] if n > 2][1::2]
        # If no attention was recorded, try every common number of layers and heads.
        shapes = [(H, range(1, 9)) for H in (2, 3, 4, 6, 8, 12, 16)]
        if self.calls:
            shapes = [(len(self.calls[0].raw), range(len(self.calls), len(self.calls) + 1))]
        find = partial(located, calls=self.calls, inside=self.inside, T=self.longest)
        maps = [dependence(self.precise, self.longest, rounds=2, seconds=self.time())]
        maps += [dependence(self.precise, T, rounds=1, seconds=self.time()) for T in lengths[1:]]
        self.changed = int(maps[0].tried.sum())
        future = blackbox.check_future(maps, shapes)
        yield find(future, self.precise, seconds=self.time())
        noisy_map = None
        if self.precise.copies:
            self.noisy = stress.disturbed(self.precise)
            noisy_map = finite_map(self.noisy, self.longest, rounds=1, seconds=self.time())
            if noisy_map is None:
                reason = "with noise on its weights the model fails or gives NaN or infinity"
                yield skipped("disturbed", reason)
            elif future.status is OK and bool(noisy_map.ahead.any()):
                found = blackbox.check_future(
                    [noisy_map], shapes, detector="disturbed", state=", with noise on the weights"
                )
                yield find(found, self.noisy, seconds=self.time())
        if future.cause not in ("flipped_mask", "inverted_mask"):  # which imply an unused past
            yield blackbox.check_past(maps[0], noisy_map)
        # In fp32 the fused kernels of training run, whose gradients may differ.
        asked = self.adapter if self.adapter.dtype == torch.float32 else self.precise
        time_left = math.inf if self.deadline == math.inf else self.time()
        yield blackbox.check_gradients(asked, maps[0], time_left)
        yield blackbox.check_prefixes(self.precise, self.lengths)

    def _training_path(self) -> Iterator[Finding]:
        """The shift of the targets in the loss, and without another fault, the gradients."""
        if not self.precise.is_module:
            return
        own = self.meant.batch is None and any(map(self.precise.takes, TARGET_NAMES))
        if self.meant.loss or own:
            yield self.examine("targets")
        yield loss_path.check_tied(self.precise.module)
        if self.noisy and not any(
            f.status is FAULT or f.cause == "head_order" for f in self.findings + self.inside
        ):
            sizes = {call.head_size for call in self.calls if call.queries is not None}
            D = sizes.pop() if len(sizes) == 1 else 0
            yield from loss_path.check_weights(self.noisy, self.meant.loss, D)

    def _batch_targets(self, x: Tensor, y: Tensor) -> Finding:
        """By how much are the targets y of a batch shifted when they reach the loss?"""
        found = loss_path.check_batch(x, y)
        if any(map(self.adapter.takes, TARGET_NAMES)):
            own = partial(loss_path.own_loss, labels=y)
            in_loss = loss_path.measure_shift(self.adapter, own, x)
            found = found if in_loss.status is NOT_APPLICABLE else in_loss
        return found

    def _unseen(self) -> Iterator[str]:
        """What an unknown size or the budget left out."""
        numbers = {f.detector: f.numbers for f in self.findings}
        T, declared = self.longest, self.adapter.declared
        T = max(T, int(numbers.get("lengths", {}).get("positions", 0)))
        if not declared:
            yield f"more than {T:,} positions (the model declares no length; give block_size)"
        elif declared > T:
            yield f"more than {T:,} of {declared:,} positions"
        if self.changed < self.longest:
            yield f"{self.longest - self.changed} of {self.longest} tokens changed alone"
        ids = numbers.get("tokens", {})
        if ids.get("tried", 0) < ids.get("ids", 0):
            yield f"{ids['ids'] - ids['tried']:,.0f} of {ids['ids']:,.0f} token ids"
        if self.meant.window is not None and not self.calls:
            yield "the windows (no attention was recognized)"
        if late := [f.detector for f in self.findings if f.headline == NO_TIME]:
            yield f"what {', '.join(late)} would show (no time was left)"
        if self.adapter.in_place:
            yield f"other weights and training mode ({self.adapter.in_place})"
