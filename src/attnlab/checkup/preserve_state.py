"""Restore weights, buffers, gradients, modes and random states after an examination."""

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
    restore = _snapshot(nn.Module() if model is None else model)
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        try:
            yield
        finally:
            restore()
            torch.set_grad_enabled(grad)
            torch.set_default_dtype(dtype)
            torch.backends.mha.set_fastpath_enabled(fastpath)
            random.setstate(python)
            if numpy is not None:
                sys.modules["numpy"].random.set_state(numpy)


def _snapshot(model: nn.Module) -> Callable[[], None]:
    """Remember the modes, values and gradients of a model; the result restores them."""
    modes = {module: module.training for module in model.modules()}
    values = [(t, t.detach().clone()) for t in (*model.parameters(), *model.buffers())]
    grads = [(p, p.requires_grad, p.grad) for p in model.parameters()]
    values += [(grad, grad.detach().clone()) for _, _, grad in grads if grad is not None]

    @torch.no_grad()
    def restore() -> None:
        for module, training in modes.items():
            module.training = training
        for p, requires_grad, grad in grads:
            p.requires_grad_(requires_grad)
            p.grad = grad
        for tensor, value in values:
            if not torch.equal(tensor, value):
                tensor.copy_(value)

    return restore
