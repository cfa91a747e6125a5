"""One HTML page that shows all heads of one or two models during training."""

import html
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from attnlab.errors import BadInput, printable
from attnlab.files import write_atomically
from attnlab.pages.attention_maps import views_of
from attnlab.probes.snapshots import history, snapshot
from attnlab.runs.history import PatternHistory, read_history
from attnlab.runs.pairing import labels
from attnlab.runs.reading import Run, read_run

TEXT = "To be, or not to be"


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


def explore(*models: str | Path, text: str | None = None, trust: bool = False) -> Explorer:
    """Show the attention of every head of a model, or of two side by side.

    Models are as for `attnlab.pages.attention_maps.look`, and `trust` as for `load_model`. The
    page shows the history of a run directory, or, with a text, the trained models on this text.
    Raises BadInput if there is no such model, the text does not fit it, or its history is damaged.
    """
    targets = [str(model) for model in models]
    if not 1 <= len(targets) <= 2:
        raise BadInput(f"explore takes 1 or 2 models, not {len(targets)}; --live takes more")
    found = {each: run for each in targets if (run := run_of(each))}
    names = names_of(targets, found)
    runs = [
        {"name": name, "note": _note(found.get(each)), "unit": unit} | shown.model_dump()
        for name, each in zip(names, targets, strict=True)
        for shown, unit in [history_of(each, text, trust=trust)]
    ]
    title = " and ".join(names)
    return filled("explorer.html", title, {"title": title, "runs": runs})


def filled(template: str, title: str, content: Mapping[str, Any]) -> Explorer:
    """A template of this folder with a title and JSON, which may hold any text."""
    page = files("attnlab.pages").joinpath(template).read_text(encoding="utf-8")
    head, body = page.split("{{data}}")
    data = json.dumps(content, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    heading = html.escape(title).encode("ascii", "xmlcharrefreplace").decode()
    return Explorer(title, head.replace("{{title}}", heading) + data + body)


def run_of(target: str) -> Run | None:
    """The run of a run directory, or None for another target."""
    return read_run(Path(target)) if (Path(target) / "status.json").is_file() else None


def names_of(targets: Sequence[str], runs: Mapping[str, Run]) -> list[str]:
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
    run = run_of(target)
    if run and text is None and (found := read_history(run.folder)):
        return found, str(run.metrics.get("unit", "character"))
    seen, tokens, unit = views_of(target, TEXT if text is None else text, trust=trust)
    now = snapshot(seen, run.step if run else 0)
    return PatternHistory(**history(tokens, seen, [now])), unit


def _note(run: Run | None) -> str:
    if run is None:
        return ""
    note, loss = f"{run.status} at step {run.step:,}", run.metrics.get("val_loss")
    if isinstance(loss, float) and math.isfinite(loss):
        note += f", validation loss {loss:.4f}"
    of_attention = {
        "parameters": "parameters",
        "flops": "FLOPs per token",
        "cached": "numbers cached",
    }
    known = {unit: run.metrics.get(f"costs.{key}") for key, unit in of_attention.items()}
    costs = [f"{x:,} {unit}" for unit, x in known.items() if isinstance(x, int)]
    return f"{note}; attention: {', '.join(costs)}" if costs else note
