"""Pages: links lead somewhere, printed commands work, numbers are those of the rows."""

import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser

from attncheck.command import parser
from attnlab.claims.work import composed
from attnlab.commands.cli import app, checkup_parser
from scripts.fill_pages import CELL, TABLE, filled

ROOT = Path(__file__).parents[2]
PROGRAMS = r"(?:python train\.py|attnlab|attncheck|make)"


def commands_in(text: str) -> Iterator[str]:
    """The commands of a page for `PROGRAMS`, in blocks and between backticks, that say what they
    are about and have no placeholders."""
    text = re.sub(r" *\\\n(?:#)?\s*", " ", text)
    lines = re.findall(rf"^(?: {{4}}|# {{5}})({PROGRAMS} .*)$", text, re.M)
    lines += re.findall(rf"`({PROGRAMS} [^`\n]+)`", text)
    for line in lines:
        try:
            words = shlex.split(line, comments=True)
        except ValueError:
            continue
        least = 1 if words[0] == "make" else 2
        placeholder = re.search(r"[.:…]$|[<>|;&]|[A-Z]{3,}|\.{3}", line)
        if len(words) > least and not placeholder:
            yield shlex.join(words)


def make_targets() -> list[str]:
    """The targets of the Makefile that have a help text."""
    return re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)


DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "attncheck/README.md"]
DOCUMENTS += ROOT.glob("docs/**/*.md")
DOCUMENTS += [*ROOT.glob("docs/**/[0-9]*_*.py"), *ROOT.glob("experiments/**/*.md")]
PAGES = {file: file.read_text(encoding="utf-8") for file in sorted(DOCUMENTS)}
COMMANDS = {command: file for file, text in PAGES.items() for command in commands_in(text)}


def names(file: Path) -> str:
    return str(file.relative_to(ROOT))


