"""`python -m attnlab`: the command `attnlab`."""

import sys
from pathlib import Path

if sys.path[0] in ("", str(Path.cwd())):
    del sys.path[0]  # `python -m` puts the current directory there; no command named it

from attnlab.commands.cli import main

main()
