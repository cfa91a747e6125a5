"""Scalars from TensorBoard's event files, compared with TensorBoard's own reader."""

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from attnlab.runs.event_files import read_scalars
from attnlab.runs.pairing import pairs
from attnlab.runs.printing import log_sentences
from attnlab.runs.reading import read_runs
from tests.runs.invented import write_run


def theirs(folder: Path) -> dict[str, dict[int, float]]:
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    tags = events.Tags()["scalars"]
    read = {tag: {e.step: e.value for e in events.Scalars(tag)} for tag in tags}
    return {tag: values for tag, values in read.items() if values}


def write(folder: Path, steps: list[int], value: float, purge: int | None = None) -> None:
    suffix = f".{len(list(folder.glob('*')))}"  # sorts the files of one second
    with SummaryWriter(folder, purge_step=purge, filename_suffix=suffix) as writer:
        for step in steps:
            writer.add_scalar("a", value + step, step)
            writer.add_scalar("b/c", value, step)
        writer.add_histogram("h", torch.arange(9.0), 0)
        writer.add_image("i", torch.zeros(3, 4, 4), 0)


@given(
    st.lists(st.integers(0, 40), max_size=12),
    st.integers(0, 40),
    st.lists(st.integers(0, 40), max_size=12),
)
def test_as_tensorboard_reads_them(
    tmp_path_factory: pytest.TempPathFactory, first: list[int], start: int, then: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("events")
    write(folder, sorted(first), 0.5)
    write(folder, sorted(start + step for step in then), 100.5, purge=start)
    found = {tag: values for tag, values in read_scalars(folder).items() if values}
    assert found == theirs(folder)


def test_an_unfinished_event_file_is_read_up_to_its_end(tmp_path: Path) -> None:
    write(tmp_path, list(range(20)), 1.0)
    (file,) = tmp_path.iterdir()
    content = file.read_bytes()
    whole = read_scalars(tmp_path)["a"]
    for length in range(0, len(content), 97):
        file.write_bytes(content[:length])
        part = read_scalars(tmp_path).get("a", {})
        assert part.items() <= whole.items()


def test_nan_is_nan(tmp_path: Path) -> None:
    write(tmp_path, [3], math.nan)
    assert math.isnan(read_scalars(tmp_path)["b/c"][3])


def test_tensorboard_shows_what_comparisons_say_of_each_run(tmp_path: Path) -> None:
    made = (("sdpa", 0, 2.0), ("unscaled", 0, 2.1), ("unscaled", 1, 2.1))  # without a partner
    folders = [write_run(tmp_path, *each) for each in made]
    for folder in folders[:2]:
        (folder / "events.out.tfevents.1.host.1").touch()
    runs = read_runs(tmp_path)
    for _ in range(2):  # the second text replaces the first
        log_sentences(runs, pairs(runs))
    for folder in folders[:2]:
        read = EventAccumulator(str(folder))
        read.Reload()
        (text,) = read.Tensors("result")
        assert text.tensor_proto.string_val[0].startswith(b"unscaled ends 0.100 nats worse")
        assert len(list(folder.glob("events*"))) == 2 and read_scalars(folder) == {}
    assert not list(folders[2].glob("events*"))
