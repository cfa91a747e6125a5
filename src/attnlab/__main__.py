"""`python -m attnlab`: the command `attnlab`."""

import sys
from pathlib import Path

if sys.path[0] in ("", str(Path.cwd())):
    del sys.path[0]  # `python -m` puts the current folder there, and nobody named a module in it

from attnlab.cli import main

main()
