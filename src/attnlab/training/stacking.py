"""Stacked runs: one process computes the training steps of many runs together.

Each run has its own thread, Trainer, optimizer, callbacks, loggers and files, as without a stack.
The threads take turns. In each training step a run waits until all runs have a batch; then the
main thread computes all losses and gradients by one `torch.func.vmap`.
"""

import json
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import redirect_stderr, redirect_stdout
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils.data import DataLoader

from attnlab.attention import SelfAttention
from attnlab.attention.kernels import Kernel, Mod
from attnlab.attention.masks import build_mask
from attnlab.errors import BadInput, first_line
from attnlab.runs.run_directory import ONLY_SHOWN, PLACE, flat, is_among
from attnlab.training.lightning_module import Reduction, TaskModule
from attnlab.training.origin import FREE

Ended = Iterator[tuple[Any, Any, Path]]

# Settings in which the runs of a stack may differ, alone or with all keys below them: they act on
# the weights before or after the forward and backward pass, or not at all.
OUTSIDE = (
    *(*PLACE, *ONLY_SHOWN, *FREE, "seed", "optim", "train_loss", "trainer.gradient_clip_val"),
    *("model.init", "model.qk_std", "attn.head_init"),
)
NUMBERS = ("attn.scale", "attn.may_attend", "attn.window")  # used by the kernel only
SECONDS = 10.0  # between lines of progress


class StackedRun(threading.Thread):
    """A run in a thread that computes only during a call of `resume`.

    Args:
        do: does the run, in this thread; called with the task.
        task: which run.
        log: the file for its output.
    """

    def __init__(self, do: Callable[[Any], Any], task: Any, log: Path) -> None:
        super().__init__(daemon=True)  # a second Ctrl-C ends the process at once
        self.do, self.task, self.log, self.stream = do, task, log, log.open("a", buffering=1)
        self.end = Future[Any]()
        self.batch: Sequence[Tensor] = ()
        self.answer: tuple[Tensor, Sequence[Tensor | None]] | Exception | None = None
        self._turn, self._paused = threading.Semaphore(0), threading.Semaphore(0)
        self._stopping = False

    def run(self) -> None:
        """Do the run; called by `start`."""
        try:
            self.end.set_result(self.do(self.task))
        except BaseException as error:
            self.end.set_exception(error)
        self._paused.release()

    def resume(self) -> None:
        """Let the run compute until it waits for other runs or ends."""
        with redirect_stdout(self.stream), redirect_stderr(self.stream):
            self._turn.release() if self.ident else self.start()
            self._paused.acquire()

    def stop(self) -> None:
        """Interrupt the run the next time it waits, and wait until it has ended."""
        with self.stream, redirect_stdout(self.stream), redirect_stderr(self.stream):
            self._stopping = True
            self._turn.release()
            if self.ident:
                self.join()

    def wait_for_stack(self, lit: TaskModule, overrides: Iterable[str]) -> None:
        """Wait until all runs have been checked; called before a run writes anything."""
        self.lit, self.overrides = lit, " ".join(overrides)
        lit.training_loss = self.loss
        self._wait()

    def loss(self, batch: Sequence[Tensor], reduction: Reduction) -> Tensor:
        """The loss () of a batch; its backward pass sets the gradients that the stack computed."""
        self.batch = batch
        self._wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        assert self.answer is not None
        loss: Tensor = _KnownGradients.apply(*self.answer, *self.lit.net.parameters())
        return loss

    def _wait(self) -> None:
        self.answer = None
        if not self._stopping:
            self._paused.release()
            self._turn.acquire()
        if self._stopping and self.answer is None:
            raise SystemExit