@cache
def anchors(file: Path) -> set[str]:
    """The ids that GitHub and MyST give to the headings of a page; of HTML, those in it."""
    if file.suffix == ".html":
        return set(re.findall(r"\bid\"?[=:] ?\"([\w-]+)\"", file.read_text(encoding="utf-8")))
    heads = re.findall(r"^(?:# )?#{1,4} (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def broken(file: Path, text: str) -> list[str]:
    """Links of a page to files or headings that do not exist."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    found = re.findall(r"\[[^\]]*\]\(([^)\s]+)\)|(?:src|href|srcset)=\"([^\"]+)\"", text)
    links = [a or b for a, b in found if not re.match(r"[a-z]+:|\{", a or b)]
    wrong = []
    for link in links:
        path, _, anchor = link.partition("#")
        target = (file.parent / path).resolve() if path else file
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(link)
    return wrong


@pytest.mark.parametrize("file", PAGES, ids=names)
def test_links_lead_somewhere(file: Path) -> None:
    assert broken(file, PAGES[file]) == []


@pytest.mark.parametrize("file", [*ROOT.glob("docs/*.html")], ids=names)
def test_links_of_a_html_page_lead_somewhere(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    files = [file.parent / link for link in re.findall(r'href="([^"]+)"', text)]
    assert [link for link in files if not link.exists()] == []
    pages = re.findall(r'data-page="([^"]+)"', text)  # links on the site, see docs/conf.py
    sources = [
        [file.parent / f"{page}{kind}" for kind in (".md", ".py", ".html")] for page in pages
    ]
    assert pages and [found for found in sources if not any(map(Path.exists, found))] == []


ROOMS = ("", "src/attnlab", "attncheck/src")  # below which CONTRIBUTING.md names files


def not_there(guide: str) -> list[str]:
    """The files and directories that a guide names in code, and the names "of" a file, that do
    not exist."""
    wrong = []
    for code in re.findall(r"`([^`]+)`", guide):
        for path in re.findall(r"(?<![\w/.])[\w.-]+/[\w./-]*", code):
            if "NAME" not in path and not any((ROOT / room / path).exists() for room in ROOMS):
                wrong.append(path)
    for name, path in re.findall(r"`(\w+)` of\s+`([\w./]+\.py)`", guide):
        found = [ROOT / room / path for room in ROOMS if (ROOT / room / path).exists()]
        if found and not re.search(rf"\b{name}\b", found[0].read_text(encoding="utf-8")):
            wrong.append(f"{name} of {path}")
    return wrong


def test_what_the_guide_for_contributors_names_is_there() -> None:
    guide = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert not_there(guide) == []
    planted = "`tests/training/test_evaluate.py`, `TASK` of `tests/data/test_sequences.py`"
    assert not_there(planted) == [
        "tests/training/test_evaluate.py",
        "TASK of tests/data/test_sequences.py",
    ]


def test_a_broken_link_shows() -> None:
    text = "[a](nowhere.md) [b](README.md#no-such-heading) [c](README.md)"
    assert broken(ROOT / "README.md", text) == ["nowhere.md", "README.md#no-such-heading"]


def compositions(words: list[str]) -> Iterator[list[str]]:
    """The overrides of one run after the other of a command, until each file of conf was used."""
    overrides = [word for word in words if "=" in word and not word.startswith("-")]
    swept = []
    for override in OverridesParser.create().parse_overrides(overrides):
        key = override.input_line.split("=")[0]
        several = override.is_sweep_override()
        values = list(override.sweep_string_iterator()) if several else [None]
        used = values if (ROOT / "conf" / key).is_dir() else values[:1]
        swept.append([f"{key}={v}" if v else override.input_line for v in used])
    for n in range(max(map(len, swept), default=1)):
        yield [values[min(n, len(values) - 1)] for values in swept]


@cache
def works(command: str) -> None:
    """Raise an error unless a printed command could start."""
    words = shlex.split(command)
    if words[0] == "make":
        chosen = [word for word in words[1:] if "=" not in word]
        assert set(chosen) <= set(make_targets()), f"no target {chosen}"
        arguments = [w.removeprefix("ARGS=") for w in words if w.startswith("ARGS=")]
        if "train" in chosen and arguments:
            works(f"python train.py {arguments[0]}")
    elif words[0] == "attnlab" and words[1] not in ("train", "--help"):
        verbs = vars(typer.main.get_command(app))["commands"]
        assert words[1] in verbs, f"no verb {words[1]}"
        if words[1] == "checkup":  # which hands its words on
            checkup_parser().parse_args(words[2:])
        verbs[words[1]].make_context(words[1], words[2:])
    elif words[0] == "attncheck":
        parser().parse_args(words[1:])
    else:
        for overrides in compositions(words[2:]):
            with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
                compose("train", overrides=overrides, return_hydra_config=True)


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_a_printed_command_works(command: str) -> None:
    if "--config-dir" in command or "init_from=" in command:
        pytest.skip("reads a directory of the user")
    works(command)


@pytest.mark.parametrize(
    ("command", "culprit"),
    [
        ("python train.py attn=unscaledd", "unscaledd"),
        ("python train.py -m attn=sdpa,flip", "flip"),
        ("python train.py modle.n_head=1", "modle"),
        ("attnlab compare outputs --bst lr", "--bst"),
        ("attnlab plot outputs", "plot"),
        ("attnlab checkup outputs --encodr", "--encodr"),
        ("make slides", "slides"),
    ],
)
def test_a_wrong_command_shows(command: str, culprit: str) -> None:
    with pytest.raises(Exception, match=culprit):
        works(command)


FILLED = [file for file, text in PAGES.items() if CELL.search(text) or TABLE.search(text)]


@pytest.mark.parametrize("file", FILLED, ids=names)
def test_numbers_of_a_page_are_those_of_the_rows(file: Path) -> None:
    text = TABLE.sub(r"\1\3", PAGES[file])
    text = CELL.sub(r"\1?\5", text)
    assert filled(text) == PAGES[file], "run python scripts/fill_pages.py"


def test_a_verdict_of_textbook_md_is_that_of_the_sentence_beside_it() -> None:
    rows = re.findall(
        r"^\| (.*?) \| (.*?) \|.*\| (.*?) \|$", PAGES[ROOT / "docs/textbook.md"], re.M
    )
    judged = [
        (found, shown_by)
        for says, verdict, shown_by in rows
        if (found := re.findall(r"<!-- (\w+)(?:\.says)? -->", f"{says} {verdict}"))
    ]
    assert len(judged) >= 11
    for (said, verdict), shown_by in judged:
        assert said == verdict and shown_by == f"`attnlab reproduce {said}`"


def test_the_readme_says_what_is_kept_with_either_start() -> None:
    (row,) = re.findall(r"^\| .*<!-- unscaled\..*$", PAGES[ROOT / "README.md"], re.M)
    cells = {cell[2] for cell in CELL.findall(row)}
    assert {"one_head_300", "gpt2_start_300", "gpt2_start_1200"} <= cells
    assert {"model.init=unit", "model.init=gpt2"} <= set(re.findall(r"`([^`]+)`", row))


@pytest.mark.parametrize("preset", ["tiny", "baby"])
def test_a_preset_of_the_sizes_of_nanogpt_names_what_its_start_differs_in(preset: str) -> None:
    stds = []
    for more in ([], ["model.init=gpt2"]):
        config, _ = composed([f"preset={preset}", *more], ROOT / "experiments")
        net = config.model(65)
        C = net.wte.embedding_dim
        stds.append(float(net.blocks[0].attn.qkv.weight[: 2 * C].detach().std()))
    assert stds == pytest.approx([C**-0.5, 0.02], rel=0.02)  # nanoGPT: 0.02
    preset_file = (ROOT / f"conf/preset/{preset}.yaml").read_text(encoding="utf-8")
    for text in (preset_file, PAGES[ROOT / "docs/training.md"]):
        assert "nanoGPT" in text and "model.init=gpt2" in text


@pytest.mark.slow
@pytest.mark.parametrize("file", sorted(ROOT.glob("docs/chapters/[0-9]*_*.py")), ids=names)
def test_a_chapter_runs(file: Path, tmp_path: Path) -> None:
    """Its numbers are checked by its own assertions; it prints its questions in their order and
    the numbers, and names its figures. It writes nothing among the runs of the user."""
    done = subprocess.run(
        [sys.executable, str(file)], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    figures = re.findall(r"^\[(outputs-of-chapters/\S+)\] ", done.stdout, re.MULTILINE)
    assert figures and all((tmp_path / figure).exists() for figure in figures)
    assert len(done.stdout.splitlines()) > 3 * len(figures)
    assert not (tmp_path / "outputs").exists()
    text = file.read_text(encoding="utf-8")
    asked = [
        found.split() for found in re.findall(r"^# \*\*Predict\.\*\* (.*)", text, re.MULTILINE)
    ]
    printed = " ".join(re.sub(r"[*`]", "", done.stdout).split())
    places = [printed.find(re.sub(r"[*`]", "", " ".join(words[:6]))) for words in asked]
    assert asked and -1 not in places and places == sorted(places)


def test_the_site_makes_a_link_to_code_plain_text_and_keeps_one_to_a_chapter() -> None:
    settings = runpy.run_path(str(ROOT / "docs/conf.py"))
    pages = {"docs/chapters/1_equation", "experiments/one/README"}
    app = SimpleNamespace(srcdir=ROOT, env=SimpleNamespace(found_docs=pages))
    source = [
        "[task.py](task.py), [1](../../docs/chapters/1_equation.py), [b](https://x.org/a.py)"
    ]
    settings["unlink_code"](app, "experiments/one/README", source)
    assert source == ["`task.py`, [1](../../docs/chapters/1_equation.py), [b](https://x.org/a.py)"]
