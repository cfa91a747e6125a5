"""What a layer is told besides its input: the past of the text, and the forward pass it is in."""

from types import FunctionType

import torch
from torch import Tensor

# What the layers of one forward pass share: "ids", the symbols (B, T), and "values", the values
# (B, n_kv_head, T, D) of the first layer.
Memo = dict[str, Tensor]


class KVCache:
    """The tensors that one layer caches for at most `size` positions.

    `append` keeps tensors that grow with the text, such as keys and values. `carried` keeps others
    by name: a recurrent state, the last inputs of a convolution, a running sum. The length grows
    by `advance` only, so it is the position of the first new row until the layer is done.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.carried: dict[str, Tensor] = {}
        self._kept: tuple[Tensor, ...] = ()
        self._length = 0

    def __len__(self) -> int:
        """The number of positions read."""
        return self._length

    def append(self, *new: Tensor, most: int | None = None) -> tuple[Tensor, ...]:
        """Add tensors (..., T, D) of T new positions, and return those of all positions.

        Only the last `most` positions are kept for the next call, all of them if it is None.
        Raises ValueError if the positions do not fit.
        """
        self._check_room(new[0].shape[-2])
        if self._kept:
            new = tuple(torch.cat(pair, -2) for pair in zip(self._kept, new, strict=True))
        first = 0 if most is None else max(0, new[0].shape[-2] - most)
        self._kept = tuple(x[..., first:, :] for x in new)
        return new

    def advance(self, count: int) -> None:
        """Count more positions as read. Raises ValueError if they do not fit."""
        self._check_room(count)
        self._length += count

    def numbers(self) -> int:
        """How many numbers it holds."""
        return sum(x.numel() for x in (*self._kept, *self.carried.values()))

    def _check_room(self, count: int) -> None:
        if self._length + count > self.size:
            raise ValueError(
                f"{self._length + count} positions do not fit into a cache of {self.size}"
            )


def takes_memo(method: object) -> bool:
    """Whether a method, such as the `forward` of a class, has a parameter `memo`.

    It is asked at every step, and `inspect.signature` takes 30 times as long.
    """
    if not isinstance(method, FunctionType):  # a builtin, or wrapped
        return False
    code = method.__code__
    return "memo" in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
