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
from pathlib import Path
from typing import Any

import torch
from torch import nn

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/checkup-results.md"
HEAD = """# What the checkup finds

Small models with a fault that was planted or reported, their repaired twins, and healthy models of
other kinds, from the tables of `tests/checkup`. `python scripts/checkup_results.py` writes this
page. "Before" is the verdict at commit b308e5e, whose checkup watched the operations in a model.

{counts}

| model | should be | before | now | what changed |
|---|---|---|---|---|
"""


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


def now(row: Any) -> str:
    """The verdict of this code."""
    from tests.checkup.test_faults import judged

    failed, said = judged(row)
    first = said.splitlines()[0].partition(": ")[2 if row.check == "checkup" else 0]
    if not failed and row.told:
        return f"remark: {re.search(row.told, said)[0]}"  # type: ignore[index]
    return f"fault: {first}" if failed else "healthy"


def tables() -> dict[str, Any]:
    from tests.checkup.faults import PLANTED
    from tests.checkup.others import OTHERS
    from tests.checkup.reports import REPORTED

    return {row.name: row for row in (*PLANTED, *REPORTED, *OTHERS)}


def line(row: Any, was: str, found: str) -> str:
    """A line of the page."""
    should = "fault" if row.says else "remark" if row.told else "healthy"
    changed = ""
    if was.startswith("not examined"):
        changed = "it can be called"
    elif should == "remark":
        changed = "it is told"
    elif not was.startswith(should):
        changed = "was missed" if row.says else "was accused"
    link = row.published and f" ([{row.published}]({url(row.published)}))"
    return f"| {row.name}{link} | {should} | {was} | {found} | {changed} |".replace("\n", " ")


def url(report: str) -> str:
    place, _, number = report.partition("#")
    return f"https://github.com/{place}/issues/{number}"


def previous() -> dict[str, str]:
    """Name -> the verdict of b308e5e, of the page as it is."""
    rows = [cells.split(" | ") for cells in PAGE.read_text(encoding="utf-8").splitlines()]
    return {cells[0][2:].partition(" ([")[0]: cells[2] for cells in rows if len(cells) == 5}


def main() -> None:
    """Examine all models and write the page."""
    sys.path.insert(0, str(ROOT))
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if "--old" in sys.argv:  # in a process with the old code
        for name, row in tables().items():
            print(json.dumps([name, before(row)]), flush=True)
        return
    if "--before" in sys.argv:
        from tests.old import old_code

        paths = f"{old_code() / 'src'}{os.pathsep}{ROOT}"
        run = [sys.executable, __file__, "--old"]
        told = subprocess.check_output(run, env=os.environ | {"PYTHONPATH": paths}, text=True)
        was = dict(json.loads(row) for row in told.splitlines() if row.startswith("["))
    else:
        was = previous()
    rows = tables()
    lines = [line(row, was.get(name, "not there"), now(row)) for name, row in rows.items()]
    right = sum(each.split(" | ")[3].startswith(each.split(" | ")[1]) for each in lines)
    earlier = sum("was missed" not in each and "was accused" not in each for each in lines)
    counts = f"{len(lines)} models, {earlier} judged rightly before and {right} now."
    PAGE.write_text(HEAD.format(counts=counts) + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
