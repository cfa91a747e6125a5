"""Draw the mask, bias or weights of each variant: python docs/attention_pictures.py"""

from pathlib import Path

import torch
from matplotlib.axes import Axes
from torch import Tensor

from attnlab.attention import alibi, kernels, log_length, masks
from attnlab.plotting.drawing import panels, styled, svg

T, H, D = 16, 4, 8
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
    """Draw (T, T) values; blocked cells are gray, and 0 is white where some are negative."""
    place.set_facecolor("#dedee2")
    largest = float(values.nan_to_num().abs().max())
    limits = {"vmin": -largest, "vmax": largest} if colors == "RdBu_r" else {}
    drawn = place.imshow(values.numpy(), cmap=colors, **limits)
    place.set(title=title, xlabel="key", ylabel="query", xticks=[0, T - 1], yticks=[0, T - 1])
    place.grid(False)
    if bar:
        place.figure.colorbar(drawn, ax=place, shrink=0.7)


def weights_of() -> dict[str, Tensor]:
    """The weights (T, T) that kernels make of the same random queries and keys."""
    q, k = torch.randn(2, 1, 1, T, 2 * D, generator=torch.Generator().manual_seed(0))
    mask, one_hot = masks.build_mask(masks.causal, T), torch.eye(T)[None, None]

    def of(kernel: kernels.Kernel, half: int) -> Tensor:
        q_half, k_half = (x.chunk(2, dim=-1)[half] for x in (q, k))
        y = kernel(q_half, k_half, one_hot, mask=mask, scale=D**-0.5, dropout=0.0)
        return y[0, 0]

    difference = of(kernels.manual, 0) - 0.5 * of(kernels.manual, 1)
    softmax1, sigmoid = of(kernels.softmax1, 0), of(kernels.sigmoid, 0)
    return {"softmax1": softmax1, "sigmoid": sigmoid, "differential": difference}


def main() -> None:
    i = torch.arange(T)
    q, k = i[:, None], i[None, :]
    blocked = torch.full((T, T), torch.nan)
    with styled():
        figure, places = panels(12, width=3.6, height=3.4, columns=3)
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
            show(place, f"alibi, head {head + 1}: added", bias, "Blues_r")
        factor = log_length(torch.ones(1, T, T), q, k)[0].where(k <= q, blocked)
        show(places[8], "log_length: multiplied", factor, "Blues")
        for place, (name, weights) in zip(places[9:], weights_of().items(), strict=True):
            colors = "RdBu_r" if name == "differential" else "Blues"
            show(place, f"{name}: weights", weights.where(k <= q, blocked), colors)
        FILE.write_text(svg(figure, "masks"), encoding="utf-8")


if __name__ == "__main__":
    main()
