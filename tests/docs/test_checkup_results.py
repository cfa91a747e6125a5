"""docs/checkup-results.md has all models of the tables of attncheck."""

from examined.judged import EXAMINED
from scripts.checkup_results import PARTS, read_page
from tests.conftest import ROOT


def test_the_page_of_results_has_all_models_and_no_wrong_verdict() -> None:
    page = read_page((ROOT / "docs/checkup-results.md").read_text(encoding="utf-8"))
    judged_now = {(name, part == "Faults") for part in PARTS for name in page[part]}
    assert judged_now == {(row.name, bool(row.says)) for row in EXAMINED}
