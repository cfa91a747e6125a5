"""Build the site: `make docs`, or this file with an output directory.

    python docs/build.py build/site/html
    python docs/build.py --pages build/site/html     # a minute; without chapters and training

Collects the pages of docs/, experiments/, and benchmarks/ in build/site/source, runs the chapters,
trains the small runs of the explorer pages, writes the slides and the notebooks for students, and
calls Sphinx, with warnings as errors. Nothing is downloaded.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell
from sphinx.cmd.build import build_main

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from docs.chapters.build import CHAPTERS, execute_all, for_sphinx, read, slides_of  # noqa: E402
from docs.notebooks import links_to, write_all  # noqa: E402
from docs.slides import write_slides  # noqa: E402

SOURCE = ROOT / "build" / "site" / "source"
# Name of the explorer page -> the two variants on it, and the sweep that they come from.
EXPLORED = {
    "scale": ("sdpa", "unscaled", "wide"),
    "mask": ("sdpa", "flipped", "micro"),
    "heads": ("sdpa", "identical_heads", "micro"),
}
SWEEPS = {  # one head of width 128 saturates without the scale
    "micro": ["attn=sdpa,unscaled,flipped,identical_heads"],
    "wide": ["attn=sdpa,unscaled", "model.n_embd=128", "model.n_head=1"],
}
MENU = {
    "Course": [
        "chapters/README",
        *(f"chapters/{file.stem}" for file in CHAPTERS),
        "exercises/README",
        "textbook",
        "teach",
    ],
    "Visualization": ["explore", "instruments"],
    "How to": [
        "variants",
        "attention",
        "own",
        "checkup",
        "interop",
        "sweeps",
        "cluster",
        "lightning",
        "translation",
    ],
    "Evidence": [
        "claims",
        "experiments/README",
        "checkup-zoo",
        "checkup-gallery",
        "benchmarks/RESULTS",
    ],
    "Reference": ["api", "decisions", "security", "survival"],
}
LINK = re.compile(r"\[(?P<name>[^\]]*)\]\((?P<target>[^)#:]+)(?P<anchor>#[^)]*)?\)")


def collect() -> None:
    """Copy the pages into one tree, and adapt their links to it."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    (SOURCE / "extra").mkdir(parents=True)
    shutil.copytree(ROOT / "docs" / "img", SOURCE / "img")
    shutil.copytree(ROOT / "docs" / "img", SOURCE / "extra" / "img")  # of <picture>
    shutil.copy(ROOT / "docs" / "playground.html", SOURCE / "extra")
    shutil.copy(ROOT / "docs" / "conf.py", SOURCE)
    (SOURCE / "static").mkdir()
    shutil.copy(ROOT / "docs" / "site.css", SOURCE / "static")
    for file in ROOT.glob("experiments/*/figure*.svg"):
        (SOURCE / file.parent.relative_to(ROOT)).mkdir(parents=True, exist_ok=True)
        shutil.copy(file, SOURCE / file.relative_to(ROOT))
    claims = sorted(ROOT.glob("experiments/*/README.md"))
    table = ROOT / "experiments" / "README.md"
    for file in [*ROOT.glob("docs/**/*.md"), *claims, ROOT / "benchmarks" / "RESULTS.md"]:
        write(place_of(file), with_links(file))
    stems = [f"{file.parent.name}/README" for file in claims]
    write(place_of(table), with_links(table) + "\n" + toctree(stems, "Claims"))
    listed = {"index"} | {page for pages in MENU.values() for page in pages}
    others = sorted({file.stem for file in ROOT.glob("docs/*.md")} - listed)  # new guides
    menu = MENU | {"How to": MENU["How to"] + others}
    menus = "\n".join(toctree(pages, name) for name, pages in menu.items())
    write("index.md", with_links(ROOT / "docs" / "index.md") + "\n" + menus)


def place_of(file: Path) -> str:
    """The place in the site of a file of the repository."""
    name = str(file.relative_to(ROOT)).removeprefix("docs/")
    return "index.md" if name == "README.md" else name


def with_links(file: Path) -> str:
    """A page with links to the site; links to files outside the site become plain text."""

    def link(match: re.Match[str]) -> str:
        target = (file.parent / match["target"]).resolve()
        up = "../" * len(Path(place_of(file)).parent.parts)
        if target.suffix in {".html", ".markdown"}:  # not built by Sphinx
            return f'<a href="{up}{target.stem}.html">{match["name"]}</a>'
        if target in CHAPTERS:
            target = target.with_suffix(".ipynb")
        if target.suffix in {".md", ".ipynb", ".svg", ".png"} and target.is_relative_to(ROOT):
            return f"[{match['name']}]({up}{place_of(target)}{match['anchor'] or ''})"
        return match["name"]

    return LINK.sub(link, file.read_text(encoding="utf-8"))


def toctree(pages: Iterable[str], caption: str = "") -> str:
    """A toctree of pages."""
    options = [f":caption: {caption}", ":hidden:"] if caption else []
    return "\n".join(["```{toctree}", *options, ":maxdepth: 1", "", *pages, "```", ""])


def write(name: str, text: str) -> None:
    (SOURCE / name).parent.mkdir(parents=True, exist_ok=True)
    (SOURCE / name).write_text(text, encoding="utf-8")


def write_chapters(notebooks: dict[str, NotebookNode], *, downloads: bool) -> None:
    """Write the chapters for Sphinx, with links to the notebooks if there are any."""
    for name, notebook in notebooks.items():
        page = for_sphinx(notebook)
        if downloads:
            page.cells.insert(1, new_markdown_cell(links_to(f"chapter_{name}")))
        nbformat.write(page, SOURCE / "chapters" / f"{name}.ipynb")


