"""Hydra's launcher of `-m`: the runs of a sweep in workers. Hydra looks for it in this package."""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, configure_log, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

from attnlab.training.summary import note_failure


class ProcessLauncher(Launcher):
    """Trains `n_jobs` runs of a sweep at once, each in a worker; a single one in this process."""

    def __init__(self, n_jobs: int) -> None:
        self.n_jobs = n_jobs

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Keep what Hydra hands over before it launches runs."""
        self.config = config
        self.train_job = partial(
            train_job, context=hydra_context, config=config, task=task_function
        )

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Train runs, and note those whose worker died; what each returned, in their order."""
        from attnlab.training.workers import Workers

        setup_globals()
        hydra = self.config.hydra
        configure_log(hydra.hydra_logging, hydra.verbose)
        Path(str(hydra.sweep.dir)).mkdir(parents=True, exist_ok=True)
        runs = list(enumerate(job_overrides, start=initial_job_idx))
        if self.n_jobs == 1:
            return [self.train_job(number, overrides) for number, overrides in runs]
        returned: dict[int, JobReturn] = {}
        in_worker = partial(train_job_in_worker, self.train_job, Singleton.get_state())
        with Workers(self.n_jobs) as workers:
            for (number, overrides), future in workers.each(in_worker, runs):
                if error := future.exception():
                    note_failure(hydra, number, overrides, error)
                    lost = JobReturn(overrides, status=JobStatus.COMPLETED)
                    lost.return_value = math.nan  # as of a run that failed by itself
                    returned[number] = lost
                else:
                    returned[number] = future.result()
        return [returned[number] for number, _ in runs]


def train_job(
    number: int,
    overrides: Sequence[str],
    context: HydraContext,
    config: DictConfig,
    task: TaskFunction,
) -> JobReturn:
    """Train the run of a sweep that has this number, as Hydra's own launchers do."""
    composed = context.config_loader.load_sweep_config(config, list(overrides))
    with open_dict(composed):
        composed.hydra.job.id = f"{composed.hydra.job.name}_{number}"
        composed.hydra.job.num = number
    HydraConfig.instance().set_config(composed)
    return run_job(
        hydra_context=context,
        config=composed,
        task_function=task,
        job_dir_key="hydra.sweep.dir",
        job_subdir_key="hydra.sweep.subdir",
    )


def train_job_in_worker(
    train_job: "partial[JobReturn]",
    singletons: dict[Any, Any],
    number: int,
    overrides: Sequence[str],
) -> JobReturn:
    """Train a run in a process that has none of Hydra's plugins and resolvers yet."""
    setup_globals()
    Singleton.set_state(singletons)
    return train_job(number, overrides)
