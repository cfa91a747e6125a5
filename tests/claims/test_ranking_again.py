"""The ranking with another instruction set, and how many runs it still needs, by invented rows."""

from collections.abc import Callable

import pytest

from attnlab.claims.ranking import LONG, Protocol, missing_of_ranking, ranking_table
from attnlab.claims.ranking_page import cell_in_words, notes_on
from attnlab.claims.ranking_plan import BaselineRun, most_similar, rate_of_run, runs_ahead
from attnlab.claims.ranking_work import keys_with_verdict, missing_again_of_cells, sample_of_cells
from attnlab.claims.trials import Run, is_pilot

N = 10
Loss = Callable[[Run], float]


def protocol_of(*variants: str) -> Protocol:
    task = {"says": "", "overrides": ["data=t"], "steps": N, "rates": [1e-3, 3e-3, 1e-2]}
    return Protocol(
        test_seeds=range(10),
        baseline="sdpa",
        common=["probes=curve"],
        tasks={"text": task | {"quick": True}, "other": task | {"overrides": ["data=o"]}},
        arms={name: {"says": ""} for name in ("sdpa", *variants)},
    )


def row_of(run: Run, loss: float, used: str = "AVX2") -> dict:
    """A row of n or 4 n steps; its loss is the same after both, and it takes a second a step."""
    steps = LONG * N if f"trainer.max_steps={LONG * N}" in run.overrides else N
    curve = {"losses": {str(N): loss, str(LONG * N): loss}}
    return {
        "status": "finished",
        "values": {"curve": curve},
        "cpu_seconds": float(steps),
        "commit": "",
        "instruction_set": used,
    }


def run_all(protocol: Protocol, names: list[str], loss: Loss, rows: dict | None = None) -> dict:
    """All rows of some variants, made in the rounds in which they are missing."""
    rows = dict(rows or {})
    while missing := missing_of_ranking(protocol, rows, names, quick=False):
        rows |= {run: row_of(run, loss(run)) for run in missing}
    return rows


def best_at_3e3(run: Run) -> float:
    """The loss of a run: the rate 3e-3 is the best."""
    return 1.0 + abs(rate_of_run(run) - 3e-3)


def better(run: Run) -> float:
    """x is better than sdpa, in each seed."""
    return best_at_3e3(run) - 0.1 * ("attn=x" in run.overrides)


def worse_in(seeds: int) -> Loss:
    """x is better than sdpa, but in some test seeds."""
    return lambda run: better(run) + 0.2 * ("attn=x" in run.overrides and run.seed < seeds)


@pytest.mark.parametrize(
    ("loss", "part", "verdict", "then"),
    [
        (better, 1.0, "better", "better"),
        (worse_in(1), 1.0, "open", "open"),
        (worse_in(10), 1.0, "open", "worse"),
        (better, 0.5, "better", None),  # not complete
    ],
)
def test_a_verdict_that_changes_with_the_instruction_set_is_open(loss, part, verdict, then):
    protocol = protocol_of("x")
    rows = run_all(protocol, ["x"], better)
    cells = keys_with_verdict(protocol, ranking_table(protocol, rows, ["x"]), quick=False)
    missing = missing_again_of_cells(protocol, rows, {}, cells)
    repeated = missing[: int(part * len(missing) / 4)] if part < 1 else missing
    again = {run: row_of(run, loss(run), "SSE4.2") for run in repeated}
    table = ranking_table(protocol, rows, ["x"], again)
    cell = table["x", "text", LONG]
    assert (cell.verdict, cell.again.verdict if cell.again else None) == (verdict, then)
    changed = then not in (None, "better")
    assert ("not the same on two processors" in cell_in_words(cell)) == changed
    said = " ".join(notes_on(protocol, table, ["x"]))
    assert ("open, as they changed" in said) == changed
    assert ("repeated on SSE4.2: all are the same" in said) == (then == "better")


