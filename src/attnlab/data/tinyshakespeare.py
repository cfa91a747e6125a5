"""TinyShakespeare: found, downloaded where it must be, and checked by its hash.

1,115,394 characters of Shakespeare's plays, collected by Andrej Karpathy for char-rnn (2015).
"""

import hashlib
import os
import queue
import threading
import time
import urllib.request
from collections.abc import Sequence
from http.client import HTTPResponse
from pathlib import Path

from attnlab.data.corpus import Corpus
from attnlab.errors import BadInput
from attnlab.files import write_atomically

SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
PLACES = (
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
    "https://storage.googleapis.com/download.tensorflow.org/data/shakespeare.txt",
)
SECONDS_TO_ANSWER = 4.0
MAX_BYTES = 10_000_000


class NotFound(BadInput):
    """TinyShakespeare is neither here nor to be had."""


def tinyshakespeare(path: str | None = None) -> Corpus:
    """Find TinyShakespeare: at `path`, in the folder $ATTNLAB_DATA, in the cache, or download it.

    Args:
        path: the file itself; None looks at the other places in this order.

    Raises:
        NotFound: it is nowhere.
        BadInput: `path` or $ATTNLAB_DATA leads nowhere, or a file has other bytes than it must.
    """
    return Corpus(name="tinyshakespeare", text=_find(path).read_bytes().decode("ascii"))


def cache_file() -> Path:
    """Where a download is kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "attnlab" / "tinyshakespeare" / "input.txt"


def _find(path: str | None) -> Path:
    if path is not None:
        return _checked(Path(path).expanduser(), "data.path")
    folder = os.environ.get("ATTNLAB_DATA")
    if folder:
        if not Path(folder).is_dir():
            raise BadInput(f"ATTNLAB_DATA = {folder} is not a folder")
        for file in (Path(folder, "tinyshakespeare", "input.txt"), Path(folder, "input.txt")):
            if file.is_file():
                return _checked(file, "ATTNLAB_DATA")
    if cache_file().is_file():
        return _checked(cache_file(), "the cache (delete it to have it downloaded again)")
    download(PLACES, cache_file())
    return cache_file()


def _checked(file: Path, source: str) -> Path:
    try:
        found = hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise BadInput(f"{file}, from {source}, cannot be read: {error.strerror}") from error
    if found != SHA256:
        raise BadInput(
            f"{file}, from {source}, is not TinyShakespeare: its SHA-256 is {found[:12]}... and "
            f"must be {SHA256[:12]}...; for a text of your own say data=text data.path={file}"
        )
    return file


def download(places: Sequence[str], file: Path, seconds: float = SECONDS_TO_ANSWER) -> None:
    """Fetch TinyShakespeare from the first place that answers with the right bytes.

    All places are asked at once, each in a thread, since a name server that does not answer
    cannot be timed out. The file appears whole or not at all.

    Args:
        places: URLs.
        file: where it goes.
        seconds: how long a first answer may take.

    Raises:
        NotFound: no place gave it; the sentence has each place's reason.
    """
    answers: queue.Queue[tuple[str, HTTPResponse | Exception]] = queue.Queue()
    for url in places:
        threading.Thread(target=_ask, args=(url, seconds, answers), daemon=True).start()
    reasons = {url: f"no answer within {seconds:g} seconds" for url in places}
    deadline = time.monotonic() + seconds
    for _ in places:
        try:
            url, answer = answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        try:
            content = _content(answer)
        except (OSError, ValueError) as error:
            reasons[url] = str(error)
            continue
        try:
            write_atomically(file, content)
        except OSError as error:
            raise BadInput(f"{file} cannot be written: {error.strerror}") from error
        return
    told = "; ".join(f"{url}: {reason}" for url, reason in reasons.items())
    raise NotFound(
        "TinyShakespeare is not here and could not be downloaded. Put its input.txt anywhere and "
        "say data=tinyshakespeare data.path=FILE, or train on the embedded corpus by data=plays. "
        f"({told})"
    )


def _ask(
    url: str, seconds: float, answers: "queue.Queue[tuple[str, HTTPResponse | Exception]]"
) -> None:
    try:
        answers.put((url, urllib.request.urlopen(url, timeout=seconds)))
    except Exception as error:  # whatever it is, the asking thread must hear of it
        answers.put((url, error))


def _content(answer: HTTPResponse | Exception) -> bytes:
    if isinstance(answer, Exception):
        raise OSError(str(answer)) from answer
    with answer:
        content = answer.read(MAX_BYTES)
    found = hashlib.sha256(content).hexdigest()
    if found != SHA256:
        raise ValueError(f"gave other bytes, with SHA-256 {found[:12]}...")
    return content
