"""Write the slides of a class of two hours: one HTML file that loads nothing.

    python docs/slides.py build/slides.html      # runs four chapters for their figures: minutes

The text is docs/slides.markdown, in which `---` separates slides and `{name}` is the figure of the
chapters' cell with `slide="name"`. The page around it is docs/slides_page.html.
"""

import re
import sys
from collections.abc import Mapping
from pathlib import Path

from latex2mathml.converter import convert
from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from docs.chapters.build import CHAPTERS, execute_all, read, slides_of  # noqa: E402

TEXT = ROOT / "docs" / "slides.markdown"
FIGURE = re.compile(r"^\{(\w+)\}$", re.MULTILINE)
FORMULA = re.compile(r"\$\$(?P<block>.+?)\$\$|\$(?P<inline>[^$\n]+)\$", re.DOTALL)
PAGE = (ROOT / "docs" / "slides_page.html").read_text(encoding="utf-8")


def write_slides(file: Path, figures: Mapping[str, str]) -> None:
    """Write the slides; without any figures, their places stay empty."""
    slides = TEXT.read_text(encoding="utf-8").split("\n---\n")
    pages = [
        f'<section id="{number}" data-number="{number}">\n{rendered(slide, figures)}</section>'
        for number, slide in enumerate(slides, 1)
    ]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(PAGE.replace("@SLIDES@", "\n".join(pages)), encoding="utf-8")


def rendered(slide: str, figures: Mapping[str, str]) -> str:
    """The HTML of a slide; formulas and figures are kept away from Markdown."""
    kept: list[str] = []

    def keep(html: str) -> str:
        kept.append(html)
        return f"@{len(kept) - 1}@"

    text = FORMULA.sub(lambda match: keep(mathml(match)), slide)
    text = FIGURE.sub(lambda match: keep(figures[match[1]] if figures else ""), text)
    html = MarkdownIt("commonmark").enable("table").render(text)
    return re.sub(r"@(\d+)@", lambda match: kept[int(match[1])], html)


def mathml(match: re.Match[str]) -> str:
    """A formula of `FORMULA` as MathML."""
    if match["block"]:
        return convert(match["block"].strip(), display="block")
    return convert(match["inline"])


if __name__ == "__main__":
    used = FIGURE.findall(TEXT.read_text(encoding="utf-8"))
    files = [f for f in CHAPTERS if any(f'slide="{name}"' in f.read_text() for name in used)]
    write_slides(Path(sys.argv[1]), slides_of(execute_all(map(read, files))))
    print(sys.argv[1])
