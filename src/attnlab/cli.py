"""The command `attnlab`: each verb a thin call of the library, imported when it is called."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from attnlab import fast_imports
from attnlab.errors import DISK, BadInput, of_the_disk

RUN = "A run folder, a checkpoint"
HUB = "a local folder, or a name on the hub"

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="What is done with runs and models; training is `python train.py`.",
)


@app.callback()
def _verbs() -> None:
    """Makes Typer ask for a verb while there is only one."""


@app.command()
def sample(
    target: Annotated[str, typer.Argument(help=f"{RUN}, or hf: and a GPT-2 ({HUB}).")],
    prompt: Annotated[str, typer.Option(help="Text to go on from.")] = "\n",
    chars: Annotated[int, typer.Option(help="How many characters.")] = 500,
    temperature: Annotated[float, typer.Option(help="Below 1 bolder, 0 greedy.")] = 0.8,
    seed: Annotated[int, typer.Option(help="The same seed gives the same text.")] = 0,
    cache: Annotated[bool, typer.Option(help="Keep keys and values: same text, sooner.")] = True,
) -> None:
    """Print text of a trained model as it comes."""
    with fast_imports.imports():
        from attnlab import text_generation

    with fast_imports.imports():  # what the model's own classes need
        writer = text_generation.open_generator(target)
    pieces = writer.write(prompt, chars, temperature=temperature, seed=seed, cache=cache)
    first = next(pieces, "")  # bad input is refused before anything is printed
    print(prompt, first, sep="", end="", flush=True)
    for piece in pieces:
        print(piece, end="", flush=True)
    print()


@app.command()
def checkup(
    target: Annotated[
        str,
        typer.Argument(
            help="A run folder or checkpoint, package.module:factory, path/to/file.py:factory, "
            "hf:<model type>, or a local folder of transformers."
        ),
    ],
    vocab_size: Annotated[int | None, typer.Option(help="Where the model does not say.")] = None,
    block_size: Annotated[int | None, typer.Option(help="The longest sequence to try.")] = None,
    prove: Annotated[bool, typer.Option("--prove", help="Train a copy to prove a leak.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write the report as JSON.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write the report with its pictures.")] = None,
) -> None:
    """Find what is wrong with the attention of any model: exit code 0 healthy, 1 a fault."""
    from rich.console import Console

    with Console(stderr=True).status(f"examining {target}", spinner="line"):  # on a terminal
        with fast_imports.imports():
            from attnlab.checkup import command

        report = command.examine(
            target,
            vocab_size=vocab_size,
            block_size=block_size,
            prove=prove,
            json=json,
            html=html,
        )
    report.print()
    raise typer.Exit(report.exit_code)


@app.command()
def reproduce(
    claims: Annotated[list[str] | None, typer.Argument(help="Names; all without any.")] = None,
    budget: Annotated[str, typer.Option(help="quick (15 minutes on 2 cores) or full.")] = "quick",
    seeds: Annotated[int | None, typer.Option(help="Instead of each claim's own number.")] = None,
    jobs: Annotated[int | None, typer.Option(help="Processes; one a core otherwise.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="Show the claims, run nothing.")] = False,
    publish: Annotated[bool, typer.Option("--publish", help="Write the READMEs too.")] = False,
    experiments: Annotated[Path, typer.Option(help="Holds <claim>/claim.py.")] = Path(
        "experiments"
    ),
    conf: Annotated[Path, typer.Option(help="Hydra's configuration.")] = Path("conf"),
    outputs: Annotated[Path, typer.Option(help="Where runs and report go.")] = Path(
        "outputs/reproduce"
    ),
) -> None:
    """Run the claims again and judge them; goes on where an earlier call was stopped."""
    from attnlab.claims import commands

    places = commands.places(experiments, conf, outputs, budget)
    if list_:
        commands.show(places, claims or [])
        return
    raise typer.Exit(commands.judge(places, claims or [], seeds=seeds, jobs=jobs, publish=publish))


@app.command()
def runs(
    folder: Annotated[Path, typer.Argument(help="outputs, or one sweep in it.")] = Path("outputs"),
    where: Annotated[
        list[str] | None,
        typer.Option(help="attn=unscaled, optim.lr<0.01, status!=finished, ... (all must hold)"),
    ] = None,
    sort: Annotated[str | None, typer.Option(help="A setting or a metric.")] = None,
    descending: Annotated[bool, typer.Option("--descending", help="Largest first.")] = False,
    columns: Annotated[str | None, typer.Option(help="Settings and metrics, by commas.")] = None,
    each: Annotated[bool, typer.Option("--each", help="A row a run, not a mean.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List runs with what they measured: mean, standard deviation and n over seeds."""
    from rich.console import Console

    from attnlab import runs as library
    from attnlab import runs_table

    there = library.read_runs(folder)
    found = library.select(there, where or [])
    groups = library.group(found)
    if sort is not None:
        found = library.sort(found, sort, descending=descending)
        groups = library.sort_groups(groups, sort, descending=descending)
    keys = runs_table.usual(found) if columns is None else [c.strip() for c in columns.split(",")]
    for key in keys:
        library.check_key(found, key)
    if csv or json:
        rows = (
            runs_table.rows_of_each(found, keys)
            if each
            else runs_table.rows_of_means(groups, keys)
        )
        print(
            runs_table.as_csv(rows) if csv else runs_table.as_json(rows), end="" if csv else "\n"
        )
        return
    console = Console()
    console.print(
        runs_table.title(found, str(folder), of=len(there)),
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    if not found:
        return
    console.print(runs_table.each(found, keys) if each else runs_table.means(groups, keys))


@app.command()
def plot(
    folder: Annotated[Path, typer.Argument(help="A sweep: outputs/<name>.")],
    where: Annotated[list[str] | None, typer.Option(help="As for `runs`.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where; <folder>/plots otherwise.")] = None,
) -> None:
    """Draw losses, entropy by layer and loss by position, over seeds, as PNG and SVG."""
    from attnlab.runs import read_runs, select

    found = select(read_runs(folder), where or [])
    if not found:
        raise BadInput(f"no run of {folder} fulfils where = {' and '.join(where or [])}")
    from attnlab.plotting.figures import draw

    for file in draw(found, folder / "plots" if out is None else out):
        print(file)


@app.command()
def look(
    target: Annotated[str, typer.Argument(help=f"{RUN}, or hf: and a BERT or GPT-2 ({HUB}).")],
    text: Annotated[str, typer.Option(help="What the heads look at.")] = "To be, or not to be",
    layer: Annotated[int | None, typer.Option(help="One, from 0; all otherwise.")] = None,
    head: Annotated[int | None, typer.Option(help="One, from 0; all otherwise.")] = None,
    out: Annotated[Path | None, typer.Option(help="PNG; look.png beside it otherwise.")] = None,
) -> None:
    """Draw where every head looks in a text, and say it in words."""
    from rich.console import Console

    from attnlab import attention_maps as library
    from attnlab.files import write_atomically
    from attnlab.plotting.drawing import png

    seen = library.look(target, text, layer=layer, head=head)
    place = Path(target.removeprefix("hf:"))
    beside = place if place.is_dir() else place.parent if place.exists() else Path()
    file = out or beside / "look.png"
    write_atomically(file, png(seen.page))
    Console().print(seen.table(), highlight=False)
    print(file)


@app.command()
def export(
    target: Annotated[Path, typer.Argument(help="A run folder or a checkpoint.")],
    out: Annotated[Path, typer.Option(help="A new folder, for transformers to load.")],
) -> None:
    """Write a model as a GPT-2 of transformers, with its characters as the tokenizer."""
    from attnlab import interop
    from attnlab.training.run import load_model

    net, alphabet = load_model(target)
    interop.export(net, alphabet, out)
    print(out)


def main() -> None:
    """Run the command line; bad input is one sentence and exit code 2."""
    # As under `python train.py`: a run may name the user's own modules in this folder.
    sys.path.insert(0, "")
    try:
        app()
    except BadInput as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        raise SystemExit(2) from None
    except BrokenPipeError:  # the reader of a pipe has gone, `| head` say
        sys.stderr.close()
        raise SystemExit(0) from None
    except OSError as error:
        if error.filename is None and error.errno not in DISK:
            raise  # of a network, say
        print(f"error: {of_the_disk(error)}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
