"""The command `attnlab`: each verb a thin call of the library, imported when it is called."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from attnlab.errors import BadInput

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
    target: Annotated[Path, typer.Argument(help="A run folder or a checkpoint.")],
    prompt: Annotated[str, typer.Option(help="Text to go on from.")] = "\n",
    chars: Annotated[int, typer.Option(help="How many characters.")] = 500,
    temperature: Annotated[float, typer.Option(help="Below 1 bolder, 0 greedy.")] = 0.8,
    seed: Annotated[int, typer.Option(help="The same seed gives the same text.")] = 0,
) -> None:
    """Print text of a trained model as it comes."""
    from attnlab import sampling
    from attnlab.data.corpus import encode
    from attnlab.training.run import load_model

    net, alphabet = load_model(target)
    ids = encode(prompt, alphabet)
    drawn = sampling.sample(net, ids, chars, temperature=temperature, seed=seed)
    first = next(drawn, None)  # bad input is refused before anything is printed
    print(prompt, end="", flush=True)
    if first is not None:
        print(alphabet[first], end="", flush=True)
    for i in drawn:
        print(alphabet[i], end="", flush=True)
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
    from attnlab.checkup import door

    report = door.examine(
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
    from attnlab.claims import door

    places = door.places(experiments, conf, outputs, budget)
    if list_:
        door.show(places)
        return
    raise typer.Exit(door.judge(places, claims or [], seeds=seeds, jobs=jobs, publish=publish))


def main() -> None:
    """Run the command line; bad input is one sentence and exit code 2."""
    try:
        app()
    except BadInput as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        raise SystemExit(2) from None
    except BrokenPipeError:  # the reader of a pipe has gone, `| head` say
        sys.stderr.close()
        raise SystemExit(0) from None


if __name__ == "__main__":
    main()
