"""The loss: which token a logit is compared with, which weights learn. B batch, T time."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from attnlab.checkup.findings import FAULT, SUSPICIOUS, Finding, number_of, passed, skipped
from attnlab.checkup.model_adapter import (
    REFUSALS,
    TARGET_NAMES,
    ModelAdapter,
    hooked,
    parameter_names,
)  # fmt: skip
from attnlab.checkup.outputs import find_logits, tensors_in
from attnlab.errors import BadInput, first_line

Loss = Callable[[nn.Module, Tensor], Tensor]  # the model and ids (B, T) -> the training loss


def check_batch(x: Tensor, y: Tensor) -> Finding:
    """Measure how far the targets are shifted against the inputs.

    A model with this mistake is still causal; it learns to copy a token or to skip one. Negative
    entries, such as -100 for ignored targets, do not count.

    Args:
        x, y: (B, T) int64, inputs and targets as they reach the loss.

    Raises:
        attnlab.errors.BadInput: the shapes differ.
    """
    if x.shape != y.shape or x.ndim != 2:
        shapes = f"inputs {tuple(x.shape)} and targets {tuple(y.shape)}"
        raise BadInput(f"{shapes} must have the same shape (B, T)")
    x, y = x.cpu(), y.cpu()
    shares = {shift: _agreement(x, y, shift) for shift in (-1, 0, 1, 2)}
    numbers = {f"y[t] = x[t{shift:+d}]": share for shift, share in shares.items()}
    best = max(shares, key=lambda shift: shares[shift])
    if shares[1] >= 0.999:
        return passed("targets", "targets are the next tokens", numbers)
    if shares[best] < 0.999:
        headline = "targets are not the inputs shifted by any number from -1 to 2"
        return Finding("targets", SUSPICIOUS, headline, "wrong_targets", numbers)
    cause, headline = {
        -1: ("wrong_targets", "y[t] = x[t-1]: targets are shifted backwards"),
        0: ("not_shifted", "y[t] = x[t]: targets are not shifted, so the model copies its input"),
        2: ("shifted_twice", "y[t] = x[t+2]: targets are shifted twice"),
    }[best]
    return Finding("targets", FAULT, headline, cause, numbers)


def _agreement(x: Tensor, y: Tensor, shift: int) -> float:
    """Share of the targets that equal the input `shift` positions later."""
    T = x.shape[1]
    if abs(shift) >= T:
        return 0.0
    inputs = x[:, max(shift, 0) : T + min(shift, 0)]
    targets = y[:, max(-shift, 0) : T - max(shift, 0)]
    counted = targets >= 0
    return float((inputs == targets)[counted].double().mean()) if counted.any() else 0.0


def own_loss(model: nn.Module, ids: Tensor, labels: Tensor | None = None) -> Tensor:
    """The loss that a model computes itself from labels; None for the ids."""
    names = [name for name in TARGET_NAMES if name in parameter_names(model.forward)]
    if not names:
        raise BadInput("the model takes no labels; give loss, from the model and ids to it")
    output = model(ids, **{names[0]: ids if labels is None else labels.to(ids.device)})
    if isinstance(output, (tuple, list)):
        return next(x for x in output if isinstance(x, Tensor) and x.ndim == 0)
    loss: Tensor = output["loss"] if isinstance(output, dict) else output.loss
    return loss


def check_loss(adapter: ModelAdapter, loss: Loss | None, T: int) -> Finding:
    """By how much are the targets shifted in a loss, or if it is None, in the model's own?"""
    found = measure_shift(adapter, loss or own_loss, adapter.tokens(4, T))
    if loss is not None or found.cause != "not_shifted":
        return found
    headline = "the model does not shift its labels: shift them in the data"
    # Targets, as they are named elsewhere, come shifted; so do the inputs of an encoder's decoder.
    encoded = any(map(adapter.takes, ("encoder_hidden_states", "encoder_outputs")))
    if not adapter.takes("labels") or encoded:
        return passed("targets", headline, found.numbers)
    headline = f"{headline}, as models of transformers shift labels themselves"
    return replace(found, status=SUSPICIOUS, headline=headline)


