"""What the pages of claims and of the ranking share: tables, and the marks of generated text."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from attnlab.errors import BadInput

BEGIN, END = "<!-- results -->", "<!-- /results -->"


def fill_page(page: Path, block: str) -> None:
    """Put generated text between the two marks of a page, in place of what is there; all other
    text of it is written by hand. A page that does not exist is begun with its directory's name as
    heading. BadInput if a mark is missing."""
    if not page.exists():
        page.write_text(f"# {page.parent.name}\n\n{BEGIN}\n{END}\n", encoding="utf-8")
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise BadInput(f"{page} must contain {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n{block.strip()}\n{END}{after}", encoding="utf-8")


def markdown_table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table in Markdown: its head and lines, a text for each cell. Two spaces in a line become
    one, which Markdown shows alike."""
    rows = [head, ["---"] * len(head), *lines]
    # An empty cell, or one that ends in a space, would have two before the next bar.
    return "\n".join(f"| {' | '.join(row)} |".replace("  ", " ") for row in rows)
