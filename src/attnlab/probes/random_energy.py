"""What a softmax over independent Gaussian scores does: the random energy model (Derrida 1981).

Attention at the start is one (Giorlandino and Goldt 2025): n keys with scores N(0, s^2). Below
s = sqrt(2 ln n) the weight is spread, above it a few keys hold it all, and the trace of the
softmax Jacobian, which says how much gradient passes, falls only like 1 / s.
"""

import math

import torch
from torch import Tensor

# Above, both quantities fall like 1 / s (Poisson-Dirichlet phase), and the grid would be large.
LARGEST_STD = 16.0


def random_energy(std: float, n: Tensor) -> tuple[Tensor, Tensor]:
    """Expected entropy and Jacobian trace of a softmax over n scores N(0, std^2), by quadrature.

    With Z = sum exp(score), phi(t) = E exp(-t e^score) and u = ln t:
        E ln Z      = integral of (exp(-t) - phi(t)^n) du,
        E sum p^2   = n * integral of t^2 E[e^(2 score) exp(-t e^score)] phi(t)^(n-1) du,
        E entropy   = E ln Z - std^2 * (1 - E sum p^2)     (by Gaussian integration by parts).

    Args:
        std: standard deviation of the scores; NaN gives NaN.
        n: numbers of keys, (N,), at least 1.

    Returns:
        entropy in nats and trace 1 - sum p^2, each (N,) fp64.
    """
    counts, place = n.double().unique(return_inverse=True)
    s = min(std, LARGEST_STD)
    if not math.isfinite(s):
        entropy = trace = torch.full_like(counts, math.nan)
    elif s < 1e-6:
        entropy, trace = counts.log(), 1 - 1 / counts
    else:
        entropy, trace = _by_quadrature(s, counts[:, None])
        entropy, trace = entropy * (s / std), trace * (s / std)
    return entropy[place], trace[place]


def _by_quadrature(s: float, n: Tensor) -> tuple[Tensor, Tensor]:
    # Trapezoids converge exponentially for these smooth, decaying integrands.
    g = _grid(8.0, step=min(0.25, 0.5 / s))  # a standard Gaussian
    density = torch.exp(-g.square() / 2)
    density /= density.sum()
    u = _grid(8 * s + 12 + float(n.max().log()), step=0.2)
    tw = torch.exp(u[:, None] + s * g)  # t e^score
    decay = torch.exp(-tw) * density
    phi = decay.sum(-1)
    squares = (tw.square().nan_to_num(posinf=0.0) * decay).sum(-1)
    log_z = 0.2 * (torch.exp(-torch.exp(u)) - phi**n).sum(-1)
    trace = 1 - 0.2 * (n * squares * phi ** (n - 1)).sum(-1, keepdim=True)
    return log_z - s**2 * trace[:, 0], trace[:, 0]


def _grid(half: float, step: float) -> Tensor:
    return torch.arange(-half, half + step, step, dtype=torch.float64)
