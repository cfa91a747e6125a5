"""A plain run executes little code, so that one can follow it, and has all cores."""

import ast
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, SMALL

SOURCE = ROOT / "src" / "attnlab"
SCRIPT = """
import json, runpy, sys, threading
called = set()
_, source, output, program, *overrides = sys.argv
sys.argv = [program, *overrides]
def seen(frame, event, argument):
    if event == "call" and frame.f_code.co_filename.startswith(source):
        called.add(frame.f_code)
sys.setprofile(seen)
threading.setprofile(seen)
runpy.run_path(program, run_name="__main__")
sys.setprofile(None)
rows = [(c.co_filename, c.co_name, c.co_flags, c.co_firstlineno) for c in called]
open(output, "w").write(json.dumps(sorted(rows)))
"""


@pytest.mark.slow
def test_a_plain_run_executes_little_code(tmp_path: Path) -> None:
    overrides = ["attn=unscaled", "preset=micro", "trainer.max_steps=4", f"outputs={tmp_path}"]
    output = tmp_path / "called.json"
    subprocess.run(
        [sys.executable, "-c", SCRIPT, str(SOURCE), str(output), "train.py", *overrides],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": "src"}, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    rows = json.loads(output.read_text())
    files = {Path(file) for file, *_ in rows if Path(file).stat().st_size}
    functions = {
        (file, line)
        for file, name, flags, line in rows
        if flags & inspect.CO_OPTIMIZED and not name.endswith(">")  # no class, no comprehension
    }
    lines = sum(len(file.read_text().splitlines()) for file in files)
    assert SOURCE / "training" / "run.py" in files and len(functions) > 200
    assert len(files) <= 41, sorted(files)
    assert len(functions) <= 310
    assert lines <= 4900


def test_the_run_itself_is_short() -> None:
    """`run` is what a newcomer reads first."""
    tree = ast.parse((SOURCE / "training" / "run.py").read_text())
    (run,) = (x for x in tree.body if isinstance(x, ast.FunctionDef) and x.name == "run")
    assert run.end_lineno is not None and run.end_lineno - run.lineno < 38


def test_a_run_has_the_threads_of_its_environment(text_file: Path, tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, str(ROOT / "train.py"), *SMALL, f"data.path={text_file}"],
        cwd=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "2"}, check=True,
    )  # fmt: skip
    (metrics,) = tmp_path.rglob("metrics.json")
    assert json.loads(metrics.read_text())["threads"] == min(2, os.cpu_count() or 1)