def test_the_test_of_a_variant_and_its_baseline_is_repeated_once():
    protocol = protocol_of("x")
    rows = run_all(protocol, ["x"], better)
    table = ranking_table(protocol, rows, ["x"])
    cells = keys_with_verdict(protocol, table, quick=False)
    missing = missing_again_of_cells(protocol, rows, {}, cells)
    assert len(missing) == len(set(missing)) == 2 * 2 * 10  # variants, tasks, seeds
    assert {rate_of_run(run) for run in missing} == {3e-3}
    assert all(f"trainer.max_steps={LONG * N}" in run.overrides for run in missing)  # n is in it
    assert not any(is_pilot(run.seed) for run in missing)
    again = {run: rows[run] for run in missing}
    assert missing_again_of_cells(protocol, rows, again, cells) == []
    assert (
        missing_again_of_cells(protocol, {}, again, cells) == []
    )  # without pilots, no rate is known
    quick = keys_with_verdict(protocol, table, quick=True)
    assert quick == [("x", "text", 1)]


def test_a_sample_has_close_cells_and_keeps_them_when_a_variant_is_added():
    names = [f"v{n}" for n in range(20)]
    far = {"attn=v0", "attn=v1"}  # better in half of the seeds

    def loss(run: Run) -> float:
        mixed = not far.isdisjoint(run.overrides) and run.seed % 2
        return best_at_3e3(run) + (0.1 if mixed else -0.1 * ("attn=sdpa" not in run.overrides))

    def sample(variants: list[str]) -> list:
        protocol = protocol_of(*variants)
        table = ranking_table(protocol, run_all(protocol, variants, loss), variants)
        return sample_of_cells(table, keys_with_verdict(protocol, table, quick=False))

    fewer = sample(names[:-1])
    more = sample(names)
    assert len(fewer) == len(more) == 30
    assert not {"v0", "v1"} & {name for name, *_ in more}
    assert {key for key in more if key[0] != names[-1]} <= set(fewer)


def test_cells_that_compare_two_processors_are_counted():
    protocol = protocol_of("x")
    rows = run_all(protocol, ["x"], better)
    for run, row in rows.items():
        row["machine"] = "AMD EPYC, torch 2"
        if "attn=x" in run.overrides and "data=o" in run.overrides and run.seed == 3:
            row["machine"] = "Xeon, torch 2"
    table = ranking_table(protocol, rows, ["x"])
    assert {key[1:]: cell.other_processor for key, cell in table.items()} == {
        ("text", 1): 0, ("text", LONG): 0, ("other", 1): 1, ("other", LONG): 1,
    }  # fmt: skip
    assert "2 of them compare runs of two models" in " ".join(notes_on(protocol, table, ["x"]))


@pytest.mark.parametrize("quick", [False, True])
def test_a_plan_counts_all_runs_of_a_variant_that_comes_out_as_its_baseline(quick):
    protocol = protocol_of("x")
    rows = run_all(protocol, ["sdpa"], best_at_3e3)
    ahead = runs_ahead(protocol, rows, ["x"], quick=quick)
    made = dict(rows)
    while missing := missing_of_ranking(protocol, made, ["x"], quick=quick):
        made |= {run: row_of(run, best_at_3e3(run)) for run in missing}
    new = made.keys() - rows.keys()
    assert ahead.runs == len(new) > len(missing_of_ranking(protocol, rows, ["x"], quick=quick))
    assert ahead.minutes == pytest.approx(sum(made[run]["cpu_seconds"] for run in new) / 60)
    assert runs_ahead(protocol, made, ["x"], quick=quick).runs == 0
    assert runs_ahead(protocol, {}, ["x"], quick=quick) is None  # nothing tells how it comes out


@pytest.mark.parametrize(
    ("rate", "seed", "chosen"),
    [(1e-3, 1, (1e-3, 1)), (2e-3, 0, (1e-3, 0)), (5e-3, 1, (1e-2, 1)), (1e-2, 9, (1e-2, 0))],
)
def test_a_run_comes_out_as_that_of_the_nearest_rate_and_of_its_seed(rate, seed, chosen):
    baseline_runs = [BaselineRun(r, s, {"made": (r, s)}) for r in (1e-3, 1e-2) for s in (0, 1)]
    assert most_similar(Run((f"optim.lr={rate:g}",), seed), baseline_runs) == {"made": chosen}
