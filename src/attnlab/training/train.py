"""A training from the words of a command, without Hydra's application: for Python and claims."""

from collections.abc import Sequence
from pathlib import Path

import lightning.pytorch as L

from attnlab.errors import BadInput
from attnlab.interrupts import interrupts_wait
from attnlab.runs.run_directory import RunDirectory, folder_for
from attnlab.settings.words import composed_from
from attnlab.training.config import read_config
from attnlab.training.given_callbacks import is_repeatable, with_callbacks
from attnlab.training.notebook import with_progress
from attnlab.training.run import RunOutcome, run


def train(
    words: Sequence[str],
    *,
    config_dir: str | None = None,
    folder: Path | None = None,
    callbacks: Sequence[L.Callback] = (),
    quiet: bool = False,
) -> RunOutcome:
    """The run of `python train.py WORDS`; BadInput where the command would print a sentence.

    Args:
        words: the overrides of the command.
        config_dir: a directory of the user's own settings, as --config-dir.
        folder: where the run goes, by default where the command puts it.
        callbacks: objects of Lightning, beside those that the words name.
        quiet: as for `run`.
    """
    cfg, variant = composed_from(words, config_dir)
    config = read_config(cfg)
    if "tensorboard" in config.loggers:
        with interrupts_wait():  # Ctrl-C in this import would leave it half done for good
            import torch.utils.tensorboard  # noqa: F401
    config, named = with_callbacks(config, callbacks)
    overrides = [*words, *named]
    folder = folder or folder_for(config.settings.plain(), variant, overrides)
    exists = RunDirectory(folder).config.exists()
    if exists and not is_repeatable(config) and not config.settings.force:
        raise BadInput(
            f"{folder} has a callback with arguments that cannot be read, so it is neither "
            "repeated nor resumed; use another name=, or force=True"
        )
    if not quiet:
        config = with_progress(config)
    return run(
        config,
        folder,
        variant=variant,
        overrides=overrides,
        config_dirs=[] if config_dir is None else [config_dir],
        quiet=quiet,
    )
