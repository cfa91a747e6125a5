"""The random energy model: what theory says about a softmax over random scores."""

import math

import torch
from torch import Tensor

LARGEST_STD = 16.0  # of scores, up to which the integrals are computed


def random_energy(std: float, n: Tensor) -> tuple[Tensor, Tensor]:
    """Expected entropy and Jacobian trace of a softmax over n scores N(0, std^2), by quadrature.

    This is the random energy model (Derrida 1981), which describes attention at initialization
    (Giorlandino and Goldt 2025): above std = sqrt(2 ln n), a few keys have nearly all weight.

    With Z = sum exp(score), phi(t) = E exp(-t e^score) and u = ln t::

        E ln Z      = integral of (exp(-t) - phi(t)^n) du,
        E sum p^2   = n * integral of t^2 E[e^(2 score) exp(-t e^score)] phi(t)^(n-1) du,
        E entropy   = E ln Z - std^2 * (1 - E sum p^2)     (by Gaussian integration by parts).

    The numbers of keys n are (N,), at least 1; entropy in nats and trace 1 - sum p^2 are (N,)
    fp64, and NaN where std is.
    """
    counts, place = n.double().unique(return_inverse=True)
    s = min(std, LARGEST_STD)
    if not math.isfinite(s):
        entropy = trace = torch.full_like(counts, math.nan)
    elif s < 1e-6:  # even weights
        entropy = counts.log()
        trace = 1 - 1 / counts
    else:
        entropy, trace = _by_quadrature(s, counts[:, None])
        # Beyond LARGEST_STD, both fall as 1 / std.
        entropy, trace = entropy * (s / std), trace * (s / std)
    return entropy[place], trace[place]


def _by_quadrature(s: float, n: Tensor) -> tuple[Tensor, Tensor]:
    # Trapezoids converge exponentially for these smooth, decaying integrands.
    step = min(0.25, 0.5 / s)
    half = 8 * s + 12 + float(n.max().log())
    g = torch.arange(-8.0, 8.0 + step, step, dtype=torch.float64)  # a standard Gaussian
    u = torch.arange(-half, half + 0.2, 0.2, dtype=torch.float64)
    density = torch.exp(-g.square() / 2)
    density /= density.sum()
    tw = torch.exp(u[:, None] + s * g)  # t e^score
    decay = torch.exp(-tw) * density
    phi = decay.sum(-1)
    squares = (tw.square().nan_to_num(posinf=0.0) * decay).sum(-1)
    log_z = 0.2 * (torch.exp(-torch.exp(u)) - phi**n).sum(-1)
    trace = 1 - 0.2 * (n * squares * phi ** (n - 1)).sum(-1, keepdim=True)
    return log_z - s**2 * trace[:, 0], trace[:, 0]
