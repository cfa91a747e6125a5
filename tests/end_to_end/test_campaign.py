"""A sample of the fault campaign, and how its table is written; `make faults` runs it."""

from pathlib import Path

from tests.end_to_end.campaign import (
    BEGIN,
    END,
    IDENTICAL,
    KINDS,
    OTHERWISE,
    PAGE,
    SENTENCE,
    Outcome,
    add_to_page,
    run_faults,
)

# A kill in a rename, a full disk, a truncated file, and a clock that jumps.
SAMPLE = (3, 5, 22, 24)


def test_a_sample_of_faults_loses_nothing() -> None:
    wrong = [outcome for outcome in run_faults(SAMPLE) if outcome.ended == OTHERWISE]
    assert not wrong, wrong


def test_the_page_adds_up_its_calls(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"Before\n{BEGIN}\n{END}\nafter\n")
    kinds = list(KINDS)
    outcomes = [
        Outcome(0, kinds[0], "train", IDENTICAL),
        Outcome(1, kinds[0], "train", SENTENCE),
        Outcome(2, kinds[1], "train", OTHERWISE),
    ]
    for _ in range(2):
        add_to_page(page, outcomes, "abc")
    text = page.read_text()
    assert f"| {kinds[0]} | 4 | 2 | 2 | 0 |" in text
    assert f"| {kinds[1]} | 2 | 0 | 0 | 2 |" in text
    assert "| all | 6 | 2 | 2 | 2 |" in text
    assert "Faults 0 to 2 at commit abc.\nFaults 0 to 2 at commit abc." in text
    assert text.startswith("Before\n") and text.endswith("after\n")


def test_the_page_has_a_place_for_the_table() -> None:
    assert BEGIN in PAGE.read_text() and END in PAGE.read_text()
