"""What the pages of claims and of the ranking share: tables, and the marks of generated text."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from attnlab.errors import BadInput

BEGIN, END = "<!-- results -->", "<!-- /results -->"


def fill_page(page: Path, block: str) -> None:
    """Put generated text between the two marks of a page, which is begun if it does not exist; all
    other text is written by hand."""
    if not page.exists():
        page.write_text(f"# {page.parent.name}\n\n{BEGIN}\n{END}\n", encoding="utf-8")
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise BadInput(f"{page} must contain {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n{block.strip()}\n{END}{after}", encoding="utf-8")


def markdown_table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(row)} |".replace("  ", " ") for row in rows)
