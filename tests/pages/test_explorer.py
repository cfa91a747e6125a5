"""`attnlab explore`: one page that contains the histories and escapes their content."""

import base64
import json
import re
import zlib
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

import attnlab
from attnlab.errors import BadInput
from attnlab.pages.explorer import Explorer, explore
from attnlab.runs.history import read_history
from tests import command_line as commands
from tests.interop.folders import bert_folder
from tests.pages import invented

EVIL = '</script><img src=x onerror="alert(1)"><!--'


def data(page: str) -> dict[str, Any]:
    """What the page holds as JSON, read as a browser does."""

    class Reader(HTMLParser):
        found, here = "", False

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.here = tag == "script" and ("id", "data") in attrs
            assert tag not in {"img", "link", "iframe", "object", "base"}
            assert not {"src", "href"} & {name for name, _ in attrs}

        def handle_data(self, text: str) -> None:
            self.found += text if self.here else ""

        def handle_endtag(self, tag: str) -> None:
            self.here = False

    reader = Reader()
    reader.feed(page)
    content: dict[str, Any] = json.loads(reader.found)
    return content


def test_two_runs_with_their_histories(tmp_path: Path) -> None:
    first, second = invented.content(), invented.content(seed=1, steps=(0, 5))
    folders = [
        invented.run(tmp_path, "sdpa", first),
        invented.run(tmp_path, "unscaled", second, status="diverged"),
    ]
    file = folders[0] / "metrics.json"
    costs = {"parameters": 4096, "flops": 16384, "cached": None}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"costs": costs}))
    found = data(explore(*folders).page)
    assert found["title"] == "sdpa and unscaled"
    assert [run["name"] for run in found["runs"]] == ["sdpa", "unscaled"]
    of_attention = "attention: 4,096 parameters, 16,384 FLOPs per token"
    note = f"finished at step 30, validation loss 2.5000; {of_attention}"
    assert found["runs"][0]["note"] == note
    assert found["runs"][1]["note"] == "diverged at step 5, validation loss 2.5000"
    for run, kept in zip(found["runs"], (first, second), strict=True):
        assert {key: run[key] for key in kept} == kept


def test_runs_of_one_variant_are_labeled_by_their_seeds(tmp_path: Path) -> None:
    folders = [invented.run(tmp_path, "sdpa", invented.content(), seed=seed) for seed in (0, 1)]
    assert explore(*folders).title == "sdpa seed=0 and sdpa seed=1"


def test_a_run_without_a_history_shows_the_trained_model(
    train: Callable[..., Any], tmp_path: Path
) -> None:
    folder = train("attn=flipped").folder  # of probes=none
    (run,) = data(explore(folder, text="the quick").page)["runs"]
    assert "".join(run["tokens"]) == "the quick" and run["heads"] == [2, 2]
    (only,) = run["snapshots"]
    assert (only["step"], only["loss"]) == (4, None)
    weights = zlib.decompress(base64.b64decode(only["weights"]))
    pattern = torch.frombuffer(bytearray(weights), dtype=torch.uint8).view(2, 2, 9, 9)
    assert int(pattern.tril(-1).max()) == 0 and int(pattern.triu(1).max()) > 0
    checkpoint = explore(folder / "checkpoints" / "last.ckpt", text="the quick")
    (same,) = data(checkpoint.page)["runs"]
    assert same["snapshots"][0]["weights"] == only["weights"]


def test_a_text_shows_the_trained_model_of_a_run_with_a_history(train: Callable[..., Any]) -> None:
    folder = train("probes=default").folder
    assert len(data(explore(folder).page)["runs"][0]["snapshots"]) == 5
    (run,) = data(explore(folder, text="lazy fox").page)["runs"]
    assert "".join(run["tokens"]) == "lazy fox" and len(run["snapshots"]) == 1


def test_a_model_of_transformers(tmp_path: Path) -> None:
    folder = bert_folder(tmp_path / "bert")
    (run,) = data(explore(f"hf:{folder}", text="looking at the dog").page)["runs"]
    assert run["tokens"] == ["[CLS]", "look", "##ing", "at", "the", "dog", "[SEP]"]
    assert run["unit"] == "token" and run["heads"] == [4, 4]


@pytest.mark.parametrize(
    "text", [EVIL, "\u2028\u2029\x00\x1b", "{{data}}{{title}}", "naïve 🙂", "<b>&amp;"]
)
def test_unusual_texts_and_names_are_escaped(text: str, tmp_path: Path) -> None:
    folder = invented.run(tmp_path, "sdpa", invented.content(text))
    metrics = json.loads((folder / "metrics.json").read_text())
    (folder / "metrics.json").write_text(json.dumps(metrics | {"variant": text}))
    shown = explore(folder)
    shown.save(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("<script") == page.count("</script") == 2
    assert data(page)["runs"][0]["tokens"] == list(text)
    assert "<img" not in page


def test_nan_is_null(tmp_path: Path) -> None:
    kept = invented.content(nan_from=10)
    (run,) = data(explore(invented.run(tmp_path, "sdpa", kept)).page)["runs"]
    assert [each["loss"] for each in run["snapshots"]] == [4.0, 3.85, None, None]
    assert run["snapshots"][2]["measures"]["entropy"] == [[None] * 3] * 2


def test_two_histories_of_preset_tiny_fit_into_3_mb(tmp_path: Path) -> None:
    text = "abcdefghijklmnopqrstuvwxyz" * 2 + "."  # 53 characters, which 16 heads leave
    kept = invented.content(text, steps=range(20))
    for each in kept["snapshots"]:  # of 6 heads; 16 have as many more
        each["weights"] *= 3
    folder = invented.run(tmp_path, "sdpa", kept)
    size = len((folder / "history.json").read_bytes())
    assert size < 1e6 and 2 * size + len(explore_template()) < 3e6


def explore_template() -> bytes:
    return (Path(attnlab.__file__).parent / "pages" / "explorer.html").read_bytes()


def test_the_page_loads_nothing() -> None:
    page = explore_template().decode()
    assert "default-src 'none'" in page
    assert re.findall(r"https?://[^\s\"']+", page) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"\b(innerHTML|outerHTML|document\.write|eval|fetch|import)\b", page)


