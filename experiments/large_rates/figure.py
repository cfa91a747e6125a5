"""The figure of `large_rates`: the loss over the learning rate, for each attention."""

from matplotlib.figure import Figure

from attnlab.claims.judged_claim import JudgedClaim
from attnlab.claims.trials import metric_of
from attnlab.plotting.drawing import BLACK, BLUE, GREEN, ORANGE, VERMILION

STEPS = 300
COLORS = {
    "plain": BLACK,
    "QK-norm": VERMILION,
    "softcap": GREEN,
    "no scale": ORANGE,
    "none": BLUE,
}
FEW = 3  # seeds that all rates have


def draw(judged: JudgedClaim) -> Figure:
    """Draw the losses of the first three seeds at each rate, and a line through their means."""
    losses: dict[str, dict[float, list[float]]] = {name: {} for name in COLORS}
    for finding in judged.findings:
        if finding.steps != STEPS:
            continue
        for arm, rows in finding.rows.items():
            name, _, rate = arm.rpartition(", ")
            if rows:
                losses[name][float(rate)] = [metric_of(row, "val_loss") for row in rows[:FEW]]
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for name, by_rate in losses.items():
        rates = sorted(by_rate)
        means = [sum(by_rate[rate]) / len(by_rate[rate]) for rate in rates]
        axes.plot(rates, means, color=COLORS[name], label=name)
        for rate in rates:
            axes.plot([rate] * len(by_rate[rate]), by_rate[rate], "o", color=COLORS[name], ms=4)
    axes.set_xscale("log")
    axes.set(xlabel="learning rate", ylabel="validation loss, nats")
    axes.set_title(f"After {STEPS} steps; each dot is a seed")
    axes.legend()
    return figure
