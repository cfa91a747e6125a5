"""The pictures of a report."""

from torch import Tensor

_LEAST = 1e-8  # shares below this are drawn as nothing


def draw_map(map_: Tensor, title: str) -> str:
    """Draw a (T, T) map of shares from 0 to 1 as SVG text, on a logarithmic scale.

    Blue and orange are those of the explorer: orange entries are above the diagonal, where a
    causal model has nothing. NaN is gray.
    """
    from matplotlib.colors import LogNorm

    from attnlab.plotting.drawing import panels, styled, svg

    values = map_.detach().cpu().double()
    seen = values.clamp_min(_LEAST)
    future = values.new_ones(values.shape).triu(1).bool()
    with styled():
        figure, (axes,) = panels(1, width=5.2, height=3.8)
        axes.set_facecolor("#dddddd")
        for part, colors, name in ((future, "Oranges", "later"), (~future, "Blues", "earlier")):
            shown = seen.masked_fill(~part, float("nan")).numpy()
            drawn = axes.imshow(shown, cmap=colors, norm=LogNorm(_LEAST, 1), interpolation="none")
            bar = figure.colorbar(drawn, shrink=0.8, pad=0.02)
            bar.ax.set_title(name, fontsize=9)
        axes.set(xlabel="key: position that is read", ylabel="query: position that reads")
        axes.grid(visible=False)
        return svg(figure, title)
