"""The command `attncheck`, also by `python -m attncheck`."""

import sys

from .command import main

if __name__ == "__main__":
    sys.exit(main())