class _KnownGradients(torch.autograd.Function):
    """A loss whose gradients are already known."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, gradients: Any, *parameters: Tensor) -> Tensor:
        ctx.gradients = gradients
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return None, None, *(None if g is None else g * grad for g in ctx.gradients)


class _Loss(nn.Module):
    """The loss on a batch, by a copy of a run's model."""

    def __init__(self, lit: TaskModule) -> None:
        super().__init__()
        self.lit = type(lit)(deepcopy(lit.net), lit.corpus, lit.optim, recipe=lit.recipe)

    def forward(self, *batch: Tensor) -> Tensor:
        return self.lit.batch_loss(batch, "mean")


class _StackedKernel(nn.Module):
    """The kernel of K layers, with buffers (K, ...) for scale and mask where they differ."""

    scale: Tensor | None
    mask: Tensor | None

    def __init__(self, kernel: Kernel, layers: Sequence[Any]) -> None:
        super().__init__()
        self.kernel = kernel
        scales = [layer.scale for layer in layers]
        masks = [build_mask(layer.may_attend, layer.block_size) for layer in layers]
        differ = any(mask is not masks[0] for mask in masks)
        exact = torch.tensor(scales, dtype=torch.float64) if len(set(scales)) > 1 else None
        self.register_buffer("scale", exact)
        self.register_buffer("mask", torch.stack(masks) if differ else None)

    def forward(
        self, *qkv: Tensor, mask: Tensor, scale: float, dropout: float, mod: Mod = None
    ) -> Tensor:
        q, k, v = qkv
        if self.scale is not None:  # sdpa takes a number only
            q, scale = q.to(torch.promote_types(q.dtype, torch.float32)) * self.scale, 1.0
        mask = mask if self.mask is None else self.mask
        options: dict[str, Any] = {} if mod is None else {"mod": mod}
        return self.kernel(q, k, v, mask=mask, scale=scale, dropout=dropout, **options)


class Stack:
    """Runs whose losses and gradients are computed together; BadInput if a run cannot be stacked.

    Losses and gradients of one example are first computed in fp64 both ways and compared.
    """

    def __init__(self, runs: Sequence[StackedRun]) -> None:
        # vmap calls PyTorch's fused kernel for CPUs once for each run, and warns of it.
        warnings.filterwarnings("ignore", ".*not yet implemented the batching rule.*")
        self.runs, self.template = runs, _Loss(runs[0].lit)
        self.names = [name for name, _ in self.template.named_parameters()]
        for name, layer in list(self.template.lit.net.named_modules()):
            if isinstance(layer, SelfAttention):
                layers = [run.lit.net.get_submodule(name) for run in runs]
                layer.kernel = _StackedKernel(layer.kernel, layers)
        self.numbers = dict(self.template.named_buffers())
        try:
            self._check()
        except (RuntimeError, ValueError, TypeError, AttributeError) as error:
            raise BadInput(
                f"{runs[0].overrides} cannot be stacked ({first_line(error)}); use another "
                "hydra/launcher"
            ) from error

    def _check(self) -> None:
        for run in self.runs:
            settings = run.lit.recipe["config"]
            unfit = {
                "model.dropout": settings["model"].get("dropout"),
                "compile=true": settings["compile"],
                "logger=wandb": "WandbLogger" in str(settings["logger"]),  # one a process
                "a buffer in a layer": list(run.lit.net.buffers()),
            }
            for name, there in unfit.items():
                if there:
                    raise ValueError(f"{name} is not supported")
        alone = [_Loss(run.lit).double() for run in self.runs]
        loaders = [DataLoader(run.lit.batches(1, 0, 0, 1), batch_size=None) for run in self.runs]
        batches = [[x[:1] for x in next(iter(loader))] for loader in loaders]
        stacked = self._compute(self.runs, alone, batches)
        for module, batch, (loss, gradients) in zip(alone, batches, stacked, strict=True):
            expected = module(*batch)
            found = torch.autograd.grad(expected, list(module.parameters()), allow_unused=True)
            for a, b in zip([expected, *found], [loss, *gradients], strict=True):
                if not (a is b if a is None or b is None else a.allclose(b, 1e-6, 1e-9, True)):
                    raise ValueError("its loss or its gradients differ from those of a run alone")

    def step(self, runs: Sequence[StackedRun]) -> None:
        """Compute the losses and gradients of runs that wait with a batch."""
        nets, batches = [run.lit.net for run in runs], [run.batch for run in runs]
        answers: Sequence[Any]
        try:
            with runs[0].lit.trainer.precision_plugin.forward_context():
                answers = self._compute(runs, nets, batches)
        except Exception as error:  # out of memory, for example
            answers = [error] * len(runs)
        for run, answer in zip(runs, answers, strict=True):
            run.answer = answer

    def _compute(
        self, runs: Sequence[StackedRun], nets: Sequence[nn.Module], batches: Sequence[Any]
    ) -> Sequence[tuple[Tensor, Sequence[Tensor | None]]]:
        """The loss of each run and its gradients, at the weights of its model here."""
        weights = zip(*(net.parameters() for net in nets), strict=True)
        stacks = [torch.stack(part).detach().requires_grad_() for part in weights]
        batch = tuple(torch.stack(part) for part in zip(*batches, strict=True))
        rows = [self.runs.index(run) for run in runs]
        device, dtype = batch[0].device, torch.promote_types(stacks[0].dtype, torch.float32)
        self.numbers = {
            name: x.to(device, dtype if x.is_floating_point() else None)
            for name, x in self.numbers.items()
        }
        values = dict(zip(self.names, stacks, strict=True))
        values |= {name: x[rows] for name, x in self.numbers.items()}
        losses = vmap(partial(functional_call, self.template))(values, batch)
        found = torch.autograd.grad(losses.sum(), stacks, allow_unused=True)
        split = [[None] * len(runs) if g is None else g.unbind() for g in found]
        return list(zip(losses.detach().unbind(), zip(*split, strict=True), strict=True))


