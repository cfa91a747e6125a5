"""What a signal means to a run, also in a job of Slurm. Imports nothing that takes time."""

import os
import shutil
import signal
import subprocess
from types import FrameType

from attnlab.errors import Terminated

USER_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)  # of `sbatch --signal`: the time is almost over


def is_batch_job() -> bool:
    """Whether this is a job of Slurm that nobody sits in front of; the names of interactive jobs
    are Lightning's convention."""
    interactive = os.environ.get("SLURM_JOB_NAME") in ("bash", "interactive")
    return "SLURM_JOB_ID" in os.environ and not interactive


def terminate(number: int, frame: FrameType | None) -> None:
    """The handler of SIGTERM, SIGUSR1 and SIGUSR2; raises Terminated.

    It ignores SIGTERM in a batch job. Slurm sends it some seconds before SIGKILL, and requeues a
    preempted job only if it is still running then; an exit would count as a failure.
    """
    if number != signal.SIGTERM or not is_batch_job():
        raise Terminated(number)


def requeue(end: Terminated) -> bool:
    """Put the job of Slurm that a user signal ended back into the queue, and say whether Slurm
    did. It refuses jobs that were submitted with --no-requeue."""
    scontrol = shutil.which("scontrol")
    if end.signal not in USER_SIGNALS or not is_batch_job() or scontrol is None:
        return False
    job = os.environ["SLURM_JOB_ID"]
    if "SLURM_ARRAY_JOB_ID" in os.environ:
        job = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    return subprocess.run([scontrol, "requeue", job], check=False).returncode == 0
