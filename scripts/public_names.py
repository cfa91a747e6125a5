"""What a user can type or import, one entry a line: files and keys of conf, verbs, options, names.

    python scripts/public_names.py

The list of the commit before 0.1.0 is tests/docs/public_before.txt. There a line is an entry that
stays, `entry  -> its new name`, or `entry  # why it went`; a test compares.
"""

import ast
import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
BEFORE = ROOT / "tests" / "docs" / "public_before.txt"


def entries(root: Path) -> set[str]:
    """All entries of the tree at `root`, whose package is the one that is imported."""
    return {
        *conf(root),
        *verbs(),
        *names(root),
        *(f"make {target}" for target in targets(root)),
        *(f"$ {command}" for command in commands(root)),
    }


def fates(file: Path) -> dict[str, str]:
    """What became of each entry of a list: "" if it stays, "-> new name", or "# reason"."""
    found = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        entry, mark, rest = re.fullmatch(r"(.+?)(?:  (->|#) (.+))?", line).groups()  # type: ignore
        found[entry] = f"{mark} {rest}" if mark else ""
    return found


def conf(root: Path) -> Iterator[str]:
    """`conf attn/unscaled` for each file, and `key attn.scale` for each key of a file."""
    for file in sorted((root / "conf").rglob("*.yaml")):
        path = file.relative_to(root / "conf")
        content = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
        is_global = "@package _global_" in file.read_text(encoding="utf-8")
        yield f"conf {path.with_suffix('').as_posix()}"
        if path.parts[0] in ("experiment", "hydra"):
            continue
        within = [] if is_global or len(path.parts) == 1 else [path.parts[0]]
        for key in keys(content, within):
            yield f"key {key}"


def keys(node: Any, above: list[str]) -> Iterator[str]:
    """The dotted keys of the leaves of a file, without those that belong to Hydra."""
    if not isinstance(node, dict) or (above and not node):
        yield ".".join(above)
        return
    for key, value in node.items():
        hydra = key in ("defaults", "_target_", "_partial_", "hydra") or "@" in key
        if not hydra:
            yield from keys(value, [*above, *key.split(".")])


def verbs() -> Iterator[str]:
    """`attnlab compare`, and `attnlab compare --best` for each option."""
    import typer

    from attnlab.commands.cli import app

    for verb, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        yield f"attnlab {verb}"
        for parameter in command.params:
            for option in parameter.opts:
                if option.startswith("--"):
                    yield f"attnlab {verb} {option}"


def names(root: Path) -> Iterator[str]:
    """`import attnlab.attention.causal`: of `__all__`, and of what the documents import."""
    for file in sorted((root / "src" / "attnlab").rglob("*.py")):
        module = ".".join(file.relative_to(root / "src").with_suffix("").parts)
        module = module.removesuffix(".__init__")
        source = file.read_text(encoding="utf-8")
        if "\n__all__ = " in source:
            for name in import_module(module).__all__:
                yield f"import {module}.{name}"
    for _, text in documents(root):
        lines = re.sub(r"\(\s*([^)]*?),?\s*\)", lambda m: " ".join(m[1].split()), text)
        for line in re.findall(r"^ *(from attnlab\S* import [\w ,]+)$", lines, re.MULTILINE):
            statement = ast.parse(line.strip()).body[0]
            assert isinstance(statement, ast.ImportFrom)
            for alias in statement.names:
                yield f"import {statement.module}.{alias.name}"


def targets(root: Path) -> list[str]:
    """The targets of the Makefile that have a help text."""
    return re.findall(r"^([a-z-]+):.*## ", (root / "Makefile").read_text(), re.MULTILINE)


def documents(root: Path) -> Iterator[tuple[Path, str]]:
    """Every page and chapter, with its text."""
    files = [root / "README.md", root / "CONTRIBUTING.md", *(root / "docs").rglob("*.md")]
    for file in sorted([*files, *(root / "docs").rglob("[0-9]_*.py")]):
        if file.exists():
            yield file, file.read_text(encoding="utf-8")


def commands(root: Path) -> set[str]:
    """The commands that pages print, in blocks and between backticks, without placeholders."""
    return {command for _, text in documents(root) for command in commands_in(text)}


def commands_in(text: str) -> Iterator[str]:
    """The commands of a page for train.py, attnlab and make that say what they are about."""
    text = re.sub(r" *\\\n(?:#)?\s*", " ", text)
    lines = re.findall(r"^(?: {4}|# {5})((?:python train\.py|attnlab|make) .*)$", text, re.M)
    for line in [*lines, *re.findall(r"`((?:python train\.py|attnlab|make) [^`\n]+)`", text)]:
        try:
            words = shlex.split(line, comments=True)
        except ValueError:
            continue
        if len(words) > 1 + (words[0] != "make") and not re.search(
            r"[.:…]$|[<>|;&]|[A-Z]{3,}|\.{3}", line
        ):
            yield shlex.join(words)


if __name__ == "__main__":
    print("\n".join(sorted(entries(ROOT))))
