"""Hydra's launcher `pool`: a sweep in processes that import once for all their runs."""

import inspect
import math
import operator
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, configure_log, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

# Hydra imports this module for every command, so functions import whatever takes time.
MOST_ON_A_GPU = 8  # processes that share a GPU by default


class PoolLauncher(Launcher):
    """Runs the runs of a sweep in `n_jobs` processes, each with its share of the cores; see
    conf/hydra/launcher/pool.yaml."""

    def __init__(self, n_jobs: int | None = None) -> None:
        self.n_jobs = n_jobs

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Keep what `launch` needs; Hydra calls this first."""
        self.context, self.task, self.config = hydra_context, task_function, config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Do the runs, seed by seed, and print a line with the time left when each ends. Returns
        the losses, NaN for a run whose process died. A sweeper may call this several times."""
        from attnlab.training.callbacks import time_left
        from attnlab.training.sweeps import Forecast, note_failure, seed_by_seed

        setup_globals()
        configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
        folder = Path(str(self.config.hydra.sweep.dir))
        tasks = list(enumerate(job_overrides, initial_job_idx))
        forecast, ended = Forecast(len(tasks), self._jobs(len(tasks))), dict[int, JobReturn]()
        for (number, overrides), result, log in self._results(
            seed_by_seed(tasks), folder / "logs"
        ):
            ended[number] = JobReturn(overrides, status=JobStatus.COMPLETED)
            loss, seconds = (math.nan, None) if result is None else result
            ended[number].return_value = loss
            if result is None:
                reason = f"its process died (out of memory?); see {log}"
                note_failure(folder, number, overrides, "failed", reason)
                line = f"{' '.join(overrides)}: failed, {reason}"
            else:
                line = log.read_text(errors="replace").splitlines()[-1]
            left = forecast.after(time.monotonic(), None if "already done" in line else seconds)
            more = f", {time_left(left)}" if left else ""
            print(f"{line} ({len(ended)} of {len(tasks)}{more})", flush=True)
        return [ended[number] for number, _ in tasks]

    def _jobs(self, tasks: int) -> int:
        """The number of processes."""
        import torch

        from attnlab.errors import BadInput
        from attnlab.workers import cores

        if self.n_jobs is not None and (type(self.n_jobs) is not int or self.n_jobs < 1):
            raise BadInput(f"hydra.launcher.n_jobs = {self.n_jobs} must be at least 1, or null")
        usual = min(cores(), MOST_ON_A_GPU) if torch.cuda.is_available() else cores()
        return min(self.n_jobs or usual, tasks)

    def _results(self, tasks: Sequence[Any], logs: Path) -> Iterator[tuple[Any, Any, Path]]:
        """Start the runs; each one, its loss with its seconds, and its log when it ends."""
        from attnlab.errors import counted
        from attnlab.workers import cores, run_tasks, threads_given

        jobs = self._jobs(len(tasks))
        both = f"{counted(len(tasks), 'run')} in {counted(jobs, 'process', 'es')}"
        print(f"{both}; their output is in {logs}")
        do = partial(
            _do_job,
            context=self.context,
            config=self.config,
            task=(self.task.__module__, self.task.__qualname__),
            singletons=Singleton.get_state()["instances"],
        )
        threads = threads_given() or max(1, cores() // jobs)
        return run_tasks(do, tasks, jobs, logs, threads=threads)


def _do_job(
    job: tuple[int, Sequence[str]],
    context: HydraContext,
    config: DictConfig,
    task: tuple[str, str],
    singletons: dict[Any, Any],
) -> tuple[float, float]:
    """In a worker: do a run by the function that `hydra.main` wraps, given by module and name.
    Returns its loss and its seconds without imports."""
    from attnlab.imports import fast_imports

    with fast_imports():
        import attnlab.training.run  # noqa: F401
    number, overrides = job
    setup_globals()
    Singleton.set_state(Singleton.get_state() | {"instances": singletons})
    run_config = context.config_loader.load_sweep_config(config, list(overrides))
    with open_dict(run_config):
        run_config.hydra.job.id = run_config.hydra.job.num = number
    function = inspect.unwrap(operator.attrgetter(task[1])(sys.modules[task[0]]))
    began = time.monotonic()
    done = run_job(function, run_config, "hydra.sweep.dir", "hydra.sweep.subdir", context)
    return float(done.return_value), time.monotonic() - began
