"""Restore weights, buffers, gradients, modes and random states after an examination."""

import copy
import random
import sys
from collections.abc import Iterator
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
    snapshot = _Snapshot(model) if model is not None else None
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        try:
            yield
        finally:
            if snapshot is not None:
                snapshot.restore()
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


class _Snapshot:
    """The values, gradients and flags of one model."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.training = {module: module.training for module in model.modules()}
        self.tensors = [(t, t.detach().clone()) for t in (*model.parameters(), *model.buffers())]
        self.parameters = [
            (p, p.requires_grad, p.grad, None if p.grad is None else p.grad.detach().clone())
            for p in model.parameters()
        ]

    @torch.no_grad()
    def restore(self) -> None:
        for module, training in self.training.items():
            module.training = training
        for tensor, value in self.tensors:
            if not torch.equal(tensor, value):
                tensor.copy_(value)
        for parameter, requires_grad, grad, kept in self.parameters:
            parameter.requires_grad_(requires_grad)
            parameter.grad = grad
            if grad is not None and kept is not None and not torch.equal(grad, kept):
                grad.copy_(kept)