def run_stacked(do: Callable[[Any], Any], tasks: Sequence[Any], logs: Path) -> Ended:
    """Call a function that trains a run for each task, in one stack after the other; the models of
    a stack have the same form.

    Yields each task when it ends, what the function returned, and its log in `logs`. Raises
    BadInput, before any run starts, if one cannot be stacked.
    """
    logs.mkdir(parents=True, exist_ok=True)
    runs = [StackedRun(do, task, logs / f"run-{n}.log") for n, task in enumerate(tasks)]

    def resume(those: Sequence[StackedRun]) -> Ended:
        for run in those:
            run.resume()
            if run.end.done():
                yield run.task, run.end.result(), run.log

    try:
        yield from resume(runs)
        stacks = [Stack(those) for those in _grouped(run for run in runs if not run.end.done())]
        due = time.monotonic() + SECONDS
        for number, stack in enumerate(stacks, start=1):
            print(f"stack {number} of {len(stacks)}: {len(stack.runs)} runs", flush=True)
            yield from resume(stack.runs)
            while waiting := [run for run in stack.runs if not run.end.done()]:
                stack.step(waiting)
                if time.monotonic() > due:
                    trainer, due = waiting[0].lit.trainer, time.monotonic() + SECONDS
                    print(f"step {trainer.global_step} of {trainer.max_steps}", flush=True)
                yield from resume(waiting)
    finally:
        for run in runs:
            run.stop()


def _grouped(runs: Iterable[StackedRun]) -> Iterable[Sequence[StackedRun]]:
    """The runs whose models have the same form."""
    groups: dict[str, list[StackedRun]] = {}
    for run in runs:
        forwards = (type(module).forward for module in run.lit.net.modules())
        free = (*OUTSIDE, *(NUMBERS if SelfAttention.forward in forwards else ()))
        settings = flat(run.lit.recipe["config"])
        kept = {key: x for key, x in settings.items() if not is_among(key, free)}
        groups.setdefault(json.dumps(kept, sort_keys=True), []).append(run)
    return groups.values()
