"""One HTML page that shows all heads of one or several models during training."""

import html
import json
import math
from importlib.resources import files
from pathlib import Path

from attnlab.errors import BadInput, printable
from attnlab.pages.attention_maps import views_of
from attnlab.probes.history import as_history, snapshot
from attnlab.probes.history_file import HistoryContent, layers_of, read_history
from attnlab.runs.frame import read_run
from attnlab.runs.groups import RunRow, labels


def explore(*models: str | Path, text: str | None = None, trust: bool = False) -> str:
    """The HTML page, which loads nothing, of every head of one model, or of several side by side.

    Models are as for `attnlab.pages.attention_maps.look`, and `trust` as for `load_model`. The
    page shows the history of a run directory, or, with a text, the trained models on this text.
    Raises BadInput if there is no such model, the text does not fit it, or its history is damaged.
    """
    if not models:
        raise BadInput("explore takes at least one model")
    folders = [Path(model).resolve() for model in models]
    runs = [read_run(x) if (x / ".hydra/config.yaml").exists() else None for x in folders]
    known = [run for run in runs if run]
    short = iter(labels(known) if known else [])
    pairs = zip(models, runs, strict=True)
    names = [next(short) if run else printable(str(model)) for model, run in pairs]
    shown = []
    for name, model, run in zip(names, models, runs, strict=True):
        history = history_of(str(model), run, text, trust=trust)
        shown.append({"name": name, "note": end_of_run_in_words(run, history), **history})
    title = html.escape(names[0] if len(names) == 1 else f"{len(names)} models")
    # The JSON may hold any text, and must not end the script.
    data = json.dumps({"runs": shown}, allow_nan=False).replace("<", "\\u003c")
    page = files("attnlab.pages").joinpath("explorer.html").read_text(encoding="utf-8")
    return page.replace("TITLE", title).replace('"DATA"', data)


def history_of(
    target: str, run: RunRow | None, text: str | None, *, trust: bool
) -> HistoryContent:
    """The history of a run or, without one or for a text, one snapshot of the trained model."""
    if run is not None and text is None:
        history = read_history(Path(target))
        if history is not None:
            return history
    seen, tokens, _ = views_of(target, text, trust=trust)
    step = run.get("step") if run is not None else None
    return as_history(tokens, seen, [snapshot(seen, int(step or 0))])


def end_of_run_in_words(run: RunRow | None, history: HistoryContent) -> str:
    """How a run ended, its loss, and which of its layers have no pattern."""
    if run is None:
        return ""
    loss = run.get("val_loss", math.nan)
    said = f"{run['status']}, seed {run.get('seed')}"
    if isinstance(loss, float) and math.isfinite(loss):
        said += f", validation loss {loss:.4f} on all of the validation text"
    silent = [n for n in range(int(run.get("model.n_layer", 0))) if n not in layers_of(history)]
    if silent:
        said += f"; not shown, for lack of a pattern: {', '.join(f'L{n}' for n in silent)}"
    return said
