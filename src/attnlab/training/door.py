"""What train.py does besides Hydra: one sentence for bad input, one table for a result."""

import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.table import Table

from attnlab.errors import BadInput
from attnlab.training.folder import folder_for
from attnlab.training.run import Result, run

# As the user set it, before `one_sentence` sets it for Hydra.
WANTS_TRACEBACK = os.environ.get("HYDRA_FULL_ERROR") == "1"


def train(cfg: DictConfig) -> float:
    """Run what Hydra composed, and show what came out.

    Returns:
        the validation loss, for Hydra's sweepers.
    """
    hydra = HydraConfig.get()
    overrides = list(hydra.overrides.task)
    variant = hydra.runtime.choices["attn"]
    sweep = hydra.mode == RunMode.MULTIRUN
    try:
        folder = folder_for(cfg, variant, overrides)
        result = run(cfg, folder, variant=variant, overrides=overrides)
    except BadInput as error:
        if sweep or WANTS_TRACEBACK:
            raise  # Hydra goes on with the other runs and reports at the end
        _say(error)
        raise SystemExit(2) from None
    show(result)
    return float(result.metrics["val_loss"])


@contextmanager
def one_sentence() -> Iterator[None]:
    """Turn what is the user's to mend into one sentence and exit code 2.

    HYDRA_FULL_ERROR=1 shows the traceback instead.
    """
    if WANTS_TRACEBACK:
        yield
        return
    os.environ["HYDRA_FULL_ERROR"] = "1"  # otherwise Hydra prints its own page and exits with 1
    python_format, warnings.formatwarning = warnings.formatwarning, _warning
    try:
        yield
    except (BadInput, HydraException, OmegaConfBaseException, OSError) as error:
        _say(error)
        raise SystemExit(2) from None
    finally:
        warnings.formatwarning = python_format
        del os.environ["HYDRA_FULL_ERROR"]


def show(result: Result) -> None:
    """Print the table that a run ends with."""
    metrics, folder = result.metrics, str(result.folder)
    rows = Table.grid(padding=(0, 2))
    rows.add_row("run folder", folder)
    status = metrics["status"]
    if status == "diverged":
        status += f" at step {metrics['diverged_at_step']}"
        status += f", last finite loss {metrics['last_finite_loss']:.4f}"
    if not result.fresh:
        status += " before; force=true redoes it"
    rows.add_row("status", status)
    rows.add_row("corpus", metrics["corpus"]["name"])
    loss = f"{metrics['val_loss']:.4f} nats a character, whole validation text"
    if "val_floor" in metrics:
        loss += f" (exact floor {metrics['val_floor']:.4f})"
    rows.add_row("val loss", loss)
    rows.add_row("speed", f"{metrics['tokens_per_second']:,.0f} tokens/s on {metrics['device']}")
    rows.add_row("", "")
    rows.add_row("compare", "tensorboard --logdir outputs")
    rows.add_row("sample", f"attnlab sample '{folder}' --prompt 'ROMEO:'")
    rows.add_row("vary", "python train.py attn=unscaled")
    Console(soft_wrap=True).print(rows)


def _warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    bar = "!" * 80
    return f"{bar}\n{message}\n{bar}\n" if category is UserWarning else f"warning: {message}\n"


def _say(error: BaseException) -> None:
    sentence = " ".join(str(error).split())
    # Hydra advises to add the misspelt key, which attnlab would refuse as well.
    sentence = re.sub(
        r"Could not override '(\S+)'\. To append .*",
        r"\1 is not a setting; python train.py --cfg job shows them all",
        sentence,
    )
    print(f"error: {sentence}", file=sys.stderr)
