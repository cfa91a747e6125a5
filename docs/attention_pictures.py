"""Draw the mask or the bias of each variant: python docs/attention_pictures.py"""

from pathlib import Path

import torch
from matplotlib.axes import Axes
from torch import Tensor

from attnlab.attention import alibi, log_length, masks
from attnlab.plotting.drawing import panels, styled, svg

T, H = 16, 4
MASKS = {
    "sdpa (causal)": masks.causal,
    "sliding_window": masks.window(masks.causal, 8),
    "peek_one": masks.peek_one,
    "flipped": masks.flipped,
    "strict_flip": masks.strict_flip,
    "bidirectional": masks.bidirectional,
}
FILE = Path(__file__).with_name("img") / "masks.svg"


def show(place: Axes, title: str, values: Tensor, colors: str, *, bar: bool = True) -> None:
    """Draw (T, T) values; blocked cells are gray."""
    place.set_facecolor("#dedee2")
    drawn = place.imshow(values.numpy(), cmap=colors)
    place.set(title=title, xlabel="key", ylabel="query", xticks=[0, T - 1], yticks=[0, T - 1])
    place.grid(False)
    if bar:
        place.figure.colorbar(drawn, ax=place, shrink=0.7)


def main() -> None:
    i = torch.arange(T)
    q, k = i[:, None], i[None, :]
    blocked = torch.full((T, T), torch.nan)
    with styled():
        figure, places = panels(9, width=3.6, height=3.4, columns=3)
        for place, (name, mask) in zip(places, MASKS.items(), strict=False):
            show(
                place,
                name,
                torch.where(masks.build_mask(mask, T), 1.0, blocked),
                "Blues_r",
                bar=False,
            )
        zeros = torch.zeros(H, T, T)
        for place, head in zip(places[6:8], (0, H - 1), strict=True):
            bias = alibi(zeros, q, k)[head].where(k <= q, blocked)
            show(place, f"alibi, head {head + 1} of {H}: added", bias, "Blues_r")
        factor = log_length(torch.ones(1, T, T), q, k)[0].where(k <= q, blocked)
        show(places[8], "log_length: multiplied", factor, "Blues")
        FILE.write_text(svg(figure, "masks"), encoding="utf-8")


if __name__ == "__main__":
    main()
