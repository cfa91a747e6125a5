"""What `attnlab checkup` does: load, examine, write, and say how it ended."""

from pathlib import Path

from attnlab.checkup.examine import checkup
from attnlab.checkup.findings import Report
from attnlab.checkup.load_target import load
from attnlab.errors import BadInput


def examine(
    target: str,
    *,
    vocab_size: int | None,
    block_size: int | None,
    prove: bool,
    json: Path | None,
    html: Path | None,
) -> Report:
    """Examine a target and write the files that were asked for.

    Raises:
        BadInput: the target, a size or a file to write is impossible.
    """
    for path in (json, html):
        if path is not None and not path.absolute().parent.is_dir():
            raise BadInput(f"{path} cannot be written: there is no folder {path.parent}")
    loaded = load(target)
    report = checkup(
        loaded.model,
        vocab_size=loaded.vocab_size if vocab_size is None else vocab_size,
        block_size=loaded.block_size if block_size is None else block_size,
        prove=prove,
        name=loaded.name,
    )
    if json is not None:
        _write(json, report.to_json())
    if html is not None:
        _write(html, report.to_html())
    return report


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}") from error
