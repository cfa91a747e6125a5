"""Check that the targets of a batch are the next tokens."""

from torch import Tensor

from attnlab.checkup.findings import FAULT, OK, SUSPICIOUS, Finding


def check_batch(x: Tensor, y: Tensor) -> Finding:
    """Measure how far the targets are shifted against the inputs.

    The model cannot show this mistake: it is causal, and learns to copy or to skip. Negative
    entries, such as -100 for ignored targets, do not count.

    Args:
        x, y: (B, T) int64, inputs and targets as they reach the loss.

    Raises:
        ValueError: the shapes differ.
    """
    if x.shape != y.shape or x.ndim != 2:
        raise ValueError(
            f"inputs {tuple(x.shape)} and targets {tuple(y.shape)} must both be (B, T)"
        )
    shares = {shift: _agreement(x, y, shift) for shift in (-1, 0, 1, 2)}
    numbers = {f"y[t] = x[t{shift:+d}]": share for shift, share in shares.items()}
    best = max(shares, key=lambda shift: shares[shift])
    if shares[1] >= 0.999:
        return Finding("targets", OK, "targets are the next tokens", "", numbers)
    if shares[best] < 0.999:
        headline = "targets are not the inputs, shifted by any number from -1 to 2"
        return Finding("targets", SUSPICIOUS, headline, "wrong_targets", numbers)
    cause = {0: "not_shifted", 2: "shifted_twice"}.get(best, "wrong_targets")
    headline = {
        0: "y[t] = x[t]: targets are not shifted, so the model predicts the token that it sees",
        2: "y[t] = x[t+2]: targets are shifted twice",
    }.get(best, "y[t] = x[t-1]: targets are shifted backwards")
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
