"""Hydra's launchers `submitit_slurm` and `submitit_local`: a lost job does not end a sweep."""

import math
import signal
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher

from attnlab.training.slurm import USER_SIGNALS

# Hydra imports this module for every command, so functions import whatever takes time.
Plugin: Any = Launcher  # SweepSummary refuses the launcher if the plugin is missing
if find_spec("hydra_plugins.hydra_submitit_launcher") is not None:
    from hydra_plugins.hydra_submitit_launcher.submitit_launcher import BaseSubmititLauncher

    Plugin = BaseSubmititLauncher
COMMON = (  # parameters that submitit has for every cluster
    *("timeout_min", "cpus_per_task", "gpus_per_node", "tasks_per_node", "mem_gb", "nodes"),
    *("name", "stderr_to_stdout"),
)


class SubmititLauncher(Plugin):
    """Each run is a job. The plugin's own `launch` would end the sweep with the error of the first
    job that has no result, such as one that was cancelled."""

    cluster: str

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Submit the jobs, and print a line when each ends. Returns the losses, NaN for a job
        without a result. A sweeper may call this several times."""
        jobs = self._submitted(job_overrides, initial_job_idx)
        print(f"{len(jobs)} jobs; their output is in {jobs[0].paths.folder.parent}", flush=True)
        ended: dict[int, JobReturn] = {}
        while len(ended) < len(jobs):
            for number, job in enumerate(jobs):
                if number not in ended and job.done():
                    overrides = job_overrides[number]
                    ended[number] = self._result(job, overrides, initial_job_idx + number)
                    loss = float(ended[number].return_value)
                    outcome = "no result" if math.isnan(loss) else f"val loss {loss:.4f}"
                    line = f"{' '.join(overrides)}: {outcome} ({len(ended)} of {len(jobs)})"
                    print(line, flush=True)
            time.sleep(1)
        return [ended[number] for number in range(len(jobs))]

    def __call__(self, *arguments: Any) -> Any:
        """One run, in its job. As in train.py, signals of a time limit wait for the first step."""
        signal.pthread_sigmask(signal.SIG_BLOCK, USER_SIGNALS)
        return super().__call__(*arguments)

    def _submitted(self, job_overrides: Sequence[Sequence[str]], first: int) -> Sequence[Any]:
        import submitit

        options = dict(self.params)
        folder, limit = options.pop("submitit_folder"), options.pop("max_num_timeout", None)
        once = {} if limit is None else {f"{self.cluster}_max_num_timeout": limit}
        executor = submitit.AutoExecutor(folder, cluster=self.cluster, **once)
        executor.update_parameters(
            **{key if key in COMMON else f"{self.cluster}_{key}": x for key, x in options.items()}
        )
        Path(str(self.config.hydra.sweep.dir)).mkdir(parents=True, exist_ok=True)
        numbers = range(first, first + len(job_overrides))
        jobs: Sequence[Any] = executor.map_array(
            self,  # called in the job, by the plugin's __call__
            [list(overrides) for overrides in job_overrides],
            ["hydra.sweep.dir"] * len(numbers),
            list(numbers),
            [f"job_id_for_{number}" for number in numbers],
            [Singleton.get_state()] * len(numbers),
        )
        return jobs

    def _result(self, job: Any, overrides: Sequence[str], number: int) -> JobReturn:
        """What an ended job returned; a note for the summary of the sweep if that is nothing."""
        from submitit.core.utils import FailedJobError, UncompletedJobError

        from attnlab.training.sweeps import note_failure

        try:
            done: JobReturn = job.results()[0]
            done.return_value  # noqa: B018  # raises the error of a failed job
            return done
        except UncompletedJobError:
            reason = (
                f"job {job.job_id} ended without a result ({job.state}); see {job.paths.stdout}"
            )
            note = "interrupted", reason, ""
        except FailedJobError as error:
            note = "failed", f"job {job.job_id} failed; see {job.paths.stderr}", str(error)
        folder = Path(str(self.config.hydra.sweep.dir))
        note_failure(folder, number, overrides, *note)
        lost = JobReturn(overrides, status=JobStatus.COMPLETED)
        lost.return_value = math.nan
        return lost


class SlurmLauncher(SubmititLauncher):
    """Jobs of Slurm, as one array; see conf/hydra/launcher/submitit_slurm.yaml."""

    cluster = "slurm"


class LocalLauncher(SubmititLauncher):
    """Processes on this machine; see conf/hydra/launcher/submitit_local.yaml."""

    cluster = "local"
