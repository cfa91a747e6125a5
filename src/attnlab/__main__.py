"""`python -m attnlab`: the command `attnlab`."""

from attnlab.cli import main

main()
