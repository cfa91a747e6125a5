"""Restore weights, buffers, gradients, modes and random states after an examination."""

import copy
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def preserve_state(model: nn.Module | None) -> Iterator[None]:
    """Restore a model, PyTorch's global switches and the random states, also after an error."""
    grad, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
    fastpath = torch.backends.mha.get_fastpath_enabled()
    python = random.getstate()
    numpy = sys.modules["numpy"].random.get_state() if "numpy" in sys.modules else None
    restore = _snapshot(model) if model is not None else None
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        try:
            yield
        finally:
            if restore is not None:
                restore()
            torch.set_grad_enabled(grad)
            torch.set_default_dtype(dtype)
            torch.backends.mha.set_fastpath_enabled(fastpath)
            random.setstate(python)
            if numpy is not None:
                sys.modules["numpy"].random.set_state(numpy)


def working_copy(model: nn.Module) -> tuple[nn.Module, str]:
    """A deep copy and "", or the model itself and the reason why it cannot be copied."""
    try:
        return copy.deepcopy(model), ""
    except (RuntimeError, TypeError, NotImplementedError, AttributeError, RecursionError) as error:
        return model, f"the model cannot be copied ({error}), so it is examined in place"


def _snapshot(model: nn.Module) -> Callable[[], None]:
    """Remember the modes, values and gradients of a model; the result restores them."""
    modes = {module: module.training for module in model.modules()}
    values = [(t, t.detach().clone()) for t in (*model.parameters(), *model.buffers())]
    grads = [
        (p, p.requires_grad, p.grad, None if p.grad is None else p.grad.detach().clone())
        for p in model.parameters()
    ]

    @torch.no_grad()
    def restore() -> None:
        for module, training in modes.items():
            module.training = training
        for p, requires_grad, grad, kept in grads:
            p.requires_grad_(requires_grad)
            p.grad = grad
            if grad is not None and kept is not None:
                values.append((grad, kept))
        for tensor, value in values:
            if not torch.equal(tensor, value):
                tensor.copy_(value)

    return restore
