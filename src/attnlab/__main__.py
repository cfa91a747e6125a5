"""The command `attnlab`, also by `python -m attnlab`."""

import sys
from pathlib import Path

if sys.path[0] in ("", str(Path.cwd())):
    del sys.path[0]  # `python -m` puts the current directory there; no command named it

try:
    from attnlab.commands.cli import main
except ModuleNotFoundError as error:  # after pip install --no-deps, for the checkup in Python
    advice = "install what attnlab needs with: pip install attnlab"
    print(f"error: {error.name} is not installed; {advice}", file=sys.stderr)
    sys.exit(2)

if __name__ == "__main__":
    main()
