"""Every fault of the tables is found and described, and no healthy model is accused."""

from typing import Any

import torch

import attnlab.checkup
from tests.checkup.small import Row


def judged(row: Row, package: Any = attnlab.checkup) -> tuple[bool, str]:
    """Whether the check of a row fails, and what it says."""
    torch.manual_seed(0)
    model = row.make()
    try:
        if row.check != "checkup":
            return False, getattr(package, f"assert_{row.check}")(model, **row.options)
        results = package.checkup(model, **row.options).results
    except package.CheckFailed as failed:
        return True, str(failed)
    wrong = [r for r in results if r.status in ("fault", "suspicious", "failed")]
    return bool(wrong), "\n\n".join(f"{r.check}: {r.message}" for r in wrong or results)
