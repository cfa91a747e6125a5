"""Hydra's application around a training: what the command asked for, and how failures are told."""

import gc
import math
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from hydra.conf import HydraConf
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from typing_extensions import Self

from attnlab.errors import BadInput
from attnlab.openmp import wait_briefly
from attnlab.settings.typed import for_hydra
from attnlab.training import summary, sweep_progress

if TYPE_CHECKING:
    from attnlab.training.config import RunConfig
    from attnlab.training.run import Request, RunOutcome


class Job:
    """A run of the command, alone or in a sweep; a context that tells why the run has failed.

    A failure ends the process with a sentence and the exit code. In a sweep it is noted, and the
    other runs go on.
    """

    def __init__(self) -> None:
        self.hydra: HydraConf = HydraConfig.get()
        self.overrides = list(self.hydra.overrides.task)
        self.config_dirs = summary.own_config_dirs(self.hydra)
        self.outcome: RunOutcome | None = None  # None: there is none, as the run has failed
        # The directory of the sweep, which is not that of its runs.
        self.sweep = Path(self.hydra.sweep.dir) if self.hydra.mode == RunMode.MULTIRUN else None

    def __enter__(self) -> Self:
        """Note the begin of the run, if it belongs to a sweep."""
        if self.sweep:
            sweep_progress.note_begin_of_run(self.sweep, self.hydra.job.num)
        return self

    def request(self, config: "RunConfig") -> "Request":
        """What the command asked for beside the settings; BadInput if it asked Hydra to place the
        run, because attnlab writes the directory."""
        from attnlab.runs.run_directory import folder_for
        from attnlab.training.run import Request

        directories = {
            "hydra.run.dir": self.hydra.run.dir,
            "hydra.sweep.subdir": self.hydra.sweep.subdir,
        }
        for key, directory in directories.items():
            if directory != ".":  # what conf/train.yaml has
                raise BadInput(
                    f"{key} = {directory} has no effect; use outputs= and name= to place a run"
                )
        if self.hydra.job.chdir:
            raise BadInput("hydra.job.chdir has no effect; use outputs= to place a run")
        # A variant in a folder of the user's, such as mine/layer, is one part of a path.
        variant = str(self.hydra.runtime.choices["attn"]).replace("/", "-")
        folder = folder_for(config.settings.plain(), variant, self.overrides)
        quiet = self.sweep is not None
        return Request(folder, variant, self.overrides, self.config_dirs, quiet)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """Exit with a code that tells how the run failed: 130 for Ctrl-C, 2 for BadInput, 1 for
        another error. In a sweep, note an error and go on instead."""
        # Only before or after what Lightning runs, where it handles Ctrl-C itself.
        if isinstance(error, KeyboardInterrupt):
            raise SystemExit(128 + signal.SIGINT) from None
        if not isinstance(error, Exception):
            return False
        if self.sweep:  # the other runs go on, and the sweep ends with code 1
            summary.note_failure(self.hydra, self.hydra.job.num, self.overrides, error)
            return True
        if isinstance(error, BadInput):
            print(f"error: {error}", file=sys.stderr)
            raise SystemExit(2) from None
        # Printed here, because `start` would explain a ValueError or an OSError as one of Hydra's
        # or of a sweep's.
        traceback.print_exception(error)
        raise SystemExit(1) from None

    def loss(self) -> float:
        """The final validation loss, NaN if the run failed. What the run found is printed: in a
        sweep a line, for a single run a summary."""
        if self.outcome is None:
            return math.nan
        loss = float(self.outcome.metrics["val_loss"])
        if not self.outcome.first:
            return loss  # with several devices, one process prints
        if self.sweep:
            progress = sweep_progress.note_end_of_run(self.sweep, self.hydra.job.num)
            print(f"[{progress}] {self.outcome.folder}: val loss {loss:.4f}", flush=True)
        else:
            summary.show_run(self.outcome, self.overrides, self.config_dirs)
        return loss


@contextmanager
def swift_imports() -> Iterator[None]:
    """Import without collecting garbage, which takes half of the time; imports leave hardly any.
    Nothing changes where a sweep has trained in this process before."""
    if "lightning.pytorch" in sys.modules:
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
    gc.freeze()  # later collections leave out what was imported


def start(main: Callable[[], object]) -> None:
    """Call `main`, a function under hydra.main, so that it ends as a command should: in place of a
    traceback of Hydra's there is a sentence and the exit code 2, and for an interrupted sweep a
    line that says what is left. With HYDRA_FULL_ERROR there are tracebacks."""
    # Waiting threads of torch give up their core soon. It must be set before torch is imported.
    wait_briefly()
    sys.path.append(str(Path.cwd()))  # last, so that it replaces no installed module
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # For ${processes:...} in conf/hydra/launcher.
    OmegaConf.register_new_resolver("processes", sweep_progress.runs_at_once, replace=True)
    sys.argv = [for_hydra(word) for word in sys.argv]
    if "HYDRA_FULL_ERROR" in os.environ:  # the user wants the traceback
        main()
        return
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises what it refuses, for us to explain it
    try:
        main()
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        from attnlab.settings.words import explanation

        GlobalHydra.instance().clear()  # `explanation` composes settings of its own
        print(f"error: {explanation(error, sys.argv[1:])}", file=sys.stderr)
        raise SystemExit(2) from None
    except OSError as error:  # from the notes of a sweep; `Job` explains errors of a run
        GlobalHydra.instance().clear()
        print(f"error: {summary.cannot_be_written(error)}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        summary.show_interruption()
        raise SystemExit(128 + signal.SIGINT) from None
    except SystemExit as end:
        if end.code in (128 + signal.SIGINT, 128 + signal.SIGTERM):
            summary.show_interruption()
        options = [word for word in sys.argv[1:] if word.startswith("-")]
        if end.code == 2 and options:  # argparse has printed the usage of Hydra's own options
            from attnlab.settings.words import hint_on_options

            GlobalHydra.instance().clear()
            print(hint_on_options(sys.argv[1:]), end="", file=sys.stderr)
        raise
    finally:
        del os.environ["HYDRA_FULL_ERROR"]
