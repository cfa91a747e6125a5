"""The verb `attnlab rank`."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from attnlab.commands.cli_runs import HERE, Conf, Jobs, Minutes, ShowPlan
from attnlab.errors import BadInput, printable
from attnlab.imports import fast_imports
from attnlab.installation import lab_path

Attention = Annotated[
    list[str] | None,
    Argument(
        help="attn=gate_head, attn._target_=my_package.Layer, or attn=\\[a,b], one a layer; "
        "by default all."
    ),
]


def rank(
    attention: Attention = None,
    quick: Annotated[bool, Option("--quick", help="Text, MQAR and parity, n steps.")] = False,
    size: Annotated[str | None, Option(help="baby: text with larger models, on a GPU.")] = None,
    plan: ShowPlan = False,
    publish: Annotated[bool, Option("--publish", help="Write pages of committed rows.")] = False,
    minutes: Minutes = None,
    jobs: Jobs = None,
    experiments: Annotated[Path | None, Option(help=f"With ranking/, {HERE}")] = None,
    conf: Conf = None,
    config_dir: Annotated[Path | None, Option(help="With your attn/NAME.yaml.")] = None,
    outputs: Annotated[Path, Option(help="For runs and pages.")] = Path("outputs/rank"),
) -> None:
    """Compare variants of attention, each at its best learning rate; the same command resumes.

    With settings of attn, only that variant is run, and softmax attention where it has no rows.
    """
    with fast_imports():
        from attnlab.claims.reproduce import find_paths
        from attnlab.files import write_atomically
        from attnlab.ranking import page
        from attnlab.ranking import rank as library

    if (size or config_dir) and not attention:
        raise BadInput("--size and --config-dir need a variant, such as attn=gate_head")
    outputs = outputs / size if size else outputs
    if experiments is None and Path("experiments", "ranking").is_dir():
        experiments = Path("experiments")
    # Rows of one's own are kept apart from those that are missing in the published table.
    place = outputs / "own" if attention else outputs
    paths = find_paths(experiments or lab_path("experiments"), conf, place, "full", config_dir)
    if publish and (attention or quick or plan or paths.fixed):
        raise BadInput("--publish is for the committed rows of a clone, without other arguments")
    ranking, complete = library.rank(
        *(paths, attention or []),
        quick=quick, jobs=jobs, minutes=minutes, size=size, only_plan=plan or publish,
    )  # fmt: skip
    if publish:
        for file in page.publish(ranking):
            print(f"written   {file}")
    elif not plan:
        page.print_table(ranking)
        write_atomically(file := outputs / "ranking.html", page.html(ranking).encode())
        print(printable(str(file)))
    raise typer.Exit(0 if complete else 1)