def measure_shift(adapter: ModelAdapter, loss: Loss, ids: Tensor) -> Finding:
    """Measure by how much the targets of ids (B, T) are shifted, in the loss itself.

    The gradient of a cross entropy by the logits is negative at the target and nowhere else, which
    shows the token that every logit is compared with.
    """
    seen: list[tuple[Tensor, Tensor]] = []

    def keep(_: nn.Module, args: tuple, named: dict[str, object], output: object) -> None:
        given = next(tensors_in([*args, *named.values()]))
        seen.append((given, find_logits(output, tuple(given.shape), adapter.vocab_size)))

    try:
        with hooked([adapter.module], keep), torch.enable_grad():
            value = loss(adapter.module, ids.to(adapter.device))
            if not seen:
                return skipped("targets", "the loss does not call the model that it is given")
            given, logits = seen[-1]
            (slope,) = torch.autograd.grad(value, logits, allow_unused=True)
    except (*REFUSALS, StopIteration) as error:
        reason = first_line(error, with_class=True)
        return skipped("targets", f"the loss cannot be followed ({reason})")
    if slope is None:
        return skipped("targets", "the loss is not computed from the logits the model returns")
    targets = slope.argmin(-1).where(slope.abs().sum(-1) > 0, -100)  # (B, T)
    found = check_batch(given, targets)
    return replace(found, headline=f"measured in the loss: {found.headline}")


def check_weights(adapter: ModelAdapter, loss: Loss | None, head_size: int) -> list[Finding]:
    """Does a gradient reach all weights? The model is a copy with noise, which opens closed gates.

    Args:
        loss: what is differentiated; None for a random projection of the logits, which covers
            only modules that run.
        head_size: D, to recognize one head that gets no gradient; 0 if unknown.
    """
    module = adapter.module
    ran: set[nn.Module] = set()
    module.zero_grad()
    try:
        with hooked(module.modules(), lambda m, *_: ran.add(m)), torch.enable_grad():
            # Some routers learn from few tokens, or in one mode only.
            for training in (True, False, True, False, True, False):
                ids = adapter.tokens(4, adapter.block_size)
                module.train(training)
                if loss is None:
                    logits = adapter.raw(ids)
                    (logits * adapter.random_like(logits)).sum().backward()
                else:
                    loss(module, ids.to(adapter.device)).backward()
    except REFUSALS as error:
        return [skipped("weights", f"no gradients: {first_line(error, with_class=True)}")]
    finally:
        module.eval()
    learning = {
        f"{name}.{n}".lstrip("."): p
        for name, m in module.named_modules()
        if m in ran or loss is not None
        for n, p in m.named_parameters(recurse=False)
        if p.requires_grad
    }
    still = [n for n, p in learning.items() if p.grad is None or not bool(p.grad.any())]
    found = _silent_heads(module, head_size) if head_size >= 4 else []
    if still:
        more = f" and {len(still) - 4} more" if len(still) > 4 else ""
        headline = f"no gradient reaches {', '.join(still[:4])}{more}"
        found.append(Finding("weights", SUSPICIOUS, headline, "no_gradient"))
    return found or [passed("weights", f"a gradient reaches {number_of(len(learning), 'weight')}")]


def _silent_heads(module: nn.Module, D: int) -> list[Finding]:
    """Find weights in which blocks of D rows or columns, those of a head, get no gradient."""
    found = []
    tables = {id(m.weight) for m in module.modules() if isinstance(m, nn.Embedding)}
    for name, p in module.named_parameters():
        if p.grad is None or p.ndim != 2 or id(p) in tables:
            continue
        for side in (p.grad, p.grad.mT):
            if len(side) % D or len(side) == D:
                continue
            silent = (side == 0).all(-1).view(-1, D)  # (blocks, D)
            blocks = silent.all(-1).nonzero().flatten().tolist()
            if not blocks or D * len(blocks) < int(silent.sum()) or len(blocks) == len(silent):
                continue
            which = f"block {', '.join(map(str, blocks))} of {len(silent)}"
            headline = f"{name}: no gradient reaches {which}, each as wide as a head"
            few = 2 * len(blocks) <= len(silent)
            status, cause = (FAULT, "detached_head") if few else (SUSPICIOUS, "no_gradient")
            found.append(Finding("weights", status, headline, cause))
    return found


def check_tied(module: nn.Module) -> Finding:
    """Are weights with the same values as an embedding the same tensor?"""
    tables = [m.weight for m in module.modules() if isinstance(m, nn.Embedding)]
    for name, p in module.named_parameters():
        if all(p is not t for t in tables) and any(torch.equal(p, t) for t in tables):
            headline = f"{name} has the same values as an embedding but is a separate tensor"
            return Finding("tied", SUSPICIOUS, headline, "tied_by_copy")
    return passed("tied", "no weights are copies of an embedding")
