"""Run directories: names, fingerprints, and refusals."""

import errno
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from attnlab.errors import BadInput
from attnlab.runs.run_directory import RunDirectory, folder_for
from attnlab.runs.settings import differences, fingerprint
from tests.conftest import plain, settings
from tests.runs.invented import write_run

CFG = OmegaConf.create({"outputs": "outputs", "name": "lab", "seed": 3})


def name_for(*overrides: str, variant: str = "sdpa") -> str:
    return str(folder_for(CFG, variant, overrides))


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], "attn=sdpa"),
        (["attn=sdpa", "seed=3", "name=lab", "force=true"], "attn=sdpa"),
        (["optim.lr=0.01"], "attn=sdpa,optim.lr=0.01"),
        (["optim.lr=0.3", "+optim.lr=0.01"], "attn=sdpa,optim.lr=0.01"),
        (["+trainer.x=1", "model.n_head=2"], "attn=sdpa,model.n_head=2,trainer.x=1"),
        (["preset=baby"], "attn=sdpa,preset=baby"),
        (["attn.scale=0.5"], "attn=sdpa,attn.scale=0.5"),
        (["data.path='my text.txt'"], "attn=sdpa,data.path=my text.txt"),
    ],
)
def test_a_run_is_named_by_its_changed_settings(overrides: list[str], expected: str) -> None:
    assert name_for(*overrides) == f"outputs/lab/{expected}/seed=3"


@pytest.mark.parametrize(
    "override",
    [
        *("logger=csv", "+logger.mine._target_=x.Y", "~logger", "probes=none"),
        *("probes.patterns.every=7", "trainer.enable_progress_bar=false"),
        *("trainer.log_every_n_steps=3", "+trainer.profiler=simple"),
        "trainer.enable_model_summary=true",
    ],
)
def test_settings_of_logging_keep_the_run_directory(override: str, tmp_path: Path) -> None:
    assert name_for(override) == name_for()
    saved, changed = plain(settings()), plain(settings(override))
    assert differences(saved, changed) == []
    directory = RunDirectory(tmp_path)
    directory.begin(saved, [], fingerprint(saved, "hash"))
    directory.check_is_ours(changed, "hash")
    with pytest.raises(BadInput, match="another corpus"):
        directory.check_is_ours(changed, "another")
    other = changed | {"optim": changed["optim"] | {"lr": 0.5}}
    with pytest.raises(BadInput, match=r"another configuration \(optim.lr\)"):
        directory.check_is_ours(other, "hash")


def test_a_long_name_is_cut_and_stays_unique() -> None:
    long = [f"group.setting_{i}=1" for i in range(9)]
    name, other = (Path(name_for(*long, end)).parent.name for end in ("x.y=1", "x.y=2"))
    assert len(name) == len(other) == 80 and name != other


def test_the_order_of_the_overrides_does_not_count() -> None:
    assert name_for("a=1", "b=2") == name_for("b=2", "a=1")


def test_a_path_in_an_override_adds_no_directory_level() -> None:
    name = name_for("data.path=/data/one/input.txt")
    assert name.startswith("outputs/lab/attn=sdpa,data.path=input.txt~")
    assert name.count("/") == 3
    assert name != name_for("data.path=/data/two/input.txt")
    assert name == name_for("data.path='/data/one/input.txt'")  # quotes are Hydra's


@given(st.lists(st.text(min_size=1, max_size=60).map(lambda v: f"x.y={v}"), max_size=8))
def test_any_override_gives_a_valid_directory_name(overrides: list[str]) -> None:
    path = folder_for(CFG, "sdpa", [o.encode("utf-8", "ignore").decode() for o in overrides])
    assert len(path.parts) == 4
    assert all(len(part.encode()) <= 255 and "\0" not in part for part in path.parts)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc", "a\\b", "x" * 101])
def test_a_name_must_be_one_folder(name: str) -> None:
    with pytest.raises(BadInput, match="must be a plain directory name"):
        folder_for(OmegaConf.merge(CFG, {"name": name}), "sdpa", [])  # type: ignore[arg-type]


def test_the_fingerprint_covers_exactly_the_settings_that_matter() -> None:
    base = fingerprint(plain(settings()), "hash")
    elsewhere = settings("force=true", "name=x", "outputs=/y", "check_layer=false")
    assert base == fingerprint(plain(elsewhere), "hash")
    others = ["seed=1", "optim.lr=0.1", "attn=manual", "checkpoint_every=7", "data.batch_size=3"]
    assert len({base, *(fingerprint(plain(settings(o)), "hash") for o in others)}) == 6
    assert base != fingerprint(plain(settings()), "another")


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("...")
    with pytest.raises(BadInput, match="is not empty and holds no run"):
        RunDirectory(tmp_path).status()


def test_a_damaged_status_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text("{")
    with pytest.raises(BadInput, match="is damaged"):
        RunDirectory(tmp_path).status()


@pytest.mark.parametrize(
    ("entry", "value", "named"),
    [
        *(("unit", None, "unit"), ("corpus", {"sha256": "0"}, "corpus.name")),
        *(("val_loss", "low", "val_loss"), ("status", "diverged", "status")),
    ],
)
def test_damaged_metrics_are_one_sentence(
    tmp_path: Path, entry: str, value: object, named: str
) -> None:
    directory = RunDirectory(write_run(tmp_path, "sdpa", 0, 2.0))
    metrics = directory.metrics()
    directory.metrics_file.write_text(json.dumps(metrics | {entry: value}))
    with pytest.raises(BadInput, match=rf"metrics.json is damaged \(.*{named}"):
        directory.metrics()


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with (
        RunDirectory(tmp_path).locked(),
        pytest.raises(BadInput, match="another process is training in"),
        RunDirectory(tmp_path).locked(),
    ):
        pass
    with RunDirectory(tmp_path).locked():
        pass


@pytest.mark.filterwarnings("ignore:flock not supported")
def test_a_lock_that_was_copied_to_a_file_system_without_locks_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunDirectory(tmp_path).locked():  # leaves its file
        pass

    def missing(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr("fcntl.flock", missing)
    with (
        pytest.raises(
            BadInput, match=r"another process is training .*; if none is, delete .*lock"
        ),
        RunDirectory(tmp_path).locked(),
    ):
        pass
    (tmp_path / ".lock").unlink()
    with RunDirectory(tmp_path).locked():
        pass
