"""Decoding with caches of any interface, and the names of what is wrong with them."""

import pytest
import torch
from torch import Tensor, nn

from attnlab.checkup import CheckupFailed, Status, assert_cache_equal, checkup
from attnlab.errors import BadInput
from tests.faults import served

V, C = 29, 16


class Windowed(nn.Module):
    """Attention with a window, and a cache at `input_pos` as in gpt-fast and litgpt.

    The cache is a ring of `ring` keys. A key's place in it is its position modulo its size.
    """

    vocab_size, block_size, window = V, 64, 16

    def __init__(self, ring: int = 64, read: int = 16) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.place = nn.Embedding(V, C), nn.Embedding(64, C)
        self.qkv, self.head = nn.Linear(C, 3 * C), nn.Linear(C, V)
        self.ring, self.read = ring, read
        self.cache: tuple[Tensor, Tensor, Tensor] | None = None

    def setup(self, B: int) -> None:
        """Empty the cache."""
        like = self.head.weight
        empty = like.new_zeros(2, B, self.ring, C)
        self.cache = (empty[0], empty[1], torch.full((self.ring,), -1000))

    def forward(self, ids: Tensor, input_pos: Tensor | None = None) -> Tensor:
        at = torch.arange(ids.shape[1]) if input_pos is None else input_pos
        x = self.embed(ids) + self.place(at)
        q, k, v = self.qkv(x).chunk(3, -1)
        held, window = at, self.window
        if input_pos is not None:
            assert self.cache is not None
            window = self.read
            if len(at) > self.ring:  # a long prefill attends to itself
                for cached, new in zip(self.cache[:2], (k, v), strict=True):
                    cached[:, at[-self.ring :] % self.ring] = new[:, -self.ring :]
                self.cache[2][at[-self.ring :] % self.ring] = at[-self.ring :]
            else:
                for cached, new in zip(self.cache[:2], (k, v), strict=True):
                    cached[:, at % self.ring] = new
                self.cache[2][at % self.ring] = at
                k, v, held = self.cache
        back = at[:, None] - held
        blocked = (back < 0) | (back >= window)
        weights = (q @ k.mT / C**0.5).masked_fill(blocked, -torch.inf).softmax(-1)
        logits: Tensor = self.head(x + weights @ v)
        return logits


def step(model: Windowed, ids: Tensor, cache: Tensor | None) -> tuple[Tensor, Tensor]:
    """The cache is kept in the model; what is passed on is the next position."""
    if cache is None:
        model.setup(len(ids))
    first = 0 if cache is None else int(cache)
    after = torch.tensor(first + ids.shape[1])
    return model(ids, torch.arange(first, int(after))), after


@pytest.mark.parametrize("ring", [64, 20])
def test_any_interface_can_be_examined(ring: int) -> None:
    assert_cache_equal(Windowed(ring), step)
    with pytest.raises(BadInput, match="assert_cache_equal takes step"):
        assert_cache_equal(Windowed(ring))


def test_a_ring_of_the_windows_length_is_healthy() -> None:
    assert_cache_equal(Windowed(16), step)  # though several tokens at once do not fit


@pytest.mark.parametrize(("ring", "read"), [(64, 15), (64, 17), (64, 64), (15, 16)])
def test_a_window_of_another_length_in_the_cache_is_a_fault(ring: int, read: int) -> None:
    """As in litgpt issue 2145: wrong only beyond the window."""
    with pytest.raises(CheckupFailed, match=r"cache_(off_by_one|mask|differs)"):
        assert_cache_equal(Windowed(ring, read), step)


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("cache_unmasked", "cache_mask"),
        ("cache_top_left", "cache_mask"),
        ("cache_top_left_in_steps", "cache_mask"),
        ("cache_off_by_one", "cache_off_by_one"),
        ("cache_forgets", "cache_dropped"),
        ("cache_restarts", "cache_restarts"),
        ("cache_smeared", "cache_smeared"),
    ],
)
def test_what_is_wrong_is_named(fault: str, cause: str) -> None:
    report = checkup(served.build(fault))
    assert report.causes == (cause,), [d.headline for d in report.diagnoses]
    assert report.finding("cache").status is Status.FAULT


def test_rows_of_different_lengths_are_decoded_together() -> None:
    report = checkup(served.build("healthy"))
    assert "rows of different lengths" in report.finding("cache").headline

    def forgets_mask(model: nn.Module, ids: Tensor, cache: object, mask: Tensor | None) -> tuple:
        last = None if mask is None or cache is not None else mask
        output = model(ids, last, cache, use_cache=True)
        return output.logits, output.past_key_values

    with pytest.raises(CheckupFailed, match="rows of different lengths"):
        assert_cache_equal(served.build("healthy"), forgets_mask)


def test_a_step_that_always_fails_is_bad_input() -> None:
    def broken(model: nn.Module, ids: Tensor, cache: object) -> tuple[Tensor, object]:
        raise RuntimeError("no cache was set up")

    with pytest.raises(BadInput, match="no cache was set up"):
        assert_cache_equal(served.build("healthy"), broken)


def test_steps_that_are_refused_are_said() -> None:
    def single(model: nn.Module, ids: Tensor, cache: object) -> tuple[Tensor, object]:
        if cache is not None and ids.shape[1] > 1:
            raise RuntimeError("one token, please")
        output = model(ids, None, cache, use_cache=True)
        return output.logits, output.past_key_values

    with pytest.warns(UserWarning, match="not looked at: several tokens at a time, which is refu"):
        assert_cache_equal(served.build("healthy"), single)


def test_padding_that_is_refused_is_said() -> None:
    def unpadded(model: nn.Module, ids: Tensor, cache: object, mask: Tensor | None) -> tuple:
        if mask is not None and not bool(mask.all()):
            raise RuntimeError("no padding, please")
        output = model(ids, None, cache, use_cache=True)
        return output.logits, output.past_key_values

    with pytest.warns(UserWarning, match="rows of different lengths, which is refused"):
        assert_cache_equal(served.build("healthy"), unpadded)


def test_a_small_ring_does_not_hide_padding_that_is_read() -> None:
    def forgets_mask(model: Windowed, ids: Tensor, cache: Tensor | None, mask: object) -> tuple:
        logits, after = step(model, ids, cache)
        return logits + (0 if cache is None or mask is None else 1), after

    with pytest.raises(CheckupFailed, match="cache_padding"):
        assert_cache_equal(Windowed(16), forgets_mask)


@pytest.mark.filterwarnings("error")
def test_few_positions_are_decoded_too() -> None:
    assert_cache_equal(served.build("healthy"), block_size=8)
