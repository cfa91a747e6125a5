"""What a newcomer has to open: the files whose functions a plain run goes through."""

import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT

TRACED = """
import inspect, runpy, sys, threading
root, *arguments = sys.argv[1:]
found = set()

def record(frame, event, argument):
    code = frame.f_code
    # The body of a class or a module is no function, nor is a comprehension in one.
    named = code.co_flags & inspect.CO_OPTIMIZED and code.co_name[0] != "<"
    if event == "call" and named:
        if code.co_filename.startswith((root + "/src/attnlab", root + "/train.py")):
            found.add(code.co_filename)

sys.argv = ["train.py", *arguments]
sys.setprofile(record)
try:
    runpy.run_path("train.py", run_name="__main__")
finally:
    sys.setprofile(None)
    print("FILES", *sorted(file.removeprefix(root + "/") for file in found))
"""
MOST_FILES = 30  # docs/decisions.md says why not fewer; it may only fall


def test_a_run_goes_through_few_files(tmp_path: Path, text_file: Path) -> None:
    chosen = ["attn=unscaled", "trainer.max_steps=4", "data=text", f"data.path={text_file}"]
    command = [sys.executable, "-c", TRACED, str(ROOT), *chosen, f"outputs={tmp_path}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    files = done.stdout.splitlines()[-1].split()[1:]
    assert len(files) <= MOST_FILES, files
