"""Is a self-attention layer faster than a recurrent one for texts shorter than its width?"""

from attnlab.claims import AtLeast, Claim, Measured

from .measure import times


def _shown(name: str, says: str, value: str, unit: str = "times as long") -> Measured:
    """Times of one processor are shown and not judged."""
    return Measured(
        name,
        says,
        AtLeast(0.0, unit=unit),
        role="shown",
        seeds=10,
        seconds=13,
        timed=True,
        measure=times,
        value=value,
    )


CLAIM = Claim(
    says="Self-attention is faster than recurrence up to a length equal to its width.",
    last_look=10,
    first_seed=300,
    headline="gru_equal",
    order=20,
    predictions=(
        _shown("gru_short", "The time of `nn.GRU` at a quarter of the width.", "GRU at 32"),
        _shown("gru_equal", "The time of `nn.GRU` at a length equal to the width.", "GRU at 128"),
        _shown("rnn_short", "The time of `nn.RNN` at half of the width.", "RNN at 64"),
        _shown("rnn_equal", "The time of `nn.RNN` at a length equal to the width.", "RNN at 128"),
        _shown("too_long", "The time of `nn.GRU` at 16 times the width.", "GRU at 2048"),
        _shown(
            "crossover",
            "The length up to which attention is faster than `nn.GRU`.",
            "GRU crossover",
            unit="(length over width)",
        ),
    ),
)
