"""The checkup of a model or a layer: prepare a copy, examine it, restore everything, report."""

import contextlib
import copy
import io
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from attnlab.checkup.checkup_report import Report
from attnlab.checkup.detectors import Meant
from attnlab.checkup.embedded_layer import Call, EmbeddedLayer
from attnlab.checkup.examination import Examination
from attnlab.checkup.loss_path import Loss
from attnlab.checkup.model_adapter import REFUSALS, Model, ModelAdapter, adapt, hooked
from attnlab.checkup.serving import Documents
from attnlab.errors import first_line


def checkup(
    model: Model,
    *,
    vocab_size: int | None = None,
    block_size: int | None = None,
    ids: Tensor | None = None,
    example: Mapping[str, object] | None = None,
    loss: Loss | None = None,
    batch: tuple[Tensor, Tensor] | None = None,
    window: int | Sequence[int | None] | None = None,
    separator: int | None = None,
    documents: Documents | None = None,
    reset_positions: bool = False,
    padding: str | None = None,
    batch_size: int = 0,
    autocast: torch.dtype | None = None,
    severity: Mapping[str, str] | None = None,
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
        vocab_size: V; by default that of the model or its config.
        block_size: the largest T of the maps; by default the model's up to 256, or 64. Without
            it, the lengths up to the model's are examined by prefixes and suffixes.
        ids: (N, L) int64 real token ids to cut the sequences from; random ids by default.
        example: further inputs by keyword, or all that a tokenizer returns; the first row is used.
        loss: from the model and ids (B, T) to the loss, to check its targets and its gradients.
        batch: inputs and targets (B, T) int64 as used in training, to check their shift.
        window: how many keys a query should attend to, itself included; or one number a layer,
            None for all.
        separator: the id that begins or ends a document, if packed documents should be separate.
        documents: how to call the model with documents; see `assert_documents_separate`.
        reset_positions: whether a packed document should get the logits that it gets alone.
        padding: on which side padding should be ignored, "left" or "right"; by default both.
        batch_size: how many sequences every call must hold, if the model takes only so many.
        autocast: the dtype of torch.autocast, if the model should be called under it.
        severity: "fault", "suspicious" or "ok" by cause, a key of
            `attnlab.checkup.findings.causes()`, instead of the usual one.
        prove: also train a copy on uniform random tokens to prove a leak (about a minute).
        seconds: a time budget; `Report.unseen` says what was not looked at.
        seed: for the random tokens.
        name: the model's name in the report; its class or function by default.

    Returns:
        The report. If the model raises an error on the way, it has the traceback as `error`.

    Raises:
        attnlab.errors.BadInput: the model cannot be called as described.
    """
    meant = Meant(
        window, separator, documents, reset_positions, padding, None, loss, batch, severity or {}
    )
    described = partial(
        adapt, vocab_size=vocab_size, block_size=block_size, ids=ids, example=example, seed=seed,
        batch_size=batch_size, autocast=autocast,
    )  # fmt: skip
    with prepared(model, described) as adapter:
        examination = Examination(adapter, meant, seconds)
        examination.run(prove=prove)
    return examination.report(name or name_of(model))


def checkup_attention(
    layer: nn.Module,
    *,
    n_embd: int | None = None,
    block_size: int = 32,
    call: Call | None = None,
    seed: int = 0,
) -> Report:
    """Examine one layer as `checkup` examines a model.

    Args:
        layer: maps (B, T, C) to (B, T, C), or to a tuple that holds it.
        n_embd: C; by default that of the layer or of its first linear map.
        block_size: the largest T.
        call: how to call the layer if it takes more than x, for example
            `lambda layer, x: layer(x, x, x, attn_mask=mask(x.shape[1]))`.

    Raises:
        attnlab.errors.BadInput: C is unknown, or the layer does not accept such input.
    """
    model = EmbeddedLayer(layer, n_embd, call)
    return checkup(model, block_size=block_size, seed=seed, name=type(layer).__name__)


def _module_of(model: Model) -> nn.Module | None:
    """The module behind a model: itself, or the owner of a bound method."""
    owner = model.__self__ if hasattr(model, "__self__") else model
    return owner if isinstance(owner, nn.Module) else None


def name_of(model: Model) -> str:
    """The name of a function, or of the class of a module."""
    named = _module_of(model) or model
    return str(named.__name__) if hasattr(named, "__name__") else type(named).__name__


@contextlib.contextmanager
def prepared(model: Model, adapt: Callable[[Model], ModelAdapter]) -> Iterator[ModelAdapter]:
    """How to call a copy in eval mode, or the model itself if a copy cannot be trusted.

    All state is restored afterward, and what the model prints is discarded.
    """
    owner = _module_of(model)
    with preserve_state(owner), contextlib.redirect_stdout(io.StringIO()):
        if owner is not None:
            owner.eval()
        if not isinstance(model, nn.Module):
            yield adapt(model)
            return
        try:
            adapter = adapt(copy.deepcopy(model))
            reason = _difference(adapter, model)
        except REFUSALS as error:
            adapter = adapt(model)
            reason = f"the model cannot be copied: {first_line(error)}"
        in_place = f"{reason}, so it is examined in place"
        yield replace(adapter, model=model, in_place=in_place) if reason else adapter


def _difference(adapter: ModelAdapter, model: nn.Module) -> str:
    """How a new copy differs from the model; "" if it computes the same, all by itself.

    A function that closes over a part of the model, for example, keeps that part in the copy.
    """
    ids = adapter.pool[torch.arange(2 * adapter.block_size) % len(adapter.pool)].view(2, -1)
    calls: list[object] = []
    copied = replace(adapter, model=copy.deepcopy(model), seeded=True)
    with hooked(model.modules(), lambda *call: calls.append(call)):
        logits = copied.logits(ids)
    if calls:
        return "a copy of the model still calls the original"
    original = replace(adapter, model=model, seeded=True).logits(ids)
    same = torch.allclose(logits, original, rtol=1e-5, atol=0, equal_nan=True)
    return "" if same else "a copy of the model gives other logits"


@contextlib.contextmanager
def preserve_state(model: nn.Module | None) -> Iterator[None]:
    """Restore a model, PyTorch's global switches and the random states, even after an error."""
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
        mha = torch.backends.mha
        undo.callback(mha.set_fastpath_enabled, mha.get_fastpath_enabled())
        undo.callback(random.setstate, random.getstate())
        if "numpy" in sys.modules:
            numpy_random = sys.modules["numpy"].random
            undo.callback(numpy_random.set_state, numpy_random.get_state())
        yield


@torch.no_grad()
def _restore(tensor: Tensor, value: Tensor) -> None:
    if not torch.equal(tensor, value):
        tensor.copy_(value)
