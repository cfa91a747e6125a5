"""Terminal, sentences, CSV, HTML page and figure of one comparison say the same."""

import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from attnlab.runs.compare import compare
from attnlab.runs.figure import draw_comparison
from attnlab.runs.frame import read_runs
from attnlab.runs.tables import four_digits
from tests.cli import attnlab
from tests.invented import write_run
from tests.runs.cases import CASES

LONG = "data.path=/a/long/directory/of/texts/that/nobody/wants/to/read/in/a/table.txt"


@pytest.mark.parametrize(
    ("case", "label", "row", "said", "of_page"),
    [
        ("worse", "unscaled", ("open", 1, 0.1223), "0.122 nats worse", "0.1223"),
        ("ten", "unscaled", ("open", 10, -0.1035), "better in 9 of 10", "9 of 10"),
        ("leak", "flipped", ("leak", 2, math.nan), "reads the future", "leak"),
        ("collapse", "identical_heads", ("open", 1, 0.004), "heads attend alike", "0.0040"),
        ("one_diverged", "unscaled", ("open", 2, math.inf), "in 1 of 2 seeds", "diverged at 3"),
        ("other_precision", "unscaled", ("open", 1, 0.005), "precisions differ", "0.0050"),
        ("stopped", "unscaled", ("open", 1, 0.005), "stopped at step 4 of 8", "stopped at 4"),
        ("damaged", "unscaled", ("open", 2, 0.1), "damaged: ", "damaged"),
        ("grid", "unscaled n_head=4", ("open", 3, 0.1), "n_head=4 ends 0.100 nats", "0.1000"),
        ("unfinished", "unscaled", ("open", 3, 0.1), "0.100 nats worse", "interrupted"),
    ],
)
def test_all_outputs_agree(
    case: str,
    label: str,
    row: tuple[str, int, float],
    said: str,
    of_page: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    CASES[case](tmp_path / "lab")
    csv, html = str(tmp_path / "table.csv"), tmp_path / "page.html"
    done = attnlab("compare", str(tmp_path / "lab"), "--csv", csv, "--html", str(html))
    assert done.code == 0, done.err
    table = pd.read_csv(csv).set_index("run")
    verdict, n, difference = row
    assert (table.verdict[label], table.n[label]) == (verdict, n)
    if not math.isnan(difference):
        assert table.difference[label] == pytest.approx(difference)
    (shown,) = re.findall(rf"^{re.escape(label)}  .*$", done.out, re.MULTILINE)
    for value in table.loc[label].drop("status").dropna():
        assert (four_digits(value) if isinstance(value, float) else str(value)) in shown
    page = html.read_text()
    assert said in done.out and said in page and of_page in page
    headings = page.replace("<wbr>", "")
    assert len(re.findall(f"<th>{re.escape(label)}</th>", headings)) >= 1

    (compared,) = (c for c in compare(read_runs(tmp_path / "lab")) if c.label == label)
    panels = {x.get_title(): x for x in draw_comparison(compare(read_runs(tmp_path / "lab"))).axes}
    if axes := panels.get("each seed minus the baseline"):
        names = [" ".join(x.get_text().split()) for x in axes.get_yticklabels()]
        (y,) = (y for y, name in enumerate(names) if re.sub(r" \(.*", "", name) == label)
        assert ("(leak)" in names[y]) == (verdict == "leak")
        finite = compared.differences[np.isfinite(compared.differences)].tolist()
        drawn = next(x for x in axes.lines if abs(np.mean(x.get_ydata()) - y) < 0.1)
        assert drawn.get_xdata().tolist() == pytest.approx(finite)
        assert ("1 diverged" in names[y]) == (case == "one_diverged")


def test_the_page_has_the_best_values_and_the_columns_of_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for variant, losses in (("sdpa", (2.0, 2.2)), ("unscaled", (2.3, 2.1))):
        for rate, loss in zip((0.1, 0.2), losses, strict=True):
            folder = tmp_path / "lab" / f"{variant} {rate}" / "0"
            write_run(tmp_path / "lab", variant, 0, loss, f"optim.lr={rate}", folder=folder)
    html = tmp_path / "page.html"
    options = ["--best", "lr", "--columns", "optim.lr", "--html", str(html)]
    done = attnlab("compare", str(tmp_path / "lab"), *options)
    assert done.code == 0, done.err
    page = html.read_text().replace("<wbr>", "")
    for line in ("0.1 of 0.1 (2.0000), 0.2 (2.2000)", "0.2 of 0.1 (2.3000), 0.2 (2.1000)"):
        assert line in done.out and line in page
    headings = re.findall(r"<th>([^<]+)</th>", page[: page.index("<tbody>")])
    place = headings.index("optim.lr")
    rows = re.findall(r"<tr>\s*<th>.*?</tr>", page, re.DOTALL)[:2]
    assert [float(re.findall(r"<td>([^<]*)</td>", row)[place]) for row in rows] == [0.1, 0.2]


def test_a_long_label_is_whole_in_files_and_ends_after_a_word_in_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for variant, loss in (("sdpa", 2.0), ("unscaled", 2.1)):
        write_run(tmp_path / "lab", variant, 0, loss, folder=tmp_path / "lab" / variant / "0")
        other = tmp_path / "lab" / f"{variant} long" / "0"
        write_run(tmp_path / "lab", variant, 0, loss + 1, LONG, sha256="1" * 64, folder=other)
    csv, html = tmp_path / "table.csv", tmp_path / "page.html"
    done = attnlab("compare", str(tmp_path / "lab"), "--csv", str(csv), "--html", str(html))
    label = f"unscaled {LONG.replace('data.', '')}"
    assert label in csv.read_text() and label in html.read_text()
    table = done.out.split("\n\n")[0].split("\n")
    (shown,) = [x for x in table if re.match(r"unscaled .*\.\.\.table\.txt ", x)]
    assert max(map(len, table)) <= 80 and "..." in shown


def test_an_own_mask_an_own_layer_and_callbacks_are_named(tmp_path: Path) -> None:
    write_run(tmp_path, "sdpa", 0, 2.0)
    write_run(tmp_path, "sdpa", 0, 2.1, "attn.may_attend=mine.even")
    write_run(tmp_path, "sdpa", 0, 2.2, "attn._target_=mine.Layer")
    write_run(tmp_path, "sdpa", 0, 2.3, "attn._target_=[mine.Layer,attnlab.attention.Gated]")
    stops = {"stop": {"_target_": "lightning.pytorch.callbacks.EarlyStopping"}}
    for typed, made in (("early_stopping", stops), ("none", {})):
        write_run(tmp_path, "unscaled", 0, 2.4, f"callbacks={typed}", settings={"callbacks": made})
    found = {c.label: c.interval.median for c in compare(read_runs(tmp_path)) if not c.is_baseline}
    own = {"sdpa may_attend=mine.even": 0.1, "Layer": 0.2, "Layer+Gated": 0.3}
    unpaired = {"unscaled callbacks=early_stopping": math.nan, "unscaled": math.nan}
    assert found == pytest.approx(own | unpaired, nan_ok=True)
    (alone,) = compare(read_runs(tmp_path, where=["loss=2.2"]))
    assert alone.label == "Layer"
