"""One HTML page that shows all heads of one or two models during training."""

import html
import json
import math
import zlib
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from attnlab.errors import BadInput, first_line, printable
from attnlab.files import read_file, write_atomically
from attnlab.pages.attention_maps import views_of
from attnlab.probes.capture import history, snapshot
from attnlab.runs.pairing import labels
from attnlab.runs.reading import Run, read_run

LARGEST_HISTORY = 2**24  # bytes of history.json
MOST_BYTES = 2**26  # of its maps in memory
TEXT = "To be, or not to be"
WITHOUT = "use --text to show the trained model alone"
Count = Annotated[int, Field(ge=0, le=2**53)]  # an integer in JavaScript, too


class Snapshot(BaseModel):
    """One entry of a history, see `attnlab.probes.capture.snapshot`."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    step: Count
    loss: float | None
    weights: str
    negative: str
    equal: list[list[Count]]
    measures: dict[str, list[list[float | None]]]


class PatternHistory(BaseModel):
    """The content of history.json, see `attnlab.probes.capture.history`."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    tokens: list[str] = Field(min_length=2)
    heads: list[Count] = Field(min_length=1)
    mask: str
    snapshots: list[Snapshot] = Field(min_length=1)

    @model_validator(mode="after")
    def check(self) -> "PatternHistory":
        """Refuse, by ValueError, lists and maps whose sizes do not match."""
        T = len(self.tokens)
        if min(self.heads) < 1 or (len(self.snapshots) * sum(self.heads) * T * T) > MOST_BYTES:
            raise ValueError("its sizes are out of range")
        _check_packed(self.mask, len(self.heads) * T * T)
        steps = [each.step for each in self.snapshots]
        if steps != sorted(set(steps)):
            raise ValueError("its steps do not increase")
        for each in self.snapshots:
            for content in (each.weights, each.negative):
                _check_packed(content, sum(self.heads) * T * T)
            tables: list[Sequence[Sequence[object]]] = [each.equal, *each.measures.values()]
            for table in tables:
                if [len(row) for row in table] != self.heads:
                    raise ValueError("its heads are not the same everywhere")
        return self


@dataclass(frozen=True)
class Explorer:
    """The page; a notebook displays it."""

    title: str  # names the models
    page: str  # the HTML, which loads nothing

    def save(self, file: Path | str) -> None:
        """Write the page."""
        write_atomically(Path(file), self.page.encode())

    def _repr_html_(self) -> str:
        return (
            f'<iframe srcdoc="{html.escape(self.page)}" title="{html.escape(self.title)}" '
            'style="width: 100%; height: 900px; border: 0" '
            'sandbox="allow-scripts allow-downloads"></iframe>'
        )


def explore(
    target: str | Path,
    other: str | Path | None = None,
    *,
    text: str | None = None,
    trust: bool = False,
) -> Explorer:
    """Show the attention of every head of a model, or of two side by side.

    Targets are as for `attnlab.pages.attention_maps.look`, and `trust` as for `load_model`. The
    page shows the history of a run directory, or, with a text, the trained models on this text.
    Raises BadInput if there is no such model, the text does not fit it, or its history is damaged.
    """
    targets = [str(target)] if other is None else [str(target), str(other)]
    found = {each: run for each in targets if (run := _run_of(each))}
    names = _names(targets, found)
    runs = [
        {"name": name, "note": _note(found.get(each)), "unit": unit} | shown.model_dump()
        for name, each in zip(names, targets, strict=True)
        for shown, unit in [history_of(each, text, trust=trust)]
    ]
    title = " and ".join(names)
    data = json.dumps({"title": title, "runs": runs}, allow_nan=False, separators=(",", ":"))
    template = files("attnlab.pages").joinpath("explorer.html").read_text(encoding="utf-8")
    head, body = template.split("{{data}}")
    heading = html.escape(title).encode("ascii", "xmlcharrefreplace").decode()
    page = head.replace("{{title}}", heading) + data.replace("<", "\\u003c") + body
    return Explorer(title, page)


def read_history(folder: Path) -> PatternHistory | None:
    """The history of a run directory, or None without one; BadInput if it is damaged."""
    file = folder / "history.json"
    if not file.is_file():
        return None
    try:
        return PatternHistory.model_validate_json(read_file(file, at_most=LARGEST_HISTORY))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, ("content", *first["loc"])))[:80]
        raise BadInput(f"{file} is damaged ({where}: {first['msg']}); {WITHOUT}") from error
    except (OSError, ValueError) as error:
        raise BadInput(f"{file} cannot be read: {first_line(error)}; {WITHOUT}") from error


def _run_of(target: str) -> Run | None:
    return read_run(Path(target)) if (Path(target) / "status.json").is_file() else None


def _names(targets: Sequence[str], runs: Mapping[str, Run]) -> list[str]:
    """Short names of the models; with their seeds if only these differ."""
    of_groups = labels(list(runs.values()))
    short = [of_groups[runs[t].folder] if t in runs else printable(t) for t in targets]
    if len(set(short)) == len(short):
        return short
    return [f"{name} {Path(t).name}" for name, t in zip(short, targets, strict=True)]


def history_of(target: str, text: str | None = None, *, trust: bool) -> tuple[PatternHistory, str]:
    """The history of a run or, without one or for a text, one snapshot of the trained model.

    Also returns the unit of a position, such as "character". Raises BadInput as `explore` does.
    """
    run = _run_of(target)
    if run and text is None and (found := read_history(run.folder)):
        return found, str(run.metrics.get("unit", "character"))
    seen, tokens, unit = views_of(target, TEXT if text is None else text, trust=trust)
    now = snapshot(seen, run.step if run else 0)
    return PatternHistory(**history(tokens, seen, [now])), unit


def _note(run: Run | None) -> str:
    if run is None:
        return ""
    note, loss = f"{run.status} at step {run.step:,}", run.metrics.get("val_loss")
    known = isinstance(loss, float) and math.isfinite(loss)
    return f"{note}, validation loss {loss:.4f}" if known else note


def _check_packed(content: str, size: int) -> None:
    """Refuse, by ValueError, a text that does not unpack to this many bytes."""
    unpacker = zlib.decompressobj()
    try:
        found = unpacker.decompress(b64decode(content, validate=True), size + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if len(found) != size or not unpacker.eof:
        raise ValueError(f"a map must have {size:,} bytes")
