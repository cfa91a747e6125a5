"""The checkup of a model or a layer: prepare a copy, examine it, restore everything, report."""

import contextlib
import copy
import io
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from attnlab.checkup.examination import Examination
from attnlab.checkup.findings import Report
from attnlab.checkup.loss_path import Loss
from attnlab.checkup.model_adapter import REFUSALS, Model, adapt, size_from
from attnlab.errors import BadInput

Call = Callable[[nn.Module, Tensor], object]
_WIDTH_NAMES = ("n_embd", "embed_dim", "hidden_size", "d_model")


def checkup(
    model: Model,
    *,
    vocab_size: int | None = None,
    block_size: int | None = None,
    ids: Tensor | None = None,
    example: Mapping[str, object] | None = None,
    loss: Loss | None = None,
    batch: tuple[Tensor, Tensor] | None = None,
    prove: bool = False,
    seconds: float | None = None,
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
            positions are then examined, or 4096 with `seconds`, and the report says so), and 64 if
            neither has it.
        ids: (N, L) int64 real token ids; sequences are cut out of them instead of drawn.
        example: further inputs by keyword, such as masks and lengths, with N rows or none; may
            hold the ids too, as a tokenizer returns them. The first row is used.
        loss: from the model and ids (B, T) to the training loss, to find where targets are
            shifted and which weights get no gradient.
        batch: inputs and targets (B, T) int64 as used in training, to check their shift.
        prove: also train a copy on uniform random tokens to prove a leak (about a minute).
        seconds: a budget, which decides how many tokens are changed and how many ids are tried;
            detectors that it leaves no time for are named in the report.
        seed: of the random tokens.
        name: of the model in the report; its class by default.

    Returns:
        the report. `report.healthy` is False if a fault was found. If the model raised an error
        on the way, `report.error` holds its traceback and the findings are those so far.

    Raises:
        attnlab.errors.BadInput: the model cannot be called as described.
    """
    begin = time.perf_counter()
    if seconds is not None and seconds <= 0:
        raise BadInput(f"seconds = {seconds} must be above 0")
    longest = 256 if seconds is None else 4096
    with prepared(model) as (own, in_place):
        adapter = adapt(own, vocab_size, block_size, ids, example, longest, seed)
        examination = Examination(replace(adapter, in_place=in_place), seconds, loss)
        error = _run(examination, prove)
        if batch is not None:
            examination.check_batch(*batch)
    title = name if name is not None else type(_module_of(model) or model).__name__
    seconds = time.perf_counter() - begin
    return Report(title, examination.settings, tuple(examination.findings), seconds, error)


def checkup_attention(
    layer: nn.Module,
    *,
    n_embd: int | None = None,
    block_size: int = 32,
    call: Call | None = None,
    seed: int = 0,
) -> Report:
    """Examine a layer that mixes positions, as `checkup` examines a model.

    Args:
        layer: maps (B, T, C) to (B, T, C), or to a tuple that holds it.
        n_embd: C; None if the layer or its first linear map has it.
        block_size: the largest T.
        call: how to call the layer if it takes more than x, for example
            `lambda layer, x: layer(x, x, x, attn_mask=mask(x.shape[1]))`.

    Raises:
        attnlab.errors.BadInput: C is unknown, or the layer does not accept such input.
    """
    C = n_embd if n_embd is not None else size_from(layer, _WIDTH_NAMES)
    if C is None:
        C = next((m.in_features for m in layer.modules() if isinstance(m, nn.Linear)), None)
    if C is None:
        raise BadInput("the layer has no width that can be read; give n_embd")
    if C < 2:
        raise BadInput(f"n_embd = {C} must be at least 2")
    vocab_size = min(C, 31)
    model = _Embedded(layer, vocab_size, C, call)
    model.train(layer.training)
    return checkup(
        model, vocab_size=vocab_size, block_size=block_size, seed=seed, name=type(layer).__name__
    )


class _Embedded(nn.Module):
    """A layer behind a random embedding, so that it can be examined like a model."""

    def __init__(self, layer: nn.Module, vocab_size: int, C: int, call: Call | None) -> None:
        super().__init__()
        self.layer = layer
        self.call = call
        generator = torch.Generator().manual_seed(0)
        table = torch.randn(vocab_size, C, generator=generator)
        floats = [p for p in layer.parameters() if p.is_floating_point()]
        self.table = nn.Embedding.from_pretrained(table.to(floats[0]) if floats else table)

    def forward(self, ids: Tensor) -> object:
        x = self.table(ids)  # (B, T) -> (B, T, C)
        return self.layer(x) if self.call is None else self.call(self.layer, x)


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


def _module_of(model: Model) -> nn.Module | None:
    """The module behind a model: itself, or the owner of a bound method."""
    if isinstance(model, nn.Module):
        return model
    owner = model.__self__ if hasattr(model, "__self__") else None
    return owner if isinstance(owner, nn.Module) else None


@contextlib.contextmanager
def prepared(model: Model) -> Iterator[tuple[Model, str]]:
    """A copy in eval mode, or the model and why it cannot be copied; restores everything."""
    owner, reason = _module_of(model), ""
    # Some models print.
    with preserve_state(owner), contextlib.redirect_stdout(io.StringIO()):
        if isinstance(model, nn.Module):
            try:
                model = copy.deepcopy(model)
            except REFUSALS as error:
                reason = f"the model cannot be copied ({error}), so it is examined in place"
        examined = _module_of(model)
        if examined is not None:
            examined.eval()
        yield model, reason


@contextlib.contextmanager
def preserve_state(model: nn.Module | None) -> Iterator[None]:
    """Restore a model, PyTorch's global switches and the random states, also after an error."""
    module = nn.Module() if model is None else model
    tensors: list[Tensor] = [*module.parameters(), *module.buffers()]
    tensors += [p.grad for p in module.parameters() if p.grad is not None]
    cards = range(torch.cuda.device_count())
    with torch.random.fork_rng(cards), contextlib.ExitStack() as undo:
        for tensor in tensors:
            undo.callback(_restore, tensor, tensor.detach().clone())
        for p in module.parameters():
            undo.callback(setattr, p, "grad", p.grad)
            undo.callback(p.requires_grad_, p.requires_grad)
        for part in module.modules():
            undo.callback(setattr, part, "training", part.training)
        undo.callback(torch.set_grad_enabled, torch.is_grad_enabled())
        undo.callback(torch.set_default_dtype, torch.get_default_dtype())
        fastpath = torch.backends.mha
        undo.callback(fastpath.set_fastpath_enabled, fastpath.get_fastpath_enabled())
        undo.callback(random.setstate, random.getstate())
        if "numpy" in sys.modules:
            numpy_random = sys.modules["numpy"].random
            undo.callback(numpy_random.set_state, numpy_random.get_state())
        yield


@torch.no_grad()
def _restore(tensor: Tensor, value: Tensor) -> None:
    if not torch.equal(tensor, value):
        tensor.copy_(value)
