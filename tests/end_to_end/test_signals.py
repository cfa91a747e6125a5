"""SIGKILL, SIGTERM and SIGINT at every moment: a sentence, a code, and then the same bits."""

import hashlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.forked import RUN, at_call, begin, ended, folder_of, same_weights

CODES = {signal.SIGKILL: -9, signal.SIGTERM: 143, signal.SIGINT: 130}
SENTENCE = "the same command "
TEXT = b"To be, or not to be, that is the question:\n" * 60


@pytest.fixture(scope="module")
def whole(text_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that was left alone."""
    scratch = tmp_path_factory.mktemp("whole")
    code, said = ended([*RUN, f"data.path={text_file}", f"outputs={scratch}/o"], scratch)
    assert code == 0, said
    return folder_of(scratch / "o")


def at_flush(number: int, sent: signal.Signals) -> Callable[[], None]:
    """Send this process a signal when a written file is about to be put in its place."""

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
    "validation": lambda sent: at_call(6, "validation_step", sent),
    "checkpoint": lambda sent: at_flush(8, sent),  # the fourth; status and settings were three
}


@pytest.mark.parametrize("sent", CODES)
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_run_that_was_ended_goes_on_to_the_same_bits(
    moment: str, sent: signal.Signals, whole: Path, text_file: Path, tmp_path: Path
) -> None:
    command = [*RUN, f"data.path={text_file}", f"outputs={tmp_path}/o"]
    code, said = ended(command, tmp_path, MOMENTS[moment](sent))
    assert code == CODES[sent], said
    assert "Traceback" not in said
    assert (SENTENCE in said) == (sent != signal.SIGKILL)
    folder = folder_of(tmp_path / "o")
    kept = (folder / "checkpoints" / "last.ckpt").exists()
    assert ("goes on from step" in said) == (kept and sent != signal.SIGKILL), said
    assert json.loads((folder / "status.json").read_text())["status"] == "running"
    code, said = ended(command, tmp_path)
    assert code == 0, said
    assert same_weights(folder, whole)
    assert not list(folder.rglob(".*.[0-9]*"))


class Stalling(BaseHTTPRequestHandler):
    """Sends half of the text, and the rest once it is let."""

    let = threading.Event()
    asked = threading.Event()

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(TEXT)))
        self.end_headers()
        self.wfile.write(TEXT[: len(TEXT) // 2])
        self.asked.set()
        self.let.wait(60)
        try:
            self.wfile.write(TEXT[len(TEXT) // 2 :])
        except OSError:  # who asked has been killed
            return

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    http = ThreadingHTTPServer(("127.0.0.1", 0), Stalling)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    Stalling.let.clear()
    Stalling.asked.clear()
    yield f"http://127.0.0.1:{http.server_port}/"
    Stalling.let.set()
    http.shutdown()


@pytest.mark.parametrize("sent", CODES)
def test_a_download_that_was_ended_leaves_nothing(
    sent: signal.Signals, server: str, tmp_path: Path
) -> None:
    def prepare() -> None:
        from attnlab.data import tinyshakespeare

        tinyshakespeare.PLACES = (server,)
        tinyshakespeare.SHA256 = hashlib.sha256(TEXT).hexdigest()
        tinyshakespeare.SECONDS_TO_ANSWER = 30.0
        os.environ["XDG_CACHE_HOME"] = str(tmp_path / "cache")
        os.environ.pop("ATTNLAB_DATA", None)

    command = [*RUN, "data=tinyshakespeare", f"outputs={tmp_path}/o"]
    running = begin(command, tmp_path, prepare)
    assert Stalling.asked.wait(60)
    time.sleep(0.2)  # until what has come is being read
    assert running.process.pid is not None
    os.kill(running.process.pid, sent)
    code, said = running.end()
    assert code == CODES[sent], said
    assert "Traceback" not in said
    assert (SENTENCE in said) == (sent != signal.SIGKILL)
    assert not (tmp_path / "o").exists()
    assert not any(f.is_file() for f in (tmp_path / "cache").rglob("*"))
    Stalling.let.set()
    code, said = ended(command, tmp_path, prepare)
    assert code == 0, said
