"""Attention of a decoder to the states of an encoder: one head, with the score as an argument.

Letters: B batch, S source words, A width of queries and keys, M channels of the memory.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from attnlab.attention import attention, scores
from attnlab.attention.functional import Score

# Makes the score of projected queries and keys, both of a given width.
ScoreFactory = Callable[[int], Score]


class AdditiveScore(nn.Module):
    """v . tanh(q + k) of queries and keys that are projected already (Bahdanau et al. 2015,
    appendix A.1.2); `attnlab.attention.scores.Additive` would project the keys at every word.

    Args:
        size: A.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.v = nn.Parameter(torch.full((size,), size**-0.5))

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        """(..., T, A), (..., S, A) -> (..., T, S)."""
        return scores.additive(q, k, self.v)


def additive(size: int) -> Score:
    """v . tanh(q + k), the only score here with a parameter."""
    return AdditiveScore(size)


def dot(size: int) -> Score:
    """q . k (Luong et al. 2015)."""
    return scores.dot


def scaled_dot(size: int) -> Score:
    """q . k / sqrt(A) (Vaswani et al. 2017)."""
    return scores.scaled_dot


class Aligner(nn.Module):
    """Attention of a decoder to the source: weights over its words, and their weighted average.

    Queries and keys are projected to the same width for every score, as in Britz et al. (2017,
    section 4.5), so variants differ only in the score and have the same matrices.

    Args:
        query_size: of the decoder's state.
        key_size: M, of the encoder's.
        score: see `ScoreFactory`.
        size: A.

    Raises:
        ValueError: the size is not positive.
    """

    def __init__(self, query_size: int, key_size: int, *, score: ScoreFactory, size: int) -> None:
        super().__init__()
        if size < 1:
            raise ValueError(f"attn.size = {size} must be at least 1")
        self.query = nn.Linear(query_size, size, bias=False)
        self.key = nn.Linear(key_size, size, bias=False)
        self.score = score(size)

    def keys(self, memory: Tensor) -> Tensor:
        """Project the memory, once per sentence: (B, S, M) -> (B, S, A)."""
        return self.key(memory)

    def forward(
        self, state: Tensor, keys: Tensor, memory: Tensor, may_attend: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The context of one word and its weights.

        Args:
            state: of the decoder, (B, query_size).
            keys: the result of `keys`, (B, S, A).
            memory: of the encoder, (B, S, M).
            may_attend: False at padding, (B, S) bool.

        Returns:
            context (B, M) and weights (B, S).
        """
        q = self.query(state)[:, None]  # (B, 1, A)
        context, pattern = attention(
            q, keys, memory, may_attend=may_attend[:, None], score=self.score
        )
        return context[:, 0], pattern[:, 0]
