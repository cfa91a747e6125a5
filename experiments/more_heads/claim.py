"""The same width in 1, 2, 4 and 8 heads."""

from matplotlib.figure import Figure

from attnlab.claims import Arm, AtMost, Claim, Effort, Trained
from attnlab.claims.evidence import Evidence
from attnlab.plotting.drawing import dots, panels


def figure(evidence: Evidence) -> Figure:
    found, between = evidence.shown("early"), evidence.shown("between")
    drawing, axes = panels(1, width=8)
    if found is not None:
        baseline = found.scores["1 head"]
        scores = dict(found.scores) | (dict(between.scores) if between is not None else {})
        groups = [
            (name, [a - b for a, b in zip(scores[name], baseline, strict=False)])
            for name in ("1 head", "2 heads", "4 heads", "8 heads")
            if name in scores
        ]
        dots(axes[0], groups)
        axes[0].set(ylabel="loss minus that of one head (nats)", title="Heads of one width")
    return drawing


FOUR_AND_ONE = (Arm("4 heads", ("attn=sdpa",)), Arm("1 head", ("attn=single_head",)))
EIGHT_AND_TWO = (
    Arm("8 heads", ("attn=sdpa", "model.n_head=8")),
    Arm("2 heads", ("attn=sdpa", "model.n_head=2")),
)
LATE = ("trainer.max_steps=2000", "trainer.val_check_interval=2000")

CLAIM = Claim(
    says="Several heads beat one of the same total width.",
    order=8,
    figure=figure,
    notes="""
All arms have the same number of parameters; only the width of a head changes with their number.
""",
    parts=(
        Trained(
            "early",
            "Four heads are at least 0.01 nats better than one after 300 steps.",
            AtMost(-0.01, expected=-0.04),
            {"quick": Effort(6), "full": Effort(10)},
            where="300 steps, width 64, four heads",
            bearing="for",
            arms=FOUR_AND_ONE,
        ),
        Trained(
            "late",
            "And after 2,000.",
            AtMost(-0.01, expected=-0.04),
            {"full": Effort(10, LATE)},
            where="2,000 steps, width 64, four heads",
            bearing="for",
            arms=FOUR_AND_ONE,
        ),
        Trained(
            "between",
            "Eight heads are better than two after 300 steps.",
            AtMost(0.0),
            {"quick": Effort(3), "full": Effort(10)},
            counts=False,
            arms=EIGHT_AND_TWO,
        ),
    ),
)
