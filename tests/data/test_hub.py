"""A text column of a Hugging Face dataset, from a local folder."""

from pathlib import Path

import pytest

from attnlab.data.hub import hub
from attnlab.errors import BadInput


def test_a_dataset_of_hugging_face_from_a_local_folder(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"line": "To be,"}\n{"line": "or not"}\n')
    corpus = hub(str(tmp_path), column="line")
    assert corpus.text == "To be,\nor not\n"
    assert hub(str(tmp_path), column="line", limit=8).text == "To be,\no"
    for settings, sentence in (
        ({"column": "text"}, r"data.column = text is not in .*, which has line"),
        ({"column": "line", "split": "test"}, "cannot be loaded: .*test"),
        ({"column": "line", "limit": 0}, "data.limit = 0 must be at least 1"),
    ):
        with pytest.raises(BadInput, match=sentence):
            hub(str(tmp_path), **settings)
    with pytest.raises(BadInput, match="cannot be loaded"):
        hub(str(tmp_path / "nowhere"))


def test_what_nobody_can_reach_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    # As the variable HF_HUB_OFFLINE=1 would; without it the hub is asked for half a minute.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    with pytest.raises(BadInput, match=r"data\.dataset = some/where cannot be loaded"):
        hub("some/where")
