"""Options that several commands have."""

from typing import Annotated

from typer import Option

Json = Annotated[bool, Option("--json", help="Print JSON instead, see docs/json.md.")]
