"""The verdict on a model of the tables."""

from typing import Any

import torch

import attncheck
from examined.faults import PLANTED
from examined.modes import STATEFUL
from examined.others import OTHERS
from examined.reports import REPORTED
from examined.small import Row

EXAMINED = (*PLANTED, *REPORTED, *OTHERS, *STATEFUL)


def judged(row: Row, package: Any = attncheck) -> tuple[bool, str]:
    """Whether the check of a row fails, and what it says."""
    torch.manual_seed(0)
    model = row.make()
    try:
        if row.check != "checkup":
            return False, getattr(package, f"assert_{row.check}")(model, **row.options)
        report = package.checkup(model, **row.options)
    except package.CheckFailed as failed:
        return True, str(failed)
    wrong = [r for r in report.results if r.status in ("fault", "suspicious", "failed", "error")]
    if wrong:
        return True, "\n\n".join(f"{r.check}: {r.message}" for r in wrong)
    lines: list[str] = []
    for result in report.results:
        lines += [result.message, *(f"remark: {remark}" for remark in result.remarks)]
    lines += [f"not tried: {missing}" for missing in report.missing]
    return False, "\n".join(lines)
