"""Which token does a loss compare each logit with, and which does it ignore?

Letters: B batch, T time, V symbols.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import isfinite

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from .calls import TARGETS, Model, Own, arguments_of, floats_of, loss_of, module_of, plainly
from .outcomes import (
    REFUSALS,
    CannotCheck,
    CheckFailed,
    Passed,
    as_assertion,
    in_one_line,
)
from .states import TRAINING, State, seed_all
from .subject import Sizes, Subject, prepared, relative
from .visits import Visits

Loss = Callable[[Own, Tensor], Tensor]  # the model and ids (B, T) -> the training loss
LabeledLoss = Callable[[Own, Tensor, Tensor], Tensor]  # the same with labels (B, T)
WITH_GRADIENTS = State(grad=True)
LOSS_MODES = (WITH_GRADIENTS, TRAINING)
IGNORED_LABEL = -100
READ = 1e-3  # of the standard deviation, by which labels may move logits
NEXT_TOKENS = "targets are the next tokens"
# Wrong shifts of the targets, of which 1 is right, and what they make of a model.
_WRONG_SHIFTS = {
    0: "targets are not shifted, so the model copies its input",
    2: "targets are shifted twice, so the model skips a token",
    -1: "targets are shifted backwards, so the model learns the token before",
}


def labels_argument(tried: Subject) -> str:
    """The name of the argument that takes the targets of a loss; CannotCheck if there is none."""
    takes = arguments_of(tried.model)
    for name in ("labels", *TARGETS):
        if name in takes:
            return name
    raise CannotCheck("the model takes no labels; give loss")


def labeled_loss(tried: Subject) -> LabeledLoss:
    """The loss that a model returns if it gets labels."""
    name = labels_argument(tried)

    def loss(model: Model, ids: Tensor, labels: Tensor) -> Tensor:
        return loss_of(plainly(model, ids, **{name: labels}))

    return loss


# ---- which token is compared


@as_assertion
def assert_loss_shifted(
    model: Model,
    loss: Loss | None = None,
    sample: Tensor | None = None,
    **sizes: Unpack[Sizes],
) -> str:
    """Assert that the loss compares the logits at t with token t + 1, in both modes.

    The gradient of a cross entropy by the logits is negative at the target and nowhere else. The
    returned sentence also says which tokens other outputs (B, T, V) of the model learn.

    Args:
        loss: from the model and ids to the loss, such as
            `lambda model, ids: model(ids, labels=ids).loss`; by default the one that the model
            returns if it gets `labels`.
    """
    return str(check_loss_shifted(prepared(model, sample, **sizes), loss))


def check_loss_shifted(tried: Subject, loss: Loss | None = None) -> Passed:
    """The loss compares logits with the next tokens, see `assert_loss_shifted`."""
    if module_of(tried.model) is None:
        raise CannotCheck("the model is not a torch module, so its logits cannot be followed")
    if tried.prefix >= tried.length:
        raise CannotCheck("what reads all inputs need not learn the next ones; give loss")
    labeled = labeled_loss(tried) if loss is None else None
    targets_of = _ways_to_learn(tried, loss, labeled)
    told: list[str] = []
    visits = Visits(tried, "a loss ")
    for state in visits.through(LOSS_MODES):
        with visits.visit(state) as there:
            said = targets_of(there)
            told = told or said
            if labeled is not None:
                _require_labels_unread(there, labeled)
    return visits.passed("; ".join(told))


def _ways_to_learn(
    tried: Subject, loss: Loss | None, labeled: LabeledLoss | None
) -> Callable[[Subject], list[str]]:
    """What says which targets the logits learn in a state: of the user's loss, of labels that are
    the ids, or of targets that may come shifted."""
    if loss is not None:
        return partial(_targets_of, loss=loss, ids_are_labels=False)
    assert labeled is not None
    name = labels_argument(tried)
    if name != "labels":
        return partial(_given_targets, loss=labeled, name=name)

    def of_ids(model: Model, ids: Tensor) -> Tensor:
        return labeled(model, ids, ids)

    return partial(_targets_of, loss=of_ids, ids_are_labels=True)


def _require_labels_unread(tried: Subject, labeled: LabeledLoss) -> None:
    """CheckFailed if logits depend on the last label, with which one of them is compared."""
    ids = tried.draw(tried.batch(1), tried.usual_length)
    labels = tried.other(ids)
    others = torch.cat([labels[:, :-1], tried.other(labels)[:, -1:]], 1)
    logits = _logits_beside(tried, labeled, ids, labels)
    change = relative(_logits_beside(tried, labeled, ids, others), logits)
    if change > READ:
        raise tried.failed(
            f"logits depend on the labels, by {change:.2g} of their std",
            "labels belong in the loss alone: a model that reads them need not predict them",
        )


def _logits_beside(tried: Subject, labeled: LabeledLoss, ids: Tensor, labels: Tensor) -> Tensor:
    """The logits (B, T, V) that a model returns beside the loss of labels (B, T)."""

    def of(model: Model, x: Tensor) -> Tensor:
        return labeled(model, ids.to(x.device), labels.to(x.device))

    seed_all(0, tried.device)
    _, outputs, _ = _followed(tried, of)
    return next(iter(outputs.values())).detach()


def _targets_of(tried: Subject, loss: Loss, *, ids_are_labels: bool) -> list[str]:
    """What each output of the model learns, the logits first; CheckFailed if the logits do not
    learn the next token."""
    ids, outputs, value = _followed(tried, loss)
    (_, logits), *others = outputs.items()
    slope_of_logits = _slope_by_logits(value, logits)
    if slope_of_logits is None:
        raise CannotCheck("the loss is not computed from the logits the model returns")
    if not bool(value.isfinite() and slope_of_logits.isfinite().all()):
        raise tried.failed("the loss, or its slope by the logits, is NaN or infinite")
    shift = _shift_of(ids, _lowest(slope_of_logits))
    if shift == 0 and ids_are_labels and "encoder_hidden_states" in arguments_of(tried.model):
        raise CannotCheck("the labels of a decoder beside an encoder come shifted; give loss")
    if shift != 1:
        may_be_meant = shift == 0 and not tried.state.training
        look = "the logits at t must be compared with token t + 1"
        if may_be_meant and ids_are_labels:
            look += ", unless the caller shifts the labels"
        raise tried.failed(_shift_in_words(shift), look, grave=not may_be_meant)
    if ids_are_labels:
        _require_end_ignored(tried, ids, slope_of_logits)
    told = [NEXT_TOKENS]
    for name, y in others:
        slope = _slope_by_logits(value, y)
        if slope is None:
            continue
        shifts = [n for n in range(-1, 6) if _agreement(ids, _lowest(slope), n) >= 0.999]
        learns = f"learns the token {shifts[0]} later" if shifts else "is not examined"
        told.append(f"{name} {learns}")
    _require_one_softmax(tried, value, logits, slope_of_logits)
    return told


def _slope_by_logits(value: Tensor, logits: Tensor) -> Tensor | None:
    """The slope of a loss by logits (B, T, V); None if it depends on none of them."""
    if not (logits.requires_grad and value.requires_grad):
        return None
    (slope,) = torch.autograd.grad(value, logits, retain_graph=True, allow_unused=True)
    return slope


def _lowest(slope: Tensor) -> Tensor:
    """(B, T) the tokens that a loss makes likelier, from its slope by logits (B, T, V); -100 where
    that is 0."""
    return slope.argmin(-1).where(slope.abs().sum(-1) > 0, IGNORED_LABEL).cpu()


def _learned_token(slope: Tensor) -> int | None:
    """The token that a cross entropy makes likelier, from its slope by the logits (V,) of one
    position; None if there is no slope, or that of something else, such as a penalty on large
    logits: that of a cross entropy sums to 0."""
    size = float(slope.abs().sum())
    if not size or abs(float(slope.sum())) > 0.1 * size:
        return None
    return int(slope.argmin())


def label_weights(logits: Tensor, slope: Tensor) -> Tensor | None:
    """(B, T) the weight w of each position in a cross entropy, from its slope by the logits
    (B, T, V); None if it is no plain cross entropy.

    The slope of a cross entropy is w (softmax(logits) - one_hot(label)).
    """
    slope = slope.double()
    probabilities = logits.detach().double().softmax(-1)
    learned = nn.functional.one_hot(slope.argmin(-1), slope.shape[-1])
    usual = probabilities - learned
    weights = (slope * usual).sum(-1) / usual.square().sum(-1).clamp_min(1e-30)
    rest = (slope - weights[..., None] * usual).abs().sum(-1)
    if bool((rest > 0.01 * slope.abs().sum(-1)).any()):
        return None
    return weights.cpu()


def _require_end_ignored(tried: Subject, ids: Tensor, slope: Tensor) -> None:
    """CheckFailed if the last position learns a token, though none follows."""
    learned = _learned_token(slope[0, -1])
    if learned is None:
        return
    token = "the first token of its row" if learned == int(ids[0, 0]) else f"token {learned}"
    raise tried.failed(
        f"the last position learns {token}, though none follows",
        "after torch.roll, the last target must be -100",
    )


def _require_one_softmax(tried: Subject, value: Tensor, logits: Tensor, slope: Tensor) -> None:
    """CheckFailed if a loss is the mean cross entropy of a softmax of the logits (B, T, V)."""
    learned = _lowest(slope).flatten().to(logits.device)
    cross_entropy = nn.functional.cross_entropy
    given = float(value.detach())
    once = float(cross_entropy(logits.detach().flatten(0, 1), learned))
    with torch.enable_grad():
        again = logits.detach().flatten(0, 1).requires_grad_()
        twice = cross_entropy(again.softmax(-1), learned)
        (slope_of_twice,) = torch.autograd.grad(twice, again)
    of_twice = float(twice.detach())
    same_value = abs(given - of_twice) <= 1e-4 * abs(of_twice) < abs(given - once)
    # Of small logits both values are log V, and another small term of the loss decides which is
    # nearer. Their slopes differ by a factor of V.
    rest = (slope.flatten(0, 1).to(again.device) - slope_of_twice).norm()
    if same_value and bool(rest <= 0.01 * slope_of_twice.norm()):
        raise tried.failed(
            "the loss is the cross entropy of softmax(logits), so the softmax is applied twice",
            "give the logits to the cross entropy",
        )


def _followed(tried: Subject, loss: Loss) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """The ids that a loss gives to the model, the outputs of the model for them, and the loss."""
    module = module_of(tried.model)
    assert module is not None
    seen: list[tuple[Tensor, dict[str, Tensor]]] = []

    def keep(_: object, args: tuple, named: dict[str, object], output: object) -> None:
        ids = next(x for x in (*args, *named.values()) if isinstance(x, Tensor))
        seen.append((ids.cpu(), floats_of(output, tuple(ids.shape[:2]))))

    rows = min(4, tried.rows, max(1, tried.affordable(tried.length, 0.25)))
    ids = tried.draw(tried.rows if tried.exact else rows, tried.usual_length)
    handle = module.register_forward_hook(keep, with_kwargs=True)
    try:
        with torch.enable_grad(), tried.repeatable():
            value = loss(tried.model, ids.to(tried.device))
    finally:
        handle.remove()
    if not seen:
        raise CannotCheck("the loss does not call the model that it is given")
    return seen[-1][0], seen[-1][1], value


def _given_targets(tried: Subject, loss: LabeledLoss, name: str) -> list[str]:
    """Which token the logits at t are compared with, of a model that may want shifted targets."""
    seen: list[Tensor] = []

    def with_others(model: Model, x: Tensor) -> Tensor:
        targets = tried.other(x.cpu())
        seen.append(targets)
        return loss(model, x, targets.to(x.device))

    _, outputs, value = _followed(tried, with_others)
    y = next(iter(outputs.values()))
    slope = _slope_by_logits(value, y)
    if slope is None:
        raise CannotCheck("the loss is not computed from the logits the model returns")
    lowest = _lowest(slope)
    shifts = [n for n in range(-1, 4) if _agreement(seen[-1], lowest, n) >= 0.999]
    if not shifts:
        raise tried.failed(
            f"the logits at t are compared with none of {name}",
            "look for a view that exchanges time and vocabulary, or for a loss of other logits",
            grave=False,
        )
    _require_one_softmax(tried, value, y, slope)
    if shifts[0] == 1:
        _require_end_ignored(tried, seen[-1], slope)
    if shifts[0] in (0, 1):
        when = "so give the next tokens" if shifts[0] == 0 else "so give the ids themselves"
        place = "t" if shifts[0] == 0 else "t + 1"
        return [f"the logits at t are compared with {name} at {place}, {when}"]
    said = f"the logits at t are compared with {name} at t + {shifts[0]}"
    raise tried.failed(said.replace("+ -", "- "), grave=False)


def _shift_of(x: Tensor, y: Tensor) -> int | None:
    """The shift of targets y (B, T), which hold the inputs x (B, T) so many positions later: 1 or
    one of the wrong ones; None if y is none of them."""
    for shift in (1, *_WRONG_SHIFTS):
        if _agreement(x, y, shift) >= 0.999:
            return shift
    return None


def _shift_in_words(shift: int | None) -> str:
    return "targets are not the next tokens" if shift is None else _WRONG_SHIFTS[shift]


def _agreement(x: Tensor, y: Tensor, shift: int) -> float:
    """Share of the targets that equal the input `shift` positions later."""
    at = torch.arange(x.shape[1]) + shift
    same = (x.roll(-shift, 1) == y)[(y >= 0) & (at >= 0) & (at < x.shape[1])]
    return float(same.double().mean()) if same.numel() else 0.0


# ---- which labels are ignored


@as_assertion
def assert_labels_ignored(
    model: Model,
    loss: LabeledLoss | None = None,
    sample: Tensor | None = None,
    *,
    ignored: int = IGNORED_LABEL,
    **sizes: Unpack[Sizes],
) -> str:
    """Assert that labels of -100 count neither in the loss nor in its gradient, in both modes.

    The loss of all labels must be the mean of those of two parts of them, weighted by their
    number, where the labels of the other part are -100.

    Args:
        loss: from the model, ids and labels to the loss, such as
            `lambda model, ids, labels: model(ids, labels=labels).loss`; by default the one that
            the model returns if it gets `labels` or `targets`.
        ignored: the label that is ignored.
    """
    return str(check_labels_ignored(prepared(model, sample, **sizes), loss, ignored))


def check_labels_ignored(
    tried: Subject, loss: LabeledLoss | None = None, ignored: int = IGNORED_LABEL
) -> Passed:
    """Labels of -100 are ignored, see `assert_labels_ignored`."""
    if loss is None:
        loss = labeled_loss(tried)
        if (
            ignored == IGNORED_LABEL
            and not _takes(tried, loss, IGNORED_LABEL)
            and _takes(tried, loss, -1)
        ):
            ignored = -1  # as in nanoGPT
    said = f"labels of {ignored} count neither in the loss nor in its gradient"
    visits = Visits(tried, f"labels of {ignored} ")
    try:
        for state in visits.through(LOSS_MODES):
            with visits.visit(state) as there:
                said = _labels(there, loss, ignored) or said
    except REFUSALS as error:
        if isinstance(error, CheckFailed):
            raise
        raise CannotCheck(f"labels of {ignored} are refused: {in_one_line(error)}") from error
    return visits.passed(said)


def _takes(tried: Subject, loss: LabeledLoss, ignored: int) -> bool:
    """Whether the model takes a label."""
    with tried.put(WITH_GRADIENTS) as there:
        ids = there.draw(1, there.fitting(24))
        labels = ids.clone()
        labels[:, :4] = ignored
        try:
            _loss_of_text(there, loss, ids, labels)
        except REFUSALS:
            return False
    return True


def _labels(tried: Subject, loss: LabeledLoss, ignored: int) -> str:
    """CheckFailed if ignored labels count; a sentence if the loss is a sum, or ""."""
    tried = replace(tried, seeded=True)
    T = tried.fitting(tried.effort.labeled)
    ids = tried.draw(1, T)
    labels = ids.clone()
    # A loss that shifts its labels does not use the first, and some treat those at the ends as
    # others.
    first, end = (3, T - 2) if T >= 12 else (1, T)
    border = first + max(1, (end - first) // 3)
    at = torch.arange(T)
    early = (at >= first) & (at < border)
    late = (at >= border) & (at < end)
    labels = labels.where(early | late, ignored)

    def of(part: Tensor, rows: int = 1) -> float:
        return float(_loss_of_text(tried, loss, ids, labels.where(part, ignored), rows).detach())

    both = of(early | late)
    a = of(early)
    if tried.state.own_dtype:  # whose rounding hides the rest
        if not isfinite(a):
            raise tried.failed(f"beside labels of {ignored}, the loss is NaN or infinite")
        return ""
    b = of(late)
    n_a = int(early.sum())
    n_b = int(late.sum())
    spread = abs(a) + abs(b) + abs(both) + 1e-12

    def is_mean_of_parts(share: float) -> bool:
        """Whether the loss of all is the mean of both, of which the first counts by a share."""
        return abs(share * a + (1 - share) * b - both) <= 1e-4 * spread

    is_mean = is_mean_of_parts(n_a / (n_a + n_b))
    if not is_mean:  # some labels may count more than others
        share = _share_by_slope(tried, loss, ids, labels, labels.where(early, ignored))
        is_mean = share is not None and is_mean_of_parts(share)
    if not is_mean:
        is_sum = abs(a + b - both) <= 1e-4 * spread
        twice = _loss_of_text_twice(tried, loss, ids, labels)
        if is_sum and abs(twice - 2 * both) <= 1e-4 * spread:
            return f"labels of {ignored} are ignored; the loss is a sum"
        raise tried.failed(
            f"labels of {ignored} are not ignored: the loss of {n_a + n_b} labels is {both:.4g}, "
            f"that of the first {n_a} alone {a:.4g} and of the others {b:.4g}",
            _what_counts(tried, loss, ids, labels, early, ignored, summed=is_sum),
        )
    trained = _trained_where_ignored(tried, loss, ids, labels.where(early, ignored))
    if trained:
        raise tried.failed(f"labels of {ignored} are not ignored: {trained}")
    return ""


def _share_by_slope(
    tried: Subject, loss: LabeledLoss, ids: Tensor, labels: Tensor, some: Tensor
) -> float | None:
    """By which share some of the labels count in a loss, the others of which are ignored there,
    from its slope by the logits; None if it is no plain cross entropy of them."""
    of_all = _followed_weights(tried, loss, ids, labels)
    of_some = _followed_weights(tried, loss, ids, some)
    if of_all is None or of_some is None:
        return None
    return float(of_all[of_some > 1e-6 * of_some.max()].sum() / of_all.sum())


def _followed_weights(
    tried: Subject, loss: LabeledLoss, ids: Tensor, labels: Tensor
) -> Tensor | None:
    """`label_weights` of these labels (1, T), if the loss is computed from the returned logits."""
    followed = _followed_slope(tried, loss, ids, labels)
    return None if followed is None else label_weights(*followed)


def _followed_slope(
    tried: Subject, loss: LabeledLoss, ids: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor] | None:
    """The logits (1, T, V) and the slope of the loss by them; None if it is not computed from
    them, or they are not returned beside it."""

    def of(model: Model, x: Tensor) -> Tensor:
        return loss(model, ids.to(x.device), labels.to(x.device))

    if module_of(tried.model) is None:
        return None
    try:
        _, outputs, value = _followed(tried, of)
    except REFUSALS:  # no logits are returned beside the loss
        return None
    logits = next(iter(outputs.values()))
    slope = _slope_by_logits(value, logits)
    return None if slope is None else (logits, slope)


def _loss_of_text(
    tried: Subject, loss: LabeledLoss, ids: Tensor, labels: Tensor, rows: int = 1
) -> Tensor:
    """The loss of a text (1, T), so many times in a batch, always with the same random numbers."""
    device = tried.device
    seed_all(0, device)
    x = ids.repeat(rows, 1).to(device)
    with torch.enable_grad(), tried.repeatable():
        return loss(tried.model, x, labels.repeat(rows, 1).to(device))


def _loss_of_text_twice(tried: Subject, loss: LabeledLoss, ids: Tensor, labels: Tensor) -> float:
    """The loss of the text twice; NaN of a model that takes one row at a time."""
    try:
        return float(_loss_of_text(tried, loss, ids, labels, 2).detach())
    except REFUSALS:
        return float("nan")


def _what_counts(
    tried: Subject, loss: LabeledLoss, ids: Tensor, labels: Tensor, early: Tensor, ignored: int,
    *, summed: bool,
) -> str:  # fmt: skip
    """What ignored labels do, where that is told apart."""
    if summed:
        return "the loss of the other labels is divided by the number of all labels"
    a = float(_loss_of_text(tried, loss, ids, labels.where(early, ignored)).detach())
    for token in (0, int(tried.pool.max())):
        with_token = labels.where(early, token)
        with_token[:, 0] = ignored  # no logits come before the first label
        if abs(float(_loss_of_text(tried, loss, ids, with_token).detach()) - a) <= 1e-6 * abs(a):
            return f"they are trained as token {token}"
    return ""


def _trained_where_ignored(tried: Subject, loss: LabeledLoss, ids: Tensor, labels: Tensor) -> str:
    """Where an ignored label has a gradient by the logits, and which token it trains, or ""."""
    followed = _followed_slope(tried, loss, ids, labels)
    if followed is None:
        return ""
    _, slope = followed
    size = slope.abs().sum(-1)[0].cpu()  # (T,)
    wanted = labels[0] >= 0
    allowed = wanted.clone()
    allowed[:-1] |= wanted[1:]  # the logits before a label, or at it
    wrong = (size > 1e-6 * size.max()) & ~allowed
    if not wrong.any():
        return ""
    t = int(wrong.nonzero()[0])
    at_t = slope[0, t]
    token = _learned_token(at_t)
    if token is None:
        return ""
    said = f"the loss has a gradient by the logits at {t}"
    if float(at_t[token]) < 0.9 * float(at_t.clamp(max=0).sum()):
        said += f", which are trained as token {token}"
    return said
