"""Results of attnlab 0.1.0 that later versions would not give, because an error was mended."""

from collections.abc import Callable

from attnlab.settings.roles import Settings

SINCE = "instruction_set"  # a metric of every result of later versions


# Whether the result with these settings, under dotted keys, was wrong.
WasWrong = Callable[[Settings], bool]


def is_limited(settings: Settings) -> bool:
    """Whether `limit_val_batches` leaves out some: 1.0 is the share of all, 1 is one batch."""
    limit = settings.get("trainer.limit_val_batches")
    return limit is not None and not (isinstance(limit, float) and limit == 1)


def clips_values(settings: Settings) -> bool:
    """Whether each number of a gradient is to be clipped."""
    by_value = settings.get("trainer.gradient_clip_algorithm") == "value"
    return by_value and bool(settings.get("trainer.gradient_clip_val"))


# Settings of the trainer, when the result was wrong, and what was wrong.
WRONG_RESULTS: dict[str, tuple[WasWrong, str]] = {
    "limit_val_batches": (is_limited, "the loss was divided by all predictions, read or not"),
    "gradient_clip_algorithm": (clips_values, "gradients were clipped by norm"),
    "fast_dev_run": (
        lambda settings: bool(settings.get("trainer.fast_dev_run")),
        "the steps were others",
    ),
    "limit_train_batches": (
        lambda settings: settings.get("trainer.limit_train_batches") is not None,
        "the batches were others",
    ),
    "overfit_batches": (
        lambda settings: bool(settings.get("trainer.overfit_batches")),
        "the batches were others",
    ),
}
# Callbacks of Lightning that change what is trained, of which the settings say nothing.
CHANGE_TRAINING = (
    "BatchSizeFinder",
    "GradientAccumulationScheduler",
    "LearningRateFinder",
    "ModelPruning",
    "StochasticWeightAveraging",
)


def what_was_wrong(settings: Settings, metrics: Settings) -> str:
    """Why a run with these settings and metrics, under dotted keys, is not to be compared; "" if
    it may be."""
    if not metrics or SINCE in metrics:  # without a result, or of a later version
        return ""
    for name, (was_wrong, why) in WRONG_RESULTS.items():
        if was_wrong(settings):
            setting = f"trainer.{name} = {settings[f'trainer.{name}']}"
            return f"trained by an older version, in which, with {setting}, {why}"
    for key, target in settings.items():
        _, _, name = str(target).rpartition(".")
        if key.startswith("callbacks.") and name in CHANGE_TRAINING:
            return f"trained by an older version with {name}, which changed what was trained"
    return ""
