"""Options that several commands have."""

import argparse
from typing import Annotated, NoReturn

from typer import Option

from attnlab.errors import BadInput

Json = Annotated[bool, Option("--json", help="Print JSON instead, see docs/json.md.")]


class RefusingParser(argparse.ArgumentParser):
    """A parser whose errors are bad input, as those of every verb."""

    def error(self, message: str) -> NoReturn:
        raise BadInput(message)
