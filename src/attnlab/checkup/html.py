"""A report as one self-contained HTML page."""

from importlib.resources import files

from torch import Tensor

from attnlab.checkup.diagnoses import causes
from attnlab.checkup.findings import Report

_LEAST = 1e-8  # shares below this are drawn as nothing


def page(report: Report) -> str:
    """The page, as a string."""
    from jinja2 import Environment

    template = files("attnlab.checkup").joinpath("report.html.j2").read_text(encoding="utf-8")
    pictures = [
        {"title": title, "svg": draw_map(map_, title)}
        for finding in report.findings
        for title, map_ in finding.maps.items()
    ]
    titles = {name: cause.title for name, cause in causes().items()}
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(template).render(
        report=report, pictures=pictures, titles=titles
    )


def draw_map(map_: Tensor, title: str) -> str:
    """Draw a (T, T) map of shares from 0 to 1 as SVG text, on a logarithmic scale.

    Entries above the diagonal, where a causal model has nothing, are red; NaN is gray.
    """
    from matplotlib.colors import LogNorm

    from attnlab.plotting.drawing import panels, styled, svg

    values = map_.detach().cpu().double()
    seen = values.clamp_min(_LEAST)
    future = values.new_ones(values.shape).triu(1).bool()
    with styled():
        figure, (axes,) = panels(1, width=4, height=3.6)
        axes.set_facecolor("#dddddd")
        for part, colors in ((~future, "Blues"), (future, "Reds")):
            shown = seen.masked_fill(~part, float("nan"))
            axes.imshow(shown.numpy(), cmap=colors, norm=LogNorm(_LEAST, 1), interpolation="none")
        axes.set(xlabel="position that is read", ylabel="position that reads")
        axes.grid(visible=False)
        return svg(figure, title)
