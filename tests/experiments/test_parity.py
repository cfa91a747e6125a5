import pytest

from attnlab.files import write_json
from experiments.parity.measure import beyond


def test_only_the_answers_beyond_the_trained_length_count(tmp_path):
    right = [1.0] * 20 + [0.5] * 15 + [0.7] * 5
    by_length = {"40": {"accuracy": 0.775, "accuracy_by_position": right}}
    write_json(tmp_path / "metrics.json", {"by_length": by_length})
    assert beyond(tmp_path)["beyond"] == pytest.approx(0.55)
    assert beyond(tmp_path)["by position"] == right
