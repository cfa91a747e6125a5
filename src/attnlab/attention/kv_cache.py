"""Keys and values of the text so far, so that a longer one need not compute them again."""

from torch import Tensor


class KVCache:
    """What one attention layer remembers of one text (or of B texts that grow together).

    Args:
        size: the largest number of positions.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._length = 0
        self._kept: tuple[Tensor, Tensor] | None = None

    def __len__(self) -> int:
        """How many positions it holds."""
        return self._length

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add the keys and values (B, H, T, D) of new positions, and give those of all so far.

        Raises:
            ValueError: there is no room for them.
        """
        start, stop = self._length, self._length + k.shape[2]
        if stop > self.size:
            raise ValueError(f"{stop} positions do not fit into a cache of {self.size}")
        if self._kept is None:
            room = [t.new_empty(*t.shape[:2], self.size, t.shape[3]) for t in (k, v)]
            self._kept = (room[0], room[1])
        for kept, new in zip(self._kept, (k, v), strict=True):
            kept[:, :, start:stop] = new
        self._length = stop
        keys, values = self._kept
        return keys[:, :, :stop], values[:, :, :stop]
