"""The checkup of a whole model: prepare a copy, examine it, restore everything, report."""

import contextlib
import io
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from attnlab.checkup.examination import Examination
from attnlab.checkup.findings import Report
from attnlab.checkup.model_adapter import ModelAdapter, adapt
from attnlab.checkup.preserve_state import preserve_state, working_copy
from attnlab.checkup.targets import check_batch
from attnlab.errors import BadInput


def checkup(
    model: Callable[..., object],
    *,
    vocab_size: int | None = None,
    block_size: int | None = None,
    prove: bool = False,
    batch: tuple[Tensor, Tensor] | None = None,
    seed: int = 0,
    name: str | None = None,
) -> Report:
    """Examine a model's attention and report what is wrong, where, and how it is known.

    The model is examined in eval mode, and for leaks in training mode too, on a deep copy if it
    can be copied. Its mode, weights, buffers, gradients and the random states are restored.

    Args:
        model: any callable from ids (B, T) int64 to logits (B, T, V), or to an object, a mapping
            or a sequence that holds them; tensors, or arrays of NumPy or JAX.
        vocab_size: V; None if the model or its config has it.
        block_size: the largest T to examine; None if the model or its config has it (at most 256
            positions are then examined, and the report says so).
        prove: also train a copy on uniform random tokens to prove a leak (about a minute).
        batch: inputs and targets (B, T) int64 as used in training, to check their shift.
        seed: of the random tokens.
        name: of the model in the report; its class by default.

    Returns:
        the report. `report.healthy` is False if a fault was found. If the model raised an error
        on the way, `report.error` holds its traceback and the findings are those so far.

    Raises:
        attnlab.errors.BadInput: the model cannot be called as described.
    """
    begin = time.perf_counter()
    owner = _module_of(model)
    with preserve_state(owner), contextlib.redirect_stdout(io.StringIO()):  # models that print
        adapter, notes = _prepare(model, vocab_size, block_size)
        examination = Examination(adapter, torch.Generator().manual_seed(seed))
        error = _run(examination, prove)
    findings, settings = examination.findings, examination.settings | notes
    if batch is not None:
        findings.append(check_batch(*batch))
    title = name if name is not None else type(model if owner is None else owner).__name__
    return Report(title, settings, tuple(findings), time.perf_counter() - begin, error)


def _run(examination: Examination, prove: bool) -> str:
    """Run the detectors; "", or the traceback from the first frame of the user's own code on."""
    try:
        examination.run(prove)
    except BadInput:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        package = Path(__file__).parents[1]
        last = max(i for i, f in enumerate(frames) if package in Path(f.filename).parents)
        lines = traceback.format_list(frames[last + 1 :] or frames)
        return "".join([*lines, *traceback.format_exception_only(error)]).rstrip()
    return ""


def _module_of(model: Callable[..., object]) -> nn.Module | None:
    """The module behind a model: itself, or the owner of a bound method."""
    if isinstance(model, nn.Module):
        return model
    owner = model.__self__ if hasattr(model, "__self__") else None
    return owner if isinstance(owner, nn.Module) else None


def _prepare(
    model: Callable[..., object], vocab_size: int | None, block_size: int | None
) -> tuple[ModelAdapter, dict[str, str]]:
    """Copy the model if possible and find out how to call it; notes for the report."""
    notes: dict[str, str] = {}
    owner = _module_of(model)
    if owner is not None and owner is not model:
        owner.eval()
    if isinstance(model, nn.Module):
        model, reason = working_copy(model)
        model.eval()
        if reason:
            notes["copy"] = reason
    adapter = adapt(model, vocab_size, block_size)
    return replace(adapter, copies=not notes), notes
