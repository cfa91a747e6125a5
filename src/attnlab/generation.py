"""Text from a trained model, a character at a time."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from attnlab.decoding import Reader, supports_cache
from attnlab.errors import BadInput
from attnlab.model import GPT
from attnlab.rng import generator


@torch.inference_mode()
def sample(
    net: GPT,
    prompt: Tensor,
    length: int,
    *,
    temperature: float = 1.0,
    seed: int = 0,
    cache: bool = True,
) -> Iterator[int]:
    """Draw characters that go on from a prompt; of a long text the last `block_size` count.

    Until a text fills the block, keys and values of earlier characters are kept where the model
    allows it. After that each character moves the window, and with it every position and all
    that the layers computed, so that nothing can be kept and the whole window is read again.

    Args:
        net: in evaluation mode.
        prompt: ids (N,) int64, N >= 1.
        length: how many characters.
        temperature: divides the logits; 0 takes the likeliest character.
        seed: of the stream "sample".
        cache: False reads the whole window for every character: the same text, later.

    Yields:
        ids, as they are drawn.

    Raises:
        BadInput: an empty prompt, a negative length or temperature, or logits that are NaN.
    """
    if not len(prompt):
        raise BadInput("the prompt is empty; give at least one character")
    if length < 0:
        raise BadInput(f"chars = {length} must be at least 0")
    if not (temperature >= 0 and math.isfinite(temperature)):
        raise BadInput(f"temperature = {temperature} must be a number of at least 0")
    stream = generator(seed, "sample")
    reader = Reader(net) if cache and supports_cache(net) else None
    ids = new = prompt[None, -net.block_size :]  # (1, T): the window, and what is new in it
    for _ in range(length):
        if reader is not None and len(reader) + new.shape[1] <= net.block_size:
            logits = reader.read(new)[0, -1]  # (V,)
        else:
            logits = net(ids)[0, -1]
        logits = logits.cpu()  # drawn on the CPU, the same for every device
        if not logits.isfinite().all():
            raise BadInput("the model's logits are not finite: its training diverged")
        drawn = _draw(logits, temperature, stream)
        yield int(drawn)
        new = drawn.view(1, 1).to(ids.device)
        ids = torch.cat([ids, new], dim=1)[:, -net.block_size :]


def _draw(logits: Tensor, temperature: float, stream: torch.Generator) -> Tensor:
    if temperature == 0:
        return logits.argmax()
    # Shifted first, so that a tiny temperature cannot overflow.
    p = ((logits - logits.max()).double() / temperature).softmax(-1)
    return torch.multinomial(p, 1, generator=stream)
