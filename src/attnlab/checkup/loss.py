"""Which token does a loss compare each logit with? Letters: B batch, T time, V symbols."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .models import CannotCheck, CheckFailed, floats_of, module_of, state, subject

Loss = Callable[[Any, Tensor], Tensor]  # the model and ids (B, T) -> the training loss
_WRONG = {
    -1: "targets are shifted backwards",
    0: "targets are not shifted, so the model copies its input",
    2: "targets are shifted twice",
}


def assert_loss_shifted(model: Any, loss: Loss, sample: Tensor | None = None, **sizes: Any) -> str:
    """Assert that the loss compares the logits at t with token t + 1.

    The gradient of a cross entropy by the logits is negative at the target and nowhere else. The
    returned sentence also says which tokens other outputs (B, T, V) of the model learn.

    Args:
        loss: from the model and ids to the loss, such as
            `lambda model, ids: model(ids, labels=ids).loss`.
    """
    __tracebackhide__ = True
    tried, module = subject(model, sample, **sizes), module_of(model)
    if module is None:
        raise CannotCheck("the model is not a torch module, so its logits cannot be followed")
    seen: list[tuple[Tensor, dict[str, Tensor]]] = []

    def keep(_: object, args: tuple, named: dict[str, Any], output: object) -> None:
        ids = next(x for x in (*args, *named.values()) if isinstance(x, Tensor))
        seen.append((ids.cpu(), floats_of(output, tuple(ids.shape[:2]))))

    with state(model), torch.enable_grad():
        handle = module.register_forward_hook(keep, with_kwargs=True)
        try:
            value = loss(model, tried.draw(4, tried.length))
        finally:
            handle.remove()
        if not seen:
            raise CannotCheck("the loss does not call the model that it is given")
        ids, outputs = seen[-1]
        told: list[str] = []
        for name, y in outputs.items():
            slope = None
            if y.requires_grad:
                (slope,) = torch.autograd.grad(value, y, retain_graph=True, allow_unused=True)
            if slope is None and not told:
                raise CannotCheck("the loss is not computed from the logits the model returns")
            if slope is not None:
                targets = slope.argmin(-1).where(slope.abs().sum(-1) > 0, -100).cpu()  # (B, T)
                shifts = [n for n in range(-1, 6) if _agreement(ids, targets, n) >= 0.999]
                learns = f"learns the token {shifts[0]} later" if shifts else "is not examined"
                told.append(f"{name} {learns}" if told else assert_targets_shifted(ids, targets))
    return "; ".join(told)


def assert_targets_shifted(x: Tensor, y: Tensor) -> str:
    """Assert that targets y (B, T) are the inputs x one later; negative ones are ignored."""
    __tracebackhide__ = True
    if x.shape != y.shape or x.ndim != 2:
        raise CannotCheck(f"inputs {tuple(x.shape)} and targets {tuple(y.shape)} must be (B, T)")
    shift = next((n for n in (1, 0, 2, -1) if _agreement(x, y, n) >= 0.999), None)
    if shift != 1:
        said = "targets are not the next tokens" if shift is None else _WRONG[shift]
        told = f"y[t] must be x[t + 1]; {_agreement(x, y, 1):.0%} of the targets are"
        raise CheckFailed(said, told, grave=shift != 0)
    return "targets are the next tokens"


def _agreement(x: Tensor, y: Tensor, shift: int) -> float:
    """Share of the targets that equal the input `shift` positions later."""
    at = torch.arange(x.shape[1]) + shift
    same = (x.roll(-shift, 1) == y)[(y >= 0) & (at >= 0) & (at < x.shape[1])]
    return float(same.double().mean()) if same.numel() else 0.0
