"""The figure of identical_heads."""

from matplotlib.figure import Figure

from attnlab.claims.results import Evidence
from attnlab.plotting.drawing import dots, panels

from . import PRICED


def figure(evidence: Evidence) -> Figure:
    apart, price = evidence.shown("free_output"), evidence.shown("price")
    exact = evidence.shown("collapse")
    drawing, axes = panels(2, width=6.4, height=4.6)
    if apart is not None and exact is not None:
        groups = [("tied output", exact.each("by rms", "tied output"))]
        dropped = evidence.shown("dropout")
        groups.append(("free output", apart.each("by rms", "free output")))
        if dropped is not None:
            groups.append(("tied, dropout", dropped.each("by rms", "tied, dropout")))
        looks = ("identical_heads", "identical_qkv", "identical_heads")
        dots(axes[0], groups, looks[: len(groups)])
        axes[0].set(ylabel="distance of heads / weights (rms)", title="Do the heads stay equal?")
    if price is not None:
        groups = [(arm, scores) for arm, scores in price.scores.items() if scores]
        baseline = price.scores["independent"]
        apart_from = [(n, [a - b for a, b in zip(v, baseline, strict=True)]) for n, v in groups]
        variants = {arm.name: arm.overrides[0].removeprefix("attn=") for arm in PRICED}
        dots(axes[1], apart_from, [variants[name] for name, _ in groups])
        axes[1].set(ylabel="loss minus independent (nats)", title="What it costs")
    return drawing
