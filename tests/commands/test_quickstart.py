"""The quick start as a notebook: it runs from top to bottom, and its cells show what they say."""

from pathlib import Path
from typing import Any

import pytest

from scripts.notebooks import QUICKSTART, quickstart, repository


def shown(cell: Any) -> str:
    """All that a cell printed or displayed, as text and as HTML."""
    parts = []
    for output in cell.get("outputs", []):
        parts.append(output.get("text", ""))
        parts += [str(x) for x in output.get("data", {}).values()]
    return "\n".join(parts)


def test_no_page_has_a_dead_link() -> None:
    text = QUICKSTART.read_text(encoding="utf-8") + str(quickstart())
    assert "OWNER" not in text and (not repository() or repository() in text)


@pytest.mark.slow
def test_the_quick_start_runs(tmp_path: Path) -> None:
    from nbclient import NotebookClient

    notebook = quickstart()
    NotebookClient(notebook, timeout=900, resources={"metadata": {"path": tmp_path}}).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    outputs = [shown(cell) for cell in cells]
    assert any("6 of 6" in text for text in outputs)
    compared = [text for text in outputs if "<svg" in text]
    assert "unscaled ends" in compared[0] and "TooSoft ends" in compared[1]
    assert any("TooSoft: healthy" in text for text in outputs)
    assert len([*tmp_path.rglob("metrics.json")]) == 9
