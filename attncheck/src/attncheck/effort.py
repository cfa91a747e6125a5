"""How much is tried of a model. A large one gets less, so that a checkup ends in minutes.

What depends on the length as well as on the weights is beside it, in `Subject`: `dense_length`,
`usual_length` and `affordable_sequences`.
"""

from dataclasses import dataclass, replace

MULTIPLICATIONS = 2**33  # of one scan of a model, about; some seconds of one processor
# Multiplications for a position, from which on less is tried.
VERY_LARGE = 2**23
HUGE = 2**25  # a call takes a tenth of a second or more, a copy in fp64 a quarter of a gigabyte


@dataclass(frozen=True)
class Effort:
    """How much is tried of a model. The values here are those of a small one."""

    # Texts in one call.
    rows: int = 2  # of most properties
    rows_mixed: int = 4  # each of which is changed in turn, to see whether others move
    rows_switched: int = 4  # with gradients and without
    rows_enlarged: int = 4  # with weights 10,000 times as large
    rows_of_prefixes: int = 2

    # Causality.
    scans: int = 2  # of evaluation mode
    beginnings: int = 8  # further texts of evaluation mode, cut near their beginning
    every_nth_cut_with_given: int = 1  # of texts with an optional tensor
    given_in_training: bool = True  # whether optional tensors are also given in training mode
    long_in_every_state: bool = True  # texts of the whole length, also beside evaluation mode
    texts_enlarged: int = 8  # with weights 10,000 times as large

    # Caches.
    prefill: int = 12  # tokens of the first step, before steps with a cache
    single_steps: int = 64  # from an empty cache, at most
    steps_up_to: int = 64  # the length of a text that is decoded after prompts of each length
    prompts: int = 62  # of these lengths, at most
    steps_reordered: int = 5  # with rows in another order
    plans_padded: int = 6

    # Padding and labels.
    every_padding: bool = True  # all rows on each side; False: a side gets some of them
    labeled: int = 24  # tokens of a text with labels

    shares: int = 3  # changes of the weights that tell rounding from a difference
    # Whether other states get all that evaluation mode gets; else some sides, steps and prefixes.
    every_state: bool = True
    in_double: bool = True  # whether outputs are compared in fp64
    # Whether a subject is prepared with texts of the whole length.
    whole_first: bool = True
    not_tried: str = ""  # what the report says of this


FOR_SMALL = Effort()
# From about 2 million weights on, if texts are so long that not all suffixes are affordable.
FOR_LARGE = replace(
    FOR_SMALL, scans=1, beginnings=2, long_in_every_state=False, single_steps=24, prompts=8
)
# From `VERY_LARGE` on.
FOR_VERY_LARGE = replace(
    FOR_LARGE,
    rows=1,
    rows_mixed=2,
    rows_switched=2,
    rows_enlarged=1,
    rows_of_prefixes=1,
    beginnings=1,
    every_nth_cut_with_given=2,
    texts_enlarged=3,
    prefill=6,
    single_steps=3,
    steps_up_to=32,
    prompts=2,
    steps_reordered=2,
    plans_padded=2,
    every_padding=False,
    labeled=12,
    shares=1,
    every_state=False,
    whole_first=False,
    not_tried="some sequences and steps that are tried with smaller models",
)
FOR_HUGE = replace(
    FOR_VERY_LARGE,
    every_nth_cut_with_given=4,
    given_in_training=False,
    in_double=False,
    not_tried="some sequences, steps and states that are tried with smaller models; for it is "
    "examined in its own precision, also leaks below 1e-5 of the largest change, and gradients "
    "that are wrong by less than 1e-3",
)
