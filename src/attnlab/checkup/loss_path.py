"""The path of training: which token each logit is compared with, and which weights learn.

Letters: B batch, T time, V symbols, D channels of a head.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from attnlab.checkup.findings import FAULT, NOT_APPLICABLE, OK, SUSPICIOUS, Finding
from attnlab.checkup.model_adapter import REFUSALS, ModelAdapter, find_logits, hooked, tensors_in
from attnlab.checkup.targets import check_batch
from attnlab.errors import BadInput, first_line

Loss = Callable[[nn.Module, Tensor], Tensor]  # the model and ids (B, T) -> the training loss


def labeled_loss(labels: Tensor | None) -> Loss:
    """The loss that a model computes itself from labels, which are the ids if None."""

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        output = model(ids, labels=ids if labels is None else labels.to(ids.device))
        value: Tensor = output["loss"] if isinstance(output, dict) else output.loss
        return value

    return loss


def check_loss(
    adapter: ModelAdapter, loss: Loss, ids: Tensor, *, shifts_in_data: bool = False
) -> Finding:
    """Measure by how much the targets are shifted, in the loss itself.

    The gradient of a cross entropy by the logits is negative at the target and nowhere else, which
    shows the token that every logit is compared with.

    Args:
        ids: (B, T) random ids.
        shifts_in_data: whether the data may be shifted instead, so that no shift is no fault.
    """
    module = adapter.module
    assert module is not None
    seen: list[tuple[Tensor, Tensor]] = []

    def keep(_: nn.Module, args: tuple, named: dict[str, object], output: object) -> None:
        given = next(x for value in (*args, *named.values()) for x in tensors_in(value))
        logits = find_logits(output, tuple(given.shape), adapter.vocab_size)
        seen.append((given, logits))

    try:
        with hooked([module], keep), torch.enable_grad():
            value = loss(module, ids.to(adapter.device))
            given, logits = seen[-1]
            (slope,) = torch.autograd.grad(value, logits, allow_unused=True)
    except (*REFUSALS, BadInput, StopIteration) as error:
        headline = f"the loss cannot be followed ({first_line(error, with_class=True)})"
        return Finding("targets", NOT_APPLICABLE, headline)
    if slope is None:
        headline = "the loss is not computed from the logits that the model returns"
        return Finding("targets", NOT_APPLICABLE, headline)
    targets = slope.argmin(-1).where(slope.abs().sum(-1) > 0, -100)  # (B, T)
    found = check_batch(given.cpu(), targets.cpu())
    if found.cause == "not_shifted" and shifts_in_data:
        headline = (
            "the model compares labels with logits at the same place: shift them in the data"
        )
        return Finding("targets", OK, headline, "", found.numbers)
    return replace(found, headline=f"measured in the loss: {found.headline}")


def weights(
    adapter: ModelAdapter, generator: torch.Generator, loss: Loss | None, head_size: int
) -> list[Finding]:
    """Does a gradient reach all weights?

    Args:
        adapter: a copy with noise on its weights, which opens gates that start at 0.
        loss: what is differentiated; None for a random projection of the logits, which asks about
            modules that run only.
        head_size: D, to recognize one head that gets no gradient; 0 if unknown.
    """
    module = adapter.module
    assert module is not None
    ran: set[nn.Module] = set()
    module.zero_grad()
    try:
        with hooked(module.modules(), lambda m, *_: ran.add(m)), torch.enable_grad():
            for training in (
                True,
                False,
            ) * 3:  # routers learn from few tokens, or in one mode only
                ids = adapter.tokens(generator, 4, adapter.block_size)
                module.train(training)
                if loss is None:
                    logits = adapter.raw(ids)
                    random = torch.randn(logits.shape, generator=generator).to(logits)
                    (logits * random).sum().backward()
                else:
                    loss(module, ids.to(adapter.device)).backward()
    except REFUSALS as error:
        headline = f"no gradient can be computed ({first_line(error, with_class=True)})"
        return [Finding("weights", NOT_APPLICABLE, headline)]
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
    ok = f"a gradient reaches all {len(learning)} parameters"
    return found or [Finding("weights", OK, ok)]


def _silent_heads(module: nn.Module, D: int) -> list[Finding]:
    """Linear maps of which blocks of D rows or columns, those of a head, get no gradient."""
    found = []
    linear = {n: m.weight.grad for n, m in module.named_modules() if isinstance(m, nn.Linear)}
    for name, grad in linear.items():
        for side in () if grad is None else (grad, grad.mT):
            if len(side) % D or len(side) == D:
                continue
            silent = (side == 0).all(-1).view(-1, D)  # (blocks, D)
            blocks = silent.all(-1).nonzero().flatten().tolist()
            if not blocks or D * len(blocks) < int(silent.sum()):
                continue
            few = 2 * len(blocks) < len(silent)
            status, cause = (FAULT, "detached_head") if few else (SUSPICIOUS, "no_gradient")
            which = f"block {', '.join(map(str, blocks))} of {len(silent)}, each a head wide"
            headline = f"{name}: no gradient reaches {which}"
            found.append(Finding("weights", status, headline, cause))
    return found


def tied(module: nn.Module) -> Finding:
    """Are weights that have the values of an embedding the same tensor?"""
    tables = [m.weight for m in module.modules() if isinstance(m, nn.Embedding)]
    for name, p in module.named_parameters():
        if all(p is not t for t in tables) and any(torch.equal(p, t) for t in tables):
            headline = f"{name} equals an embedding in value but is another tensor"
            return Finding("tied", SUSPICIOUS, headline, "tied_by_copy")
    return Finding("tied", OK, "no weights are copies of an embedding")
