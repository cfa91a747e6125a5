"""Write docs/checkup-results.md: what the checkup says of each model of tests/checkup.

python scripts/checkup_results.py           # the verdicts of this code; a minute
python scripts/checkup_results.py --before  # those of commit b308e5e too, which is checked out

Run it in the root of a clone, with attnlab on the path.
"""

import json
import os
import re
import subprocess
import sys
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/checkup-results.md"
HEAD = """# What the checkup finds

Small models with a planted or reported fault, repaired versions of them, and other healthy models:
the tables of `tests/checkup`, judged by `python scripts/checkup_results.py`. A link leads to the
report of the fault or its repair.

{total} models, all judged correctly. The earlier checkup of commit b308e5e, which watched the
operations of a model, judged {right} correctly:

| earlier checkup | models |
|---|---|
{changed}

## Faults

| what the checkup says | models |
|---|---|
{fault}

## Healthy, with a remark

| what the checkup says | models |
|---|---|
{remark}

## Healthy

{healthy}
"""
PARTS = ("Faults", "Healthy, with a remark", "Healthy")
LINK = r"\[([^]]*)\]\(https://github\.com/\S+\)"  # of a model to the report


class By(nn.Module):
    """A model that is called in its own way, for a checkup that knows `forward` alone."""

    vocab_size = 29

    def __init__(self, net: Any, call: Any) -> None:
        super().__init__()
        self.net, self.call = net, call
        self.block_size = getattr(net, "block_size", None)

    def forward(self, input_ids: Any, attention_mask: Any = None) -> Any:
        if attention_mask is None and self.call.__code__.co_argcount == 2:
            return self.call(self.net, input_ids)
        ones = torch.ones_like(input_ids)
        return self.call(self.net, input_ids, ones if attention_mask is None else attention_mask)


def before(row: Any) -> str:
    """The verdict of b308e5e on a row."""
    from attnlab import checkup as old  # of that commit

    given = dict(row.options)
    torch.manual_seed(0)
    model, call, sample = row.make(), given.pop("call", None), given.pop("sample", None)
    try:
        if row.check == "targets_shifted":
            said = [d.cause for d in old.check_batch(model, given["y"]).diagnoses]
        elif sample is not None and sample.is_floating_point():
            more = {} if call is None else {"call": call}
            said = old.checkup_attention(model, n_embd=sample.shape[-1], block_size=24, **more)
            said = list(said.causes)
        elif row.check in ("checkup", "causal", "past_used"):
            if sample is not None:
                given |= {"ids": sample, "vocab_size": model.vocab_size}
            report = old.checkup(model if call is None else By(model, call), **given)
            leaks = row.check == "causal"
            said = [d.cause for d in report.diagnoses if not leaks or d.status.value == "fault"]
            said = said or ["the model fails"] * bool(report.error)
        else:
            if row.check == "cache_equal":
                given["step"] = given.pop("padded_step", given.get("step"))
            if row.check == "documents_separate":
                given["documents"] = call
            elif call is not None:
                model = By(model, call)
            getattr(old, f"assert_{row.check}")(model, **given)
            said = []
    except AssertionError as failed:
        said = [d.cause for d in failed.report.diagnoses] or [str(failed)]
    except Exception as error:
        return f"not examined ({type(error).__name__})"
    return f"fault: {said[0]}" if said else "healthy"


def now(row: Any) -> tuple[str, str]:
    """The verdict of this code, "fault", "remark" or "healthy", and what it says."""
    from tests.checkup.test_faults import judged

    failed, said = judged(row)
    if failed:
        first = said.splitlines()[0].partition(": ")[2 if row.check == "checkup" else 0]
        sizes = r",? by \S+ of (their std|the std|the largest change)"
        return "fault", re.sub(rf" \((\d+ reads .*|\d+ pairs)\)|:$|{sizes}", "", first)
    if not row.told:
        return "healthy", ""
    begin = re.search(row.told, said).start()  # type: ignore[union-attr]
    end = r"(?<=[.;]) |\n"  # of a sentence
    return "remark", re.split(end, said[:begin])[-1] + re.split(end, said[begin:])[0]


def tables() -> dict[str, Any]:
    from tests.checkup.faults import PLANTED
    from tests.checkup.others import OTHERS
    from tests.checkup.reports import REPORTED

    rows = (*PLANTED, *REPORTED, *OTHERS)
    assert len({row.name for row in rows}) == len(rows), "two models have one name"
    return {row.name: row for row in rows}


def changed(row: Any, was: str) -> str:
    """How b308e5e was wrong about a row, or ""."""
    if was.startswith("not examined"):
        return "could not call"
    if was == "healthy":
        return "found no fault" if row.says else ""
    return "" if row.says else "found a fault in healthy models"


def named(row: Any) -> str:
    """A model with a link to the report of its fault."""
    place, _, number = row.published.partition("#")
    return f"[{row.name}](https://github.com/{place}/issues/{number})" if place else row.name


def listed(rows: dict[str, list[str]]) -> str:
    """Lines of a table: what is said, and of which models."""
    return "\n".join(f"| {said} | {'; '.join(names)} |" for said, names in rows.items())


def read_page(page: str) -> dict[str, dict[str, str]]:
    """Of each of `PARTS`, and of "changed": name of a model -> what is said of it."""
    found = {}
    for part in ("changed\n" + page).split("\n## "):
        head, _, text = re.sub(LINK, r"\1", part).partition("\n")
        rows = re.findall(r"^\| (?!earlier checkup|what the)(.+) \| (.+) \|$", text, re.MULTILINE)
        rows = rows or [("", text.strip().rstrip("."))]
        found[head] = {name: said for said, names in rows for name in names.split("; ")}
    return found


def main() -> None:
    """Examine all models and write the page."""
    sys.path.insert(0, str(ROOT))
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if "--old" in sys.argv:  # in a process with the old code
        for name, row in tables().items():
            print(json.dumps([name, changed(row, before(row))]), flush=True)
        return
    if "--before" in sys.argv:
        from tests.old import old_code

        paths = f"{old_code() / 'src'}{os.pathsep}{ROOT}"
        run = [sys.executable, __file__, "--old"]
        told = subprocess.check_output(run, env=os.environ | {"PYTHONPATH": paths}, text=True)
        was = dict(json.loads(row) for row in told.splitlines() if row.startswith("["))
    else:
        was = read_page(PAGE.read_text(encoding="utf-8"))["changed"]
    parts: dict[str, dict[str, list[str]]] = {
        part: defaultdict(list) for part in ("changed", "fault", "remark", "healthy")
    }
    for name, row in tables().items():
        verdict, said = now(row)
        assert (verdict == "fault") == bool(row.says), f"{name} is judged wrongly: {said}"
        parts[verdict][said].append(named(row))
        if was.get(name):
            parts["changed"][was[name]].append(name)
    total, wrong = len(tables()), sum(map(len, parts["changed"].values()))
    healthy = "; ".join(parts.pop("healthy")[""]) + "."
    page = HEAD.format(
        total=total, right=total - wrong, healthy=healthy,
        **{part: listed(rows) for part, rows in parts.items()},
    )  # fmt: skip
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
