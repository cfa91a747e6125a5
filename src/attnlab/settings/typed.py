"""Words of a command as they were typed, for Hydra, which would read some of them otherwise."""

import re
from pathlib import Path


def for_hydra(word: str) -> str:
    """A word of the command, of which Hydra reads what was typed:

    - `outputs` and `--config-dir` with the user's directory for a ~, which a shell leaves after =;
    - `name` as a text, also if it looks like a number, as 1e5 and 2024_01 do;
    - `init_from` in quotes, for the = and the commas in the name of a run directory.
    """
    key, _, value = word.partition("=")
    if key in ("outputs", "--config-dir", "-cd"):
        quote = value[: value.startswith(("'", '"'))]
        path = value.removeprefix(quote)
        return f"{key}={quote}{Path(path).expanduser()}" if path.startswith("~") else word
    if key == "name":
        return "name=" + re.sub(r"(?<![^,])[\d.+-][\w.+-]*(?![^,])", r"'\g<0>'", value)
    if key == "init_from" and value != "null" and not value.startswith(("'", '"')):
        return "init_from=" + ",".join(f"'{source}'" for source in sources_of(value))
    return word


def sources_of(value: str) -> list[str]:
    """The run directories and checkpoints that exist, of a list with commas, for a sweep; all of
    it, if one does not exist, for a message that names it."""
    sources: list[str] = []
    begun: list[str] = []
    for piece in value.split(","):
        begun.append(piece)
        source = ",".join(begun)
        path = Path(source).expanduser()
        if source.startswith("hf:") or path.is_file() or (path / "checkpoints").is_dir():
            sources.append(source)
            begun = []
    return [value] if begun else sources