def test_a_notebook_shows_it_in_a_frame(tmp_path: Path) -> None:
    shown = attnlab.explore(invented.run(tmp_path, "sdpa", invented.content(EVIL)))
    assert isinstance(shown, Explorer)
    frame = shown._repr_html_()
    assert frame.startswith("<iframe srcdoc=") and "<script" not in frame
    assert 'sandbox="allow-scripts' in frame and "allow-same-origin" not in frame


def with_snapshot(kept: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return kept | {"snapshots": [*kept["snapshots"][:-1], kept["snapshots"][-1] | changes]}


def bomb(size: int) -> str:
    return base64.b64encode(zlib.compress(bytes(size), 9)).decode()


DAMAGED: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a list": lambda kept: [kept],
    "no snapshots": lambda kept: kept | {"snapshots": []},
    "an unknown key": lambda kept: kept | {"script": "alert(1)"},
    "a number as token": lambda kept: kept | {"tokens": [1, 2]},
    "no heads": lambda kept: kept | {"heads": [0, 3]},
    "too many heads": lambda kept: kept | {"heads": [10**9, 3]},
    "a mask of another size": lambda kept: kept | {"mask": bomb(3)},
    "maps that unpack to far more": lambda kept: with_snapshot(kept, weights=bomb(2**26)),
    "maps that are no base64": lambda kept: with_snapshot(kept, weights="<b>"),
    "maps that are not compressed": lambda kept: with_snapshot(kept, weights="AAAA"),
    "truncated maps": lambda kept: with_snapshot(
        kept, weights=kept["snapshots"][-1]["weights"][:-40]
    ),
    "a step twice": lambda kept: with_snapshot(kept, step=0),
    "a large step": lambda kept: with_snapshot(kept, step=10**400),
    "a loss that is a text": lambda kept: with_snapshot(kept, loss="2.5"),
    "a measure with a head less": lambda kept: with_snapshot(
        kept, measures={"entropy": [[0.5], [0.5]]}
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_history_is_one_sentence(name: str, tmp_path: Path) -> None:
    content = DAMAGED[name](invented.content())
    folder = invented.run(tmp_path, "sdpa", None)
    (folder / "history.json").write_text(json.dumps(content))
    ended = commands.attnlab("explore", str(folder))
    assert ended.code == 2 and len(ended.error) < 500
    assert ended.error.startswith("error: ") and "history.json" in ended.error
    assert ended.error.endswith("remove it to show the trained model alone\n")
    assert not (folder / "explore.html").exists()


def test_a_history_is_read_as_it_was_written(tmp_path: Path) -> None:
    kept = invented.content()
    folder = invented.run(tmp_path, "sdpa", kept)
    found = read_history(folder)
    assert found is not None and found.model_dump() == kept
    assert read_history(tmp_path) is None


def test_the_command(tmp_path: Path) -> None:
    folders = [invented.run(tmp_path, name, invented.content()) for name in ("sdpa", "flipped")]
    ended = commands.attnlab("explore", str(folders[0]))
    assert (ended.code, ended.out) == (0, f"{folders[0] / 'explore.html'}\n")
    first = (folders[0] / "explore.html").read_bytes()
    ended = commands.attnlab("explore", *map(str, folders))
    assert ended.out == f"{folders[0] / 'explore-attn=flipped-seed=0.html'}\n"
    assert (folders[0] / "explore.html").read_bytes() == first
    out = tmp_path / "both.html"
    ended = commands.attnlab("explore", *map(str, folders), "-o", str(out))
    assert (ended.code, ended.out) == (0, f"{out}\n")
    assert data(out.read_text(encoding="utf-8"))["title"] == "sdpa and flipped"
    ended = commands.attnlab("explore", str(tmp_path / "nothing"))
    assert ended.code == 2 and "there is no run directory or checkpoint" in ended.error


def test_a_text_that_does_not_fit_is_refused(train: Callable[..., Any]) -> None:
    folder = train().folder
    for text, words in (
        ("a", "at least two"),
        ("the lazy dog " * 9, "block_size"),
        ("Ω!", "lacks"),
    ):
        with pytest.raises(BadInput, match=words):
            explore(folder, text=text)


def test_the_signs_of_weights_are_kept_beside_their_sizes(tmp_path: Path) -> None:
    kept = invented.content(negative=True)
    (shown,) = data(explore(invented.run(tmp_path, "differential", kept)).page)["runs"]
    T = len(invented.TEXT)
    mask = invented.build_mask(invented.causal, T)
    expected = invented.patterns(30, mask, negative=True)
    sizes, signs = (
        torch.frombuffer(
            bytearray(zlib.decompress(base64.b64decode(shown["snapshots"][-1][name]))),
            dtype=torch.uint8,
        ).view(invented.LAYERS, invented.HEADS, T, T)
        for name in ("weights", "negative")
    )
    assert signs.sum() > 100
    weights = (sizes / 254.0).square() * (1 - 2.0 * signs)
    torch.testing.assert_close(weights, expected, rtol=0, atol=0.004)
