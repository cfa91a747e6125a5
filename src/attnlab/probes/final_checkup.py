"""The probe that runs a checkup on the trained model."""

from typing import Any

import lightning.pytorch as L

from attnlab.checkup import checkup
from attnlab.files import write_atomically
from attnlab.probes.base import Probe, log_scalars, log_text, run_directory


class Checkup(Probe):
    """Examines the trained model, like `attnlab checkup`.

    It writes `checkup.healthy` and `checkup.causes` to metrics.json, logs the scalar
    `checkup/healthy`, and leaves `checkup.json` and `checkup.html` in the run directory. With
    `prove`, it also tries to prove a leak by training a copy on fresh uniform tokens.
    """

    def __init__(self, *, prove: bool) -> None:
        super().__init__()
        self.prove = prove

    def on_fit_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        # Lightning skips `on_train_end` if a run resumes at its last step, and before this hook it
        # has moved the model to the CPU.
        net = pl_module.net.to(trainer.strategy.root_device)
        report = checkup(net, prove=self.prove, name="the trained model")
        self.record = {"checkup.healthy": report.healthy, "checkup.causes": list(report.causes)}
        log_scalars(trainer, {"checkup/healthy": float(report.healthy)}, trainer.global_step)
        lines = [f"{d.status.value}: {d.headline}" for d in report.diagnoses]
        log_text(trainer, "checkup", "\n".join(lines or ["healthy"]), trainer.global_step)
        if trainer.is_global_zero:
            folder = run_directory(trainer)
            write_atomically(folder / "checkup.json", f"{report.to_json()}\n".encode())
            write_atomically(folder / "checkup.html", report.to_html().encode())
