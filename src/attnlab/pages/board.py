"""TensorBoard with a short name for each run.

TensorBoard calls a run by its path and cuts long names. It is given a directory of links to the
runs instead, whose names say what differs.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd

from attnlab.errors import BadInput
from attnlab.runs.frame import read_runs
from attnlab.runs.groups import groups_of, sweep_of
from attnlab.runs.tables import without_middle

LOOK_AGAIN = 5.0  # seconds, after which TensorBoard looks for new data, too
LONGEST_LINK = 60  # characters of up to four bytes; a file system takes 255 bytes


def board_names(frame: pd.DataFrame) -> dict[str, Path]:
    """A unique name for each run of a frame, with its directory.

    A name has what differs between the runs of one sweep, and the seed: "unscaled seed=0". Where
    the frame has several sweeps, the name of the sweep follows: "unscaled seed=0 (masks)".
    """
    readable = frame[frame["status"] != "damaged"]
    sweeps = readable["folder"].map(sweep_of)
    folders: dict[str, Path] = {}
    for sweep, runs in readable.groupby(sweeps, sort=False):
        end = f" ({Path(sweep).name})" if sweeps.nunique() > 1 else ""
        for group in groups_of(runs):
            for run in group.all_runs.to_dict("records"):
                name = f"{group.label} seed={run['seed']}{end}"
                # TensorBoard takes a slash for a directory.
                name = without_middle(name.replace("/", "|"), LONGEST_LINK)
                folders[_not_among(folders, name)] = Path(run["folder"])
    return folders


def _not_among(taken: Mapping[str, Path], name: str) -> str:
    """The name, with a number if it is taken; some file systems ignore case."""
    without_case = {each.casefold() for each in taken}
    unique = name
    number = 2
    while unique.casefold() in without_case:
        unique = f"{name} #{number}"
        number += 1
    return unique


def link_runs(links: Path, folders: Mapping[str, Path]) -> None:
    """Make `links` hold one link for each name, and nothing else."""
    for link in links.iterdir():
        if link.name not in folders or link.readlink() != folders[link.name]:
            link.unlink()
    for name, folder in folders.items():
        link = links / name
        if not link.is_symlink():
            link.symlink_to(folder, target_is_directory=True)


def show_board(roots: Sequence[Path], arguments: Sequence[str]) -> int:
    """Run TensorBoard on the runs in `roots` until it ends or is interrupted; its exit code.

    `arguments` are further ones of TensorBoard, such as --port=6007. Runs that begin later appear
    by themselves. Raises BadInput if there are no runs that can be read.
    """
    folders = board_names(read_runs(*roots))
    if not folders:
        raise BadInput(f"none of the runs in {', '.join(map(str, roots))} can be read")
    # A process that is told to end takes TensorBoard with it, as after Ctrl-C.
    for number in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, number):  # Windows has no SIGHUP
            signal.signal(getattr(signal, number), signal.default_int_handler)
    with TemporaryDirectory(prefix="attnlab-board-") as links:
        link_runs(Path(links), folders)
        command = [sys.executable, "-m", "tensorboard.main", f"--logdir={links}", *arguments]
        board = None
        try:
            board = subprocess.Popen(command)
            return _wait_and_link(board, Path(links), roots)
        except KeyboardInterrupt:
            return 0
        finally:
            if board is not None:
                _end(board)


def _wait_and_link(board: subprocess.Popen, links: Path, roots: Sequence[Path]) -> int:
    """Link new runs until TensorBoard ends; its exit code."""
    pause = LOOK_AGAIN
    while True:
        try:
            return board.wait(pause)
        except subprocess.TimeoutExpired:
            begin = time.monotonic()
        try:
            link_runs(links, board_names(read_runs(*roots)))
        except (BadInput, OSError):
            continue  # runs were removed while they were read: the links stay until the next look
        # Many runs take long to read: at most a tenth of the time is spent on it.
        pause = max(LOOK_AGAIN, 9 * (time.monotonic() - begin))


def _end(board: subprocess.Popen) -> None:
    """End TensorBoard, by force if it takes longer than ten seconds."""
    board.terminate()
    try:
        board.wait(10)
    except subprocess.TimeoutExpired:
        board.kill()
        board.wait()
