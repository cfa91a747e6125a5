"""The alignments of a trained translator, and their heatmap."""

import math
from pathlib import Path

import numpy as np
import pytest
import translation_measures as measures
from sentence_pairs import pairs
from translator import load_translator

from attnlab.plotting.heatmaps import alignment
from attnlab.training.config import read_config
from attnlab.training.run import run
from tests.bahdanau import project_settings


def test_the_picture_is_dark_where_the_weight_is() -> None:
    """For three words in reverse order, the dark squares start at the upper right."""
    pattern = np.eye(4, dtype=np.float32)[[2, 1, 0, 3]]
    words = ("one", "two", "three")
    page = alignment(pattern, words, words, "heading")[:, :-70].astype(int)  # without color bar
    dark = (abs(page - (6, 38, 79)) < 8).all(-1)  # the color of weight 1
    rows = [np.flatnonzero(row) for row in dark if row.sum() > 20]  # through a square
    centers = [float(row.mean()) for row in rows]
    assert len(rows) > 60
    turning = np.diff(centers)
    assert (turning < -15).sum() == 2 and (
        turning > 15
    ).sum() == 1  # two columns to the left, then the initial position


@pytest.mark.long
def test_a_trained_translator_attends_to_the_reordered_words(tmp_path: Path) -> None:
    """Half of the preset's steps are enough for this test."""
    chosen = ["preset=translation", "attn=cross/scaled_dot", "attn.size=32"]
    chosen += ["trainer.max_steps=250", "trainer.val_check_interval=250", "logger=none"]
    result = run(
        read_config(project_settings(*chosen)), tmp_path / "run", variant="cross-scaled_dot"
    )
    assert result.metrics["alignment_accuracy"] > 0.5
    assert result.metrics["bleu"] > 70
    net, alphabet = load_translator(result.folder)
    val = pairs().val[:100]
    seen = measures.alignments(net, val, alphabet)
    # The verb is last: its square is far below the diagonal, in the column of its source word.
    found = distance = 0
    for pair, pattern in zip(val, seen, strict=True):
        last = len(pair.target) - (2 if pair.target[-1] == "ka" else 1)
        found += int(pattern[last].argmax()) == pair.alignment[last]
        distance += math.fabs(last - pair.alignment[last])
    assert found / len(val) > 0.5
    assert distance / len(val) > 1.5  # weights on the diagonal would fail here
