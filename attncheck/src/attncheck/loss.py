"""Which token does a loss compare each logit with, and which does it ignore?

Letters: B batch, T time, V symbols.
"""

from collections.abc import Callable
from dataclasses import replace
from math import isfinite

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from .calls import TARGETS, Model, Own, arguments_of, floats_of, loss_of, module_of, plainly
from .outcomes import (
    REFUSALS,
    CannotCheck,
    Passed,
    as_assertion,
    not_applicable_if_refused,
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
SAME_TOKENS = 0.999  # the share of the learned tokens that a shift must explain
NEXT_TOKENS = "targets are the next tokens"
# Wrong shifts of the targets, of which 1 is right, and what they make of a model.
_WRONG_SHIFTS = {
    0: "targets are not shifted, so the model copies its input",
    2: "targets are shifted twice, so the model skips a token",
    -1: "targets are shifted backwards, so the model learns the token before",
}


def labels_argument(tried: Subject) -> str:
    """The name of the argument that takes the targets of a loss: `labels`, or the first known one;
    CannotCheck if there is none."""
    takes = arguments_of(tried.model)
    for name in ("labels", *TARGETS):
        if name in takes:
            return name
    raise CannotCheck("the model takes no labels; give loss")


def labeled_loss(tried: Subject) -> LabeledLoss:
    """The function that calls a model with ids and labels and returns its loss; CannotCheck if the
    model takes no labels."""
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
    targets_in_words: list[str] = []
    visits = Visits(tried, "a loss ")
    for state in visits.through(LOSS_MODES):
        with visits.visit(state) as there:
            said = _require_next_tokens(there, loss, labeled)
            targets_in_words = targets_in_words or said  # those of the first state
            if labeled is not None:
                _require_labels_unread(there, labeled)
    return visits.passed("; ".join(targets_in_words))


def _require_next_tokens(
    tried: Subject, loss: Loss | None, labeled: LabeledLoss | None
) -> list[str]:
    """CheckFailed if the logits do not learn the next tokens from the user's loss or, if there is
    none, from the loss `labeled` that the model returns. Returns phrases that say which tokens
    each output of the model learns."""
    if loss is not None:
        return _require_loss_of_next_tokens(tried, loss, ids_are_labels=False)
    assert labeled is not None
    name = labels_argument(tried)
    if name != "labels":  # such as targets, which the caller may have to shift
        return _require_known_targets(tried, labeled, name)

    def loss_of_ids(model: Model, ids: Tensor) -> Tensor:
        return labeled(model, ids, ids)

    return _require_loss_of_next_tokens(tried, loss_of_ids, ids_are_labels=True)


def _require_labels_unread(tried: Subject, labeled: LabeledLoss) -> None:
    """CheckFailed if logits depend on the labels: on the last one, which one of them must
    predict."""
    ids = tried.draw(tried.rows_at_once(1), tried.usual_length)
    labels = tried.other_inputs(ids)
    with_another_last = torch.cat([labels[:, :-1], tried.other_inputs(labels)[:, -1:]], 1)
    logits = _logits_beside(tried, labeled, ids, labels)
    change = relative(_logits_beside(tried, labeled, ids, with_another_last), logits)
    if change > READ:
        raise tried.failed(
            f"logits depend on the labels, by {change:.2g} of their std",
            "labels belong in the loss alone: a model that reads them need not predict them",
        )


def _logits_beside(tried: Subject, labeled: LabeledLoss, ids: Tensor, labels: Tensor) -> Tensor:
    """The logits (B, T, V) that a model returns beside the loss of labels (B, T)."""
    seed_all(0, tried.device)
    _, outputs, _ = _call_with_loss(tried, _with_fixed_text(labeled, ids, labels))
    return next(iter(outputs.values())).detach()


def _with_fixed_text(labeled: LabeledLoss, ids: Tensor, labels: Tensor) -> Loss:
    """The loss of these ids and labels (B, T), whatever ids it is called with."""

    def loss(model: Model, x: Tensor) -> Tensor:
        return labeled(model, ids.to(x.device), labels.to(x.device))

    return loss


def _require_loss_of_next_tokens(tried: Subject, loss: Loss, *, ids_are_labels: bool) -> list[str]:
    """CheckFailed if a loss does not compare the logits with the next tokens, if the last position
    of ids as labels learns a token, or if the softmax is applied twice. Returns a phrase on the
    logits, and one on each other output (B, T, V): which tokens it learns."""
    ids, outputs, value = _call_with_loss(tried, loss)
    (_, logits), *others = outputs.items()
    slope_of_logits = _slope_by_logits(value, logits)
    if slope_of_logits is None:
        raise CannotCheck("the loss is not computed from the logits the model returns")
    if not bool(value.isfinite() and slope_of_logits.isfinite().all()):
        raise tried.failed("the loss, or its slope by the logits, is NaN or infinite")
    shift = _shift_of(ids, _learned_tokens(slope_of_logits))
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
    targets_in_words = [NEXT_TOKENS]
    for name, y in others:
        slope = _slope_by_logits(value, y)
        if slope is None:
            continue
        learned = _learned_tokens(slope)
        shifts = [n for n in range(-1, 6) if _agreement(ids, learned, n) >= SAME_TOKENS]
        learns = f"learns the token {shifts[0]} later" if shifts else "is not examined"
        targets_in_words.append(f"{name} {learns}")
    _require_one_softmax(tried, value, logits, slope_of_logits)
    return targets_in_words


def _slope_by_logits(value: Tensor, logits: Tensor) -> Tensor | None:
    """The slope (B, T, V) of a loss by logits (B, T, V); None if it depends on none of them."""
    if not (logits.requires_grad and value.requires_grad):
        return None
    (slope,) = torch.autograd.grad(value, logits, retain_graph=True, allow_unused=True)
    return slope


def _learned_tokens(slope: Tensor) -> Tensor:
    """(B, T) the token that a loss makes most likely at each position, whose logit has the lowest
    slope in (B, T, V); -100 where all slopes are 0."""
    return slope.argmin(-1).where(slope.abs().sum(-1) > 0, IGNORED_LABEL).cpu()


def _learned_token(slope: Tensor) -> int | None:
    """The token that a cross entropy makes likelier, from its slope by the logits (V,) of one
    position; None if the slope is 0, or that of something else, such as a penalty on large
    logits."""
    size = float(slope.abs().sum())
    # The slope of a cross entropy is softmax(logits) - one_hot(token), which sums to 0.
    if not size or abs(float(slope.sum())) > 0.1 * size:
        return None
    return int(slope.argmin())


def label_weights(logits: Tensor, slope: Tensor) -> Tensor | None:
    """(B, T) the weight w of each position in a cross entropy, from the logits (B, T, V) and its
    slope by them; None if the slope is that of something else.

    The slope of a cross entropy is w (softmax(logits) - one_hot(label)).
    """
    slope = slope.double()
    probabilities = logits.detach().double().softmax(-1)
    learned = nn.functional.one_hot(slope.argmin(-1), slope.shape[-1])
    of_weight_1 = probabilities - learned
    # The multiple of it that is nearest to the slope, by least squares.
    weights = (slope * of_weight_1).sum(-1) / of_weight_1.square().sum(-1).clamp_min(1e-30)
    rest = (slope - weights[..., None] * of_weight_1).abs().sum(-1)
    if bool((rest > 0.01 * slope.abs().sum(-1)).any()):
        return None
    return weights.cpu()


def _require_end_ignored(tried: Subject, ids: Tensor, slope: Tensor) -> None:
    """CheckFailed if the last position of the first row of ids (B, T) learns a token, by the slope
    of the loss by the logits (B, T, V), though none follows."""
    learned = _learned_token(slope[0, -1])
    if learned is None:
        return
    token = "the first token of its row" if learned == int(ids[0, 0]) else f"token {learned}"
    raise tried.failed(
        f"the last position learns {token}, though none follows",
        "after torch.roll, the last target must be -100",
    )


def _require_one_softmax(tried: Subject, value: Tensor, logits: Tensor, slope: Tensor) -> None:
    """CheckFailed if the value and the slope of a loss are those of the mean cross entropy of
    softmax(logits) instead of the logits (B, T, V), which applies the softmax twice."""
    learned = _learned_tokens(slope).flatten().to(logits.device)
    cross_entropy = nn.functional.cross_entropy
    given = float(value.detach())
    once = float(cross_entropy(logits.detach().flatten(0, 1), learned))
    with torch.enable_grad():
        own_logits = logits.detach().flatten(0, 1).requires_grad_()
        loss_of_twice = cross_entropy(own_logits.softmax(-1), learned)
        (slope_of_twice,) = torch.autograd.grad(loss_of_twice, own_logits)
    twice = float(loss_of_twice.detach())
    same_value = abs(given - twice) <= 1e-4 * abs(twice) < abs(given - once)
    # Of small logits both values are log V, and another small term of the loss decides which is
    # nearer. Their slopes differ by a factor of V.
    rest = (slope.flatten(0, 1).to(own_logits.device) - slope_of_twice).norm()
    if same_value and bool(rest <= 0.01 * slope_of_twice.norm()):
        raise tried.failed(
            "the loss is the cross entropy of softmax(logits), so the softmax is applied twice",
            "give the logits to the cross entropy",
        )


def _call_with_loss(tried: Subject, loss: Loss) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """Call a loss with random ids. Returns the ids (B, T) that it gives to the model, which may be
    others, the outputs (B, T, V) of the model for them, by name, and the loss; all with a graph.
    CannotCheck if it does not call the model."""
    module = module_of(tried.model)
    assert module is not None
    seen: list[tuple[Tensor, dict[str, Tensor]]] = []

    def keep(_: object, args: tuple, named: dict[str, object], output: object) -> None:
        ids = next(x for x in (*args, *named.values()) if isinstance(x, Tensor))
        seen.append((ids.cpu(), floats_of(output, tuple(ids.shape[:2]))))

    rows = min(4, tried.rows, max(1, tried.affordable_sequences(tried.length, share=0.25)))
    ids = tried.draw(tried.rows if tried.fixed_rows else rows, tried.usual_length)
    handle = module.register_forward_hook(keep, with_kwargs=True)
    try:
        with torch.enable_grad(), tried.repeatable():
            value = loss(tried.model, ids.to(tried.device))
    finally:
        handle.remove()
    if not seen:
        raise CannotCheck("the loss does not call the model that it is given")
    return seen[-1][0], seen[-1][1], value


def _require_known_targets(tried: Subject, loss: LabeledLoss, name: str) -> list[str]:
    """CheckFailed if a loss does not compare the logits at t with the targets at t or at t + 1, of
    which models want the one or the other; if the last position learns a token; or if the softmax
    is applied twice. Returns a phrase that says with which targets it compares them.

    `name` is that of the argument that takes the targets.
    """
    given: list[Tensor] = []

    def loss_of_other_targets(model: Model, x: Tensor) -> Tensor:
        targets = tried.other_inputs(x.cpu())
        given.append(targets)
        return loss(model, x, targets.to(x.device))

    _, outputs, value = _call_with_loss(tried, loss_of_other_targets)
    logits = next(iter(outputs.values()))
    slope = _slope_by_logits(value, logits)
    if slope is None:
        raise CannotCheck("the loss is not computed from the logits the model returns")
    (targets,) = given
    learned = _learned_tokens(slope)
    shifts = [n for n in range(-1, 4) if _agreement(targets, learned, n) >= SAME_TOKENS]
    if not shifts:
        raise tried.failed(
            f"the logits at t are compared with none of {name}",
            "look for a view that exchanges time and vocabulary, or for a loss of other logits",
            grave=False,
        )
    _require_one_softmax(tried, value, logits, slope)
    if shifts[0] == 1:
        _require_end_ignored(tried, targets, slope)
    if shifts[0] in (0, 1):
        when = "so give the next tokens" if shifts[0] == 0 else "so give the ids themselves"
        place = "t" if shifts[0] == 0 else "t + 1"
        return [f"the logits at t are compared with {name} at {place}, {when}"]
    said = f"the logits at t are compared with {name} at t + {shifts[0]}"
    raise tried.failed(said.replace("+ -", "- "), grave=False)


def _shift_of(ids: Tensor, learned: Tensor) -> int | None:
    """By how many positions later the ids (B, T) are that the positions have learned (B, T): 1, or
    one of the wrong shifts; None if it is none of them."""
    for shift in (1, *_WRONG_SHIFTS):
        if _agreement(ids, learned, shift) >= SAME_TOKENS:
            return shift
    return None


def _shift_in_words(shift: int | None) -> str:
    """What is said of a wrong shift of the targets; None is an unknown one."""
    return "targets are not the next tokens" if shift is None else _WRONG_SHIFTS[shift]


def _agreement(ids: Tensor, learned: Tensor, shift: int) -> float:
    """The share of learned tokens (B, T) that equal the id (B, T) `shift` positions later, of
    those that are not ignored and have such an id; 0 if there are none."""
    at = torch.arange(ids.shape[1]) + shift
    same = (ids.roll(-shift, 1) == learned)[(learned >= 0) & (at >= 0) & (at < ids.shape[1])]
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
    """Labels that are `ignored` count neither in a loss nor in its gradient, by default -100, or
    -1 if the model refuses that and not -1; see `assert_labels_ignored`. CannotCheck if it
    deliberately refuses them."""
    if loss is None:
        loss = labeled_loss(tried)
        is_default = ignored == IGNORED_LABEL
        if is_default and not _takes(tried, loss, ignored) and _takes(tried, loss, -1):
            ignored = -1  # as in nanoGPT
    said = f"labels of {ignored} count neither in the loss nor in its gradient"
    refused = f"labels of {ignored} are refused"
    visits = Visits(tried, f"labels of {ignored} ")
    for state in visits.through(LOSS_MODES):
        with not_applicable_if_refused(refused), visits.visit(state) as there:
            said = _require_ignored(there, loss, ignored) or said
    return visits.passed(said)


def _takes(tried: Subject, loss: LabeledLoss, ignored: int) -> bool:
    """Whether a loss with some labels that are `ignored` raises no error."""
    with tried.in_state(WITH_GRADIENTS) as there:
        ids = there.draw(1, there.accepted_length(24))  # a short text
        labels = ids.clone()
        labels[:, :4] = ignored  # some of them
        try:
            _loss_of_text(there, loss, ids, labels)
        except REFUSALS:
            return False
    return True


def _require_ignored(tried: Subject, loss: LabeledLoss, ignored: int) -> str:
    """CheckFailed if labels that are `ignored` count in a loss or in its gradient; in the model's
    own dtype, only if the loss is not finite beside them. Returns a sentence if the loss is a sum,
    not a mean, else ""."""
    tried = replace(tried, seed_each_call=True)
    T = tried.accepted_length(tried.effort.labeled)
    ids = tried.draw(1, T)
    # A loss that shifts its labels does not use the first, and some treat those at the ends as
    # others.
    first, end = (3, T - 2) if T >= 12 else (1, T)
    border = first + max(1, (end - first) // 3)
    at = torch.arange(T)
    early = (at >= first) & (at < border)
    late = (at >= border) & (at < end)
    labels = ids.where(early | late, ignored)

    def loss_of_labels(part: Tensor) -> float:
        """The loss of the labels where `part` (T,) is true, the others of which are ignored."""
        return float(_loss_of_text(tried, loss, ids, labels.where(part, ignored)).detach())

    of_all = loss_of_labels(early | late)
    of_early = loss_of_labels(early)
    if tried.state.in_own_dtype:  # whose rounding hides the rest
        if not isfinite(of_early):
            raise tried.failed(f"beside labels of {ignored}, the loss is NaN or infinite")
        return ""
    of_late = loss_of_labels(late)
    n_early = int(early.sum())
    n = n_early + int(late.sum())
    rounding = 1e-4 * (abs(of_early) + abs(of_late) + abs(of_all) + 1e-12)

    def is_mean_of_parts(share: float) -> bool:
        """Whether the loss of all is the mean of both, of which the early ones have a share."""
        return abs(share * of_early + (1 - share) * of_late - of_all) <= rounding

    is_mean = is_mean_of_parts(n_early / n)
    if not is_mean:  # some labels may count more than others
        share = _share_by_slope(tried, loss, ids, labels, labels.where(early, ignored))
        is_mean = share is not None and is_mean_of_parts(share)
    if not is_mean:
        is_sum_of_parts = abs(of_early + of_late - of_all) <= rounding
        of_two_rows = _loss_of_text_twice(tried, loss, ids, labels)
        if is_sum_of_parts and abs(of_two_rows - 2 * of_all) <= rounding:
            return f"labels of {ignored} are ignored; the loss is a sum"
        raise tried.failed(
            f"labels of {ignored} are not ignored: the loss of {n} labels is {of_all:.4g}, "
            f"that of the first {n_early} alone {of_early:.4g} and of the others {of_late:.4g}",
            _what_counts(tried, loss, ids, labels, early, ignored, summed=is_sum_of_parts),
        )
    trained = _trained_where_ignored(tried, loss, ids, labels.where(early, ignored))
    if trained:
        raise tried.failed(f"labels of {ignored} are not ignored: {trained}")
    return ""


def _share_by_slope(
    tried: Subject, loss: LabeledLoss, ids: Tensor, labels: Tensor, some: Tensor
) -> float | None:
    """By which share `some` of the labels (1, T) count in the loss of all of them, from its slope
    by the logits; None if it is no plain cross entropy. In `some`, the other labels are
    ignored."""
    of_all = _weights_of_labels(tried, loss, ids, labels)
    of_some = _weights_of_labels(tried, loss, ids, some)
    if of_all is None or of_some is None:
        return None
    return float(of_all[of_some > 1e-6 * of_some.max()].sum() / of_all.sum())


def _weights_of_labels(
    tried: Subject, loss: LabeledLoss, ids: Tensor, labels: Tensor
) -> Tensor | None:
    """The weights (1, T) of `label_weights` in the loss of these labels (1, T); None if it is no
    plain cross entropy of the logits that the model returns."""
    found = _logits_and_slope(tried, loss, ids, labels)
    return None if found is None else label_weights(*found)


def _logits_and_slope(
    tried: Subject, loss: LabeledLoss, ids: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor] | None:
    """The logits (1, T, V) that a model returns beside the loss of these labels (1, T), and the
    slope of the loss by them; None if it returns none, or the loss is not computed from them."""
    if module_of(tried.model) is None:
        return None
    try:
        _, outputs, value = _call_with_loss(tried, _with_fixed_text(loss, ids, labels))
    except REFUSALS:  # no logits are returned beside the loss
        return None
    logits = next(iter(outputs.values()))
    slope = _slope_by_logits(value, logits)
    return None if slope is None else (logits, slope)


def _loss_of_text(
    tried: Subject, loss: LabeledLoss, ids: Tensor, labels: Tensor, rows: int = 1
) -> Tensor:
    """The loss of a text (1, T) and its labels (1, T), each in so many rows of a batch; always
    with the same random numbers, and with a graph."""
    device = tried.device
    seed_all(0, device)
    x = ids.repeat(rows, 1).to(device)
    with torch.enable_grad(), tried.repeatable():
        return loss(tried.model, x, labels.repeat(rows, 1).to(device))


def _loss_of_text_twice(tried: Subject, loss: LabeledLoss, ids: Tensor, labels: Tensor) -> float:
    """The loss of a batch of two rows, both of which are the text; NaN if the model refuses it, as
    one does that takes one row at a time."""
    try:
        return float(_loss_of_text(tried, loss, ids, labels, 2).detach())
    except REFUSALS:
        return float("nan")


def _what_counts(
    tried: Subject, loss: LabeledLoss, ids: Tensor, labels: Tensor, early: Tensor, ignored: int,
    *, summed: bool,
) -> str:  # fmt: skip
    """What labels that should be ignored do to a loss, in words; "" if it is neither of what is
    known: they count in the number by which it is divided, or as the first or the last token.

    `early` (T,) is true at some labels (1, T). `summed` says that the losses of parts add up.
    """
    if summed:
        return "the loss of the other labels is divided by the number of all labels"
    of_early = float(_loss_of_text(tried, loss, ids, labels.where(early, ignored)).detach())
    for token in (0, int(tried.usable_ids.max())):
        with_token = labels.where(early, token)
        with_token[:, 0] = ignored  # no logits come before the first label
        of_token = float(_loss_of_text(tried, loss, ids, with_token).detach())
        if abs(of_token - of_early) <= 1e-6 * abs(of_early):
            return f"they are trained as token {token}"
    return ""


def _trained_where_ignored(tried: Subject, loss: LabeledLoss, ids: Tensor, labels: Tensor) -> str:
    """Where the loss of labels (1, T) has a slope by logits that no label is compared with, and
    which token is trained there, in words; "" if nowhere. Ignored labels are negative."""
    found = _logits_and_slope(tried, loss, ids, labels)
    if found is None:
        return ""
    _, slope = found
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
    # The token has nearly all that is negative, unless smoothed labels make others likelier, too.
    if float(at_t[token]) < 0.9 * float(at_t.clamp(max=0).sum()):
        said += f", which are trained as token {token}"
    return said
