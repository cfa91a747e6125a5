"""What eight runs measure, against commit b308e5e: metrics.json, history.json, TensorBoard."""

import json
import os
import subprocess
import sys
import zlib
from base64 import b64decode
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.old import ROOT, old_code

COMMON = (
    "preset=micro model.block_size=32 data.batch_size=4 optim.warmup_steps=1 trainer.max_steps=6 "
    "trainer.val_check_interval=3 trainer.accelerator=cpu probes=default probes.gradients.every=2 "
    "probes.patterns.every=2 probes.patterns.heads=true hydra/launcher=basic"
).split()
SWEEPS = {
    "text": "attn=sdpa,peek_one,value_residual,single_head,mqa,identical_heads data=text",
    "task": "attn=sdpa,delta_net data=mqar",
}
# What was dropped, or is written elsewhere, or is a time, as patterns of names.
DROPPED = [
    # metrics.json
    "attention", "check_layer", "compiled", "device_name", "git*", "symbols", "versions.*",
    "val_bits_per_byte",  # "bits_per_byte" now
    "corpus.characters", "costs.flops_counted", "costs.not_counted", "tokens_per_second",
    "wall_seconds", "probes.attn/entropy_nats*", "probes.attn/jacobian_trace_predicted",
    "probes.attn/js_divergence", "probes.attn/largest_score", "probes.attn/ov_similarity",
    "probes.attn/qk_similarity", "probes.val/gap",
    "entropy_nats",  # in the snapshots of history.json
    # TensorBoard
    "attn/entropy_nats*", "attn/jacobian_trace_predicted*", "attn/js_divergence*",
    "attn/largest_score*", "attn/ov_similarity*", "attn/qk_similarity*", "grad/L?/*", "hp/*",
    "position/*", "update/*", "val/gap",
    "head_similarity", "loss_by_position", "pattern/L?",  # pictures; these are of validations now
]  # fmt: skip
# Those of some runs: the old code did not know what generation keeps with this mask, and called
# the answers of a task characters.
DROPPED_OF = {"peek_one": "costs.cached", "task": "unit"}


def train(root: Path, folder: Path) -> dict[str, dict[str, Any]]:
    """{run: {name: value}} of the eight runs of the code in `root`."""
    text = folder.parent / "text.txt"
    text.write_text("To be, or not to be: that is the question.\nWhether 'tis nobler " * 60)
    found: dict[str, dict[str, Any]] = {}
    for sweep, given in SWEEPS.items():
        own = [f"data.path={text}"] if sweep == "text" else []
        command = [sys.executable, "train.py", "-m", *given.split(), *own, *COMMON]
        environ = os.environ | {"PYTHONPATH": f"{root}/src", "OMP_NUM_THREADS": "1"}
        command += [f"outputs={folder / sweep}"]
        subprocess.run(command, cwd=root, env=environ, check=True, capture_output=True)
        for metrics in sorted(folder.glob(f"{sweep}/lab/*/seed=0/metrics.json")):
            name = f"{sweep} {metrics.parent.parent.name.split(',')[0]}"
            found[name] = dict(flat(json.loads(metrics.read_text()))) | recorded(metrics.parent)
    return found


def flat(content: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(content, dict):
        yield place, content
        return
    for key, value in content.items():
        yield from flat(value, f"{place}.{key}" if place else key)


def recorded(run: Path) -> dict[str, Any]:
    """Each part of history.json and each tag of TensorBoard."""
    history = json.loads((run / "history.json").read_text())
    found: dict[str, Any] = {f"history {k}": history[k] for k in ("tokens", "heads")}
    for snapshot in history["snapshots"]:
        snapshot |= {k: zlib.decompress(b64decode(snapshot[k])) for k in ("weights", "negative")}
        measures = snapshot.pop("measures")
        found[f"snapshot {snapshot['step']}"] = snapshot
        found |= {name: [*found.get(name, []), x] for name, x in measures.items()}
    events = EventAccumulator(str(run), {"scalars": 0, "images": 0, "tensors": 0})
    events.Reload()
    tags = events.Tags()
    found |= {tag: [(x.step, x.value) for x in events.Scalars(tag)] for tag in tags["scalars"]}
    last = found["Loss/validation"]  # its last point is written again, for the tab HPARAMS
    found["Loss/validation"] = list(dict.fromkeys(last))
    images = {tag: [x.step for x in events.Images(tag)] for tag in tags["images"]}
    texts = [x.tensor_proto.string_val[0].decode() for x in events.Tensors("sample/text_summary")]
    # The new code shows the symbol that the 50 symbols continue, too.
    return found | images | {"samples": [text.replace("\n    ", "\n")[-50:] for text in texts]}


def differences(before: dict[str, Any], after: dict[str, Any], run: str) -> list[str]:
    """Names whose values differ, or that are gone without being in `DROPPED`."""
    gone = DROPPED + [name for kind, name in DROPPED_OF.items() if kind in run]
    kept = [name for name in before if not any(fnmatch(name, x) for x in gone)]
    return [name for name in kept if name not in after or before[name] != after[name]]


@pytest.mark.slow
def test_eight_runs_measure_what_they_measured(tmp_path: Path) -> None:
    before, after = (train(root, tmp_path / root.name) for root in (old_code(), ROOT))
    assert len(before) == 8 and before.keys() == after.keys()
    assert {run: differences(before[run], after[run], run) for run in before} == {
        run: [] for run in before
    }
    for run, found in after.items():  # a planted error shows
        assert len(found) > 100
        first = next(name for name in found if name.startswith("probes.attn/"))
        wrong = found | {first: found[first] * (1 + 1e-9) + 1e-12, "val_loss": 1.0}
        assert differences(before[run], wrong, run) == ["val_loss", first]
