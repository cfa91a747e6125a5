"""Corpora: split, alphabet, hashes, fallbacks, and a download from a server on loopback."""

import hashlib
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnlab.data import sources, tinyshakespeare
from attnlab.data.corpus import Corpus, decode, encode
from attnlab.errors import BadInput

BYTES = b"First Citizen:\nBefore we proceed any further, hear me speak.\r\n\n" * 50


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A stand-in for TinyShakespeare with its own hash, an empty cache and no ATTNLAB_DATA."""
    monkeypatch.setattr(tinyshakespeare, "SHA256", hashlib.sha256(BYTES).hexdigest())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("ATTNLAB_DATA", raising=False)
    file = tmp_path / "input.txt"
    file.write_bytes(BYTES)
    return file


class Handler(BaseHTTPRequestHandler):
    """/good gives the bytes, /bad others, /slow never ends, anything else is not found."""

    def do_GET(self) -> None:
        if self.path == "/slow":
            time.sleep(3)
        content = {"/good": BYTES, "/bad": b"<html>", "/slow": b""}.get(self.path)
        self.send_response(404 if content is None else 200)
        self.end_headers()
        self.wfile.write(content or b"")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    http = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{http.server_port}"
    http.shutdown()


def test_a_download_is_checked_and_kept(pretend: Path, server: str, tmp_path: Path) -> None:
    file = tmp_path / "new" / "input.txt"
    tinyshakespeare.download([f"{server}/missing", f"{server}/bad", f"{server}/good"], file)
    assert file.read_bytes() == BYTES
    assert [f.name for f in file.parent.iterdir()] == ["input.txt"]


def test_where_every_place_fails_the_reasons_are_told(pretend: Path, server: str) -> None:
    file = pretend.parent / "none"
    with pytest.raises(BadInput, match=r"data=plays.*404.*gave other bytes"):
        tinyshakespeare.download([f"{server}/missing", f"{server}/bad"], file)
    assert not file.exists()


def test_a_place_that_does_not_answer_costs_no_more_than_the_limit(
    pretend: Path, server: str
) -> None:
    began = time.monotonic()
    with pytest.raises(tinyshakespeare.NotFound, match=r"no answer|timed out"):
        tinyshakespeare.download([f"{server}/slow"], pretend.parent / "none", seconds=0.3)
    assert time.monotonic() - began < 2


def test_the_text_keeps_its_newlines(pretend: Path) -> None:
    corpus = tinyshakespeare.tinyshakespeare(str(pretend))
    assert corpus.text == BYTES.decode()
    assert corpus.name == "tinyshakespeare"


def test_places_are_tried_in_order(pretend: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tinyshakespeare, "PLACES", ())
    with pytest.raises(tinyshakespeare.NotFound):
        tinyshakespeare.tinyshakespeare()
    cached = tinyshakespeare.cache_file()
    cached.parent.mkdir(parents=True)
    cached.write_bytes(BYTES)
    assert tinyshakespeare.tinyshakespeare().text
    folder = pretend.parent / "data"
    (folder / "tinyshakespeare").mkdir(parents=True)
    (folder / "tinyshakespeare" / "input.txt").write_bytes(b"other")
    monkeypatch.setenv("ATTNLAB_DATA", str(folder))
    with pytest.raises(BadInput, match="ATTNLAB_DATA, is not TinyShakespeare"):
        tinyshakespeare.tinyshakespeare()
    monkeypatch.setenv("ATTNLAB_DATA", "/nowhere")
    with pytest.raises(BadInput, match="ATTNLAB_DATA = /nowhere is not a folder"):
        tinyshakespeare.tinyshakespeare()


def test_auto_falls_back_on_plays_loudly(pretend: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tinyshakespeare, "PLACES", ())
    monkeypatch.setattr(sources, "PLAYS_LENGTH", 5000)
    with pytest.warns(UserWarning, match="TRAINING ON THE EMBEDDED CORPUS 'plays'"):
        corpus = sources.auto()
    assert corpus.name == "plays"
    assert corpus.val_floor is not None


def test_auto_does_not_hide_a_wrong_file(pretend: Path) -> None:
    pretend.write_bytes(b"other")
    with pytest.raises(BadInput, match="is not TinyShakespeare"):
        sources.auto(str(pretend))


def test_plays_have_a_floor_that_is_their_own_entropy() -> None:
    corpus = sources.plays(length=20_000)
    assert corpus.val_floor is not None
    assert 0.2 < corpus.val_floor < 1.5
    assert corpus.text == sources.plays(length=20_000).text
    assert corpus.text != sources.plays(length=20_000, seed=1).text


@given(st.text(min_size=1, max_size=200))
def test_encoding_can_be_undone(text: str) -> None:
    text = text.encode("utf-8", "ignore").decode()  # lone surrogates are no text
    if text:
        corpus = Corpus("any", text)
        assert decode(corpus.ids, corpus.alphabet) == text


def test_a_stranger_is_named() -> None:
    with pytest.raises(BadInput, match="lacks the characters 'x', 'é'"):
        encode("abxé", "abc")


def test_the_split_is_by_position() -> None:
    corpus = Corpus("digits", "0123456789" * 10)
    assert len(corpus.train) == 90
    assert torch.equal(torch.cat([corpus.train, corpus.val]), corpus.ids)
    assert corpus.sha256 == hashlib.sha256(corpus.text.encode()).hexdigest()


def test_an_alphabet_of_more_than_1000_symbols_is_refused() -> None:
    Corpus("fits", "".join(map(chr, range(1000, 2000))))
    with pytest.raises(BadInput, match="1,001 symbols"):
        Corpus("large", "".join(map(chr, range(1000, 2001))))


def test_a_text_needs_a_validation_window() -> None:
    corpus = Corpus("short", "ab" * 300)  # 60 characters validate
    corpus.check_length(59)
    with pytest.raises(BadInput, match="too few for windows of block_size = 60"):
        corpus.check_length(60)


def test_text_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_bytes("Größe\r\n".encode())
    assert sources.text(str(file)).text == "Größe\r\n"
    file.write_bytes(b"abc\xff")
    with pytest.raises(BadInput, match="is not UTF-8: byte 3 is 0xff"):
        sources.text(str(file))
    file.write_bytes(b"")
    with pytest.raises(BadInput, match="is empty"):
        sources.text(str(file))
    with pytest.raises(BadInput, match="cannot be read: No such file"):
        sources.text(str(tmp_path / "none"))


def test_a_dataset_of_hugging_face_from_a_local_folder(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"line": "To be,"}\n{"line": "or not"}\n')
    corpus = sources.hub(str(tmp_path), column="line")
    assert corpus.text == "To be,\nor not\n"
    assert sources.hub(str(tmp_path), column="line", limit=8).text == "To be,\no"
    for settings, sentence in (
        ({"column": "text"}, r"data.column = text is not in .*, which has line"),
        ({"column": "line", "split": "test"}, "cannot be loaded: .*test"),
        ({"column": "line", "limit": 0}, "data.limit = 0 must be at least 1"),
    ):
        with pytest.raises(BadInput, match=sentence):
            sources.hub(str(tmp_path), **settings)
    with pytest.raises(BadInput, match="cannot be loaded"):
        sources.hub(str(tmp_path / "nowhere"))


def test_what_nobody_can_reach_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    # As the variable HF_HUB_OFFLINE=1 would; without it the hub is asked for half a minute.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    with pytest.raises(BadInput, match=r"data\.dataset = some/where cannot be loaded"):
        sources.hub("some/where")
