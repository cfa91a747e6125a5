"""After SIGKILL, SIGTERM, and SIGINT at any time, the result is bit-identical."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.forked import RUN, at_call, ended, folder_of, same_weights
from tests.marks import sampled

CODES = {signal.SIGKILL: -9, signal.SIGTERM: 143, signal.SIGINT: 130}
SENTENCE = "the same command "


@pytest.fixture(scope="module")
def whole(text_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed run."""
    scratch = tmp_path_factory.mktemp("whole")
    code, said = ended([*RUN, f"data.path={text_file}", f"outputs={scratch}/o"], scratch)
    assert code == 0, said
    return folder_of(scratch / "o")


def at_flush(number: int, sent: signal.Signals) -> Callable[[], None]:
    """Send this process a signal when a written file is about to be renamed."""

    def prepare() -> None:
        fsync, calls = os.fsync, []

        def counted(descriptor: int) -> None:
            calls.append(descriptor)
            if len(calls) == number:
                os.kill(os.getpid(), sent)
            fsync(descriptor)

        os.fsync = counted

    return prepare


MOMENTS = {
    "training": lambda sent: at_call(7, "training_step", sent),
    "validation": lambda sent: at_call(3, "validation_step", sent),
    "checkpoint": lambda sent: at_flush(8, sent),  # the fourth; status and settings were three
}
SAMPLE = {  # `make test-all` pairs all of them; the sample of the campaign has kills
    ("training", signal.SIGTERM),
    ("validation", signal.SIGINT),
}
PAIRS = [(moment, sent) for moment in MOMENTS for sent in CODES]


@pytest.mark.parametrize(("moment", "sent"), sampled(PAIRS, lambda pair: pair in SAMPLE))
def test_a_run_ended_by_a_signal_resumes_to_the_same_bits(
    moment: str, sent: signal.Signals, whole: Path, text_file: Path, tmp_path: Path
) -> None:
    command = [*RUN, f"data.path={text_file}", f"outputs={tmp_path}/o"]
    code, said = ended(command, tmp_path, MOMENTS[moment](sent))
    assert code == CODES[sent], said
    assert "Traceback" not in said
    assert (SENTENCE in said) == (sent != signal.SIGKILL)
    folder = folder_of(tmp_path / "o")
    kept = (folder / "checkpoints" / "last.ckpt").exists()
    assert ("resumes from step" in said) == (kept and sent != signal.SIGKILL), said
    assert json.loads((folder / "status.json").read_text())["status"] == (
        "running" if sent == signal.SIGKILL else "interrupted"
    )
    code, said = ended(command, tmp_path)
    assert code == 0, said
    assert same_weights(folder, whole)
    assert not list(folder.rglob("*.tmp"))