def explorer_pages() -> None:
    """Train small runs, and write the explorer page of each pair and the live page."""
    from attnlab import explore
    from attnlab.pages.live import live

    with tempfile.TemporaryDirectory() as runs:
        for name, settings in SWEEPS.items():
            common = ["preset=micro", f"outputs={runs}", f"name={name}"]
            train = [sys.executable, "train.py", "-m", *settings, *common]
            train.append("trainer.accelerator=cpu")
            subprocess.run(train, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)

        def run(variant: str, sweep: str) -> Path:
            return next(Path(runs).glob(f"{sweep}/attn={variant}[,]*/seed=0"))

        pages = {
            name: explore(run(one, sweep), run(other, sweep))
            for name, (one, other, sweep) in EXPLORED.items()
        }
        variants = SWEEPS["micro"][0].partition("=")[2].split(",")
        pages["live"] = live(*(run(variant, "micro") for variant in variants))
        for name, page in pages.items():
            page.save(SOURCE / "extra" / "explore" / f"{name}.html")
            print(f"wrote explore/{name}.html", flush=True)


def add_live_pages() -> None:
    """Add links to the explorer pages to the front page and to the page about the explorer."""
    links = {name: f'<a href="explore/{name}.html">{{}}</a>' for name in (*EXPLORED, "live")}
    pairs = {
        name: links[name].format(f"{one} and {other}")
        for name, (one, other, _) in EXPLORED.items()
    }
    live = links["live"].format("live page")
    here = (
        f"Explore three pairs of runs here: {', '.join(pairs.values())}. The first has one head "
        f"of width 128. Or open the {live}, in which four models compute."
    )
    front = [f"- The {live}: four trained models compute on your text"]
    front += [f"- Every head while it trains: {link}" for link in pairs.values()]
    for name, mark, text in (
        ("explore", "## What you see", f"{here}\n\n## What you see"),
        ("index", "<!-- live -->", "\n".join(front)),
    ):
        page = SOURCE / f"{name}.md"
        page.write_text(page.read_text(encoding="utf-8").replace(mark, text), encoding="utf-8")


def add_notebooks(chapters: dict[str, NotebookNode]) -> None:
    """Write the notebooks for students, with the wheel that they install, and link to them."""
    folder = SOURCE / "extra" / "notebooks"
    wheel = ["-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    subprocess.run([sys.executable, *wheel, str(ROOT)], check=True)
    files = write_all(folder, chapters)
    shutil.make_archive(str(folder), "zip", folder)
    rows = [f"- {file.stem}: {links_to(file.stem)}" for file in files]
    page = SOURCE / "exercises" / "README.md"
    linked = (
        'Download <a href="../notebooks.zip">all notebooks with the wheel</a>, or one of them:\n\n'
        + "\n".join(rows)
    )
    text = page.read_text(encoding="utf-8")
    page.write_text(f"{text}\n## Download\n\n{linked}\n", encoding="utf-8")


class Links(HTMLParser):
    """The links, ids, and loaded files of a page."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.ids: set[str] = set()
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value for name, value in attrs if value}
        self.ids |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        elif tag in {"script", "img", "link", "source", "iframe"}:
            self.loaded += [found[name] for name in ("src", "href", "srcset") if name in found]


def broken_links(output: Path) -> list[str]:
    """Links to pages or anchors that do not exist, and files loaded from other sites."""
    pages = {file.resolve(): Links(file) for file in sorted(output.rglob("*.html"))}
    broken = []
    for file, page in pages.items():
        name = str(file.relative_to(output.resolve()))
        for link in [*page.links, *page.loaded]:
            if urlsplit(link).scheme or link.startswith("//"):
                if link in page.loaded and not link.startswith("data:"):
                    broken.append(f"{name} loads {link}")
                continue
            path, _, place = unquote(link).partition("#")
            target = (file.parent / path.partition("?")[0]).resolve() if path else file
            if not target.exists() or (
                place and target in pages and place not in pages[target].ids
            ):
                broken.append(f"{name} links to {link}")
    return broken


def raw_tables(output: Path) -> list[str]:
    """Chapters in which a Markdown table is not rendered."""
    pages = sorted(output.glob("chapters/*.html"))
    raw = [page for page in pages if re.search(r"\| (---|—) \|", page.read_text(encoding="utf-8"))]
    return [f"{page.relative_to(output)} shows a table as text" for page in raw]


def main() -> None:
    arguments = [a for a in sys.argv[1:] if a != "--pages"]
    output = Path(arguments[0]) if arguments else SOURCE.parent / "html"
    collect()
    complete = "--pages" not in sys.argv
    notebooks = [read(file) for file in CHAPTERS]
    if complete:
        notebooks = execute_all(notebooks)
    chapters = {file.stem: nb for file, nb in zip(CHAPTERS, notebooks, strict=True)}
    write_chapters(chapters, downloads=complete)
    write_slides(SOURCE / "extra" / "slides.html", slides_of(notebooks))
    if complete:
        explorer_pages()
        add_live_pages()
        add_notebooks(chapters)
    # -W: warnings are errors; -E: do not reuse pages of an earlier build.
    code = build_main(["-b", "html", "-E", "-q", "-W", "--keep-going", str(SOURCE), str(output)])
    broken = broken_links(output) + raw_tables(output)
    print(*broken, sep="\n", end="\n" if broken else "")
    good = code == 0 and not broken
    print(
        output / "index.html"
        if good
        else "the site has warnings, broken links or raw tables, see above"
    )
    raise SystemExit(not good)


if __name__ == "__main__":
    main()
