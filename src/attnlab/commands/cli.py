"""The command `attnlab`; each verb imports and calls a function of the library."""

import runpy
import sys
import warnings
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from attnlab.commands import cli_rank, cli_runs
from attnlab.commands.cli_runs import AsJson, Trust
from attnlab.errors import DISK, BadInput, disk_message, missing_package, printable
from attnlab.imports import fast_imports
from attnlab.installation import lab_path

if TYPE_CHECKING:
    from rich.table import Table

RUN = "A run directory or a checkpoint"
MAPS = f"{RUN}, or hf:NAME for a BERT or GPT-2 (a local directory or a name on the hub)."
EXAMINED = (
    f"{RUN}, package.module:factory, path/to/file.py:factory, hf:<model type>, or a local "
    "directory of transformers."
)
app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Train models, and work with trained models and runs.",
)


@app.callback(invoke_without_command=True)
def _options(
    version: Annotated[bool, Option("--version", help="Print it and exit.")] = False,
) -> None:
    """The options of the command itself."""
    if version:
        print(f"attnlab {metadata.version('attnlab')}")
        raise typer.Exit


@app.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def train(arguments: typer.Context) -> None:
    """Train a model, or a sweep with -m: the same as `python train.py`. Try train --help."""
    script = str(lab_path("train.py"))
    sys.argv = [script, *arguments.args]
    runpy.run_path(script, run_name="__main__")


@app.command()
def sample(
    target: Annotated[str, Argument(help=f"{RUN}, or hf:NAME for a GPT-2.")],
    prompt: Annotated[str, Option(help="Text to continue.", show_default="a line break")] = "\n",
    chars: Annotated[int, Option(help="Number of characters.")] = 500,
    temperature: Annotated[float, Option(help="0 takes the most likely character.")] = 0.8,
    seed: Annotated[int, Option(help="The same seed gives the same text.")] = 0,
    cache: Annotated[bool, Option(help="Cache keys and values: same text, faster.")] = True,
    trust: Trust = False,
) -> None:
    """Generate text with a trained model."""
    with fast_imports():
        from attnlab.commands import text_generation

        generator = text_generation.open_generator(target, trust=trust)
    pieces = generator.generate(prompt, chars, temperature=temperature, seed=seed, cache=cache)
    first = next(pieces, "")  # bad input is refused before anything is printed
    print(prompt, end="")
    for piece in chain([first], pieces):
        # The alphabet comes from the file, so its control characters must not reach a terminal.
        shown = (c if c in "\n\t" else printable(c) for c in piece)
        print("".join(shown) if sys.stdout.isatty() else piece, end="", flush=True)
    print()


@app.command()
def checkup(
    target: Annotated[str, Argument(help=EXAMINED)],
    vocab_size: Annotated[int | None, Option(help="If the model does not declare it.")] = None,
    block_size: Annotated[int | None, Option(help="The longest sequence to try.")] = None,
    prove: Annotated[bool, Option("--prove", help="Train a copy to prove a leak.")] = False,
    layer: Annotated[bool, Option("--layer", help="TARGET is a layer, not a model.")] = False,
    seconds: Annotated[float | None, Option(help="A budget; more seconds cover more.")] = None,
    fail_on: Annotated[str, Option(help="What exits with 1: fault or suspicious.")] = "fault",
    json: Annotated[Path | None, Option(help="Write the report as JSON.")] = None,
    html: Annotated[Path | None, Option(help="Write the report with its maps.")] = None,
    trust: Trust = False,
) -> None:
    """Find what is wrong with the attention of any model.

    Exit code 0: healthy, 1: a fault, 2: bad input, 3: the model failed in the examination.
    """
    from rich.console import Console
    from rich.markup import escape

    doing = f"examining {escape(printable(target))}"
    with Console(stderr=True).status(doing, spinner="line"):  # on a terminal
        with fast_imports():
            from attnlab.commands.checkup_target import examine_target

        report = examine_target(
            target,
            vocab_size=vocab_size,
            block_size=block_size,
            prove=prove,
            seconds=seconds,
            fail_on=fail_on,
            json=json,
            html=html,
            trust=trust,
            layer=layer,
        )
    report.print()
    suspected = fail_on == "suspicious" and bool(report.diagnoses)
    raise typer.Exit(report.exit_code or int(suspected))


@app.command()
def look(
    target: Annotated[str, Argument(help=MAPS)],
    text: Annotated[str, Option(help="The text to attend to.")] = "To be, or not to be",
    layer: Annotated[int | None, Option(help="Only this layer, from 0.")] = None,
    head: Annotated[int | None, Option(help="Only this head, from 0.")] = None,
    out: Annotated[Path | None, Option(help="By default look.png beside the model.")] = None,
    trust: Trust = False,
) -> None:
    """Draw the attention map of every head on a text, and describe it in words."""
    from attnlab.files import write_atomically
    from attnlab.pages import attention_maps as library
    from attnlab.plotting.drawing import png

    seen = library.look(target, text, layer=layer, head=head, trust=trust)
    file = out or _beside(target, "look.png")
    write_atomically(file, png(seen.page))
    for n, h, where in seen.words:
        print(f"L{n}H{h}".ljust(6), where)
    print(printable(str(file)))


@app.command()
def explore(
    targets: Annotated[list[str], Argument(help=MAPS)],
    live: Annotated[bool, Option("--live", help="A page in which the models compute.")] = False,
    text: Annotated[str | None, Option(help="Show the trained models on this text.")] = None,
    out: Annotated[Path | None, Option("--out", "-o", help="By default beside the model.")] = None,
    trust: Trust = False,
) -> None:
    """Write one HTML page that shows the attention of one or two models; with --live, of more."""
    with fast_imports():
        from attnlab.pages import explorer
        from attnlab.pages import live as live_page

    page = (live_page.live if live else explorer.explore)(*targets, text=text, trust=trust)
    second = Path(targets[1].removeprefix("hf:")).absolute().parts[-2:] if targets[1:] else ()
    name = "live" if live else "-".join(["explore", *second])
    file = out or _beside(targets[0], f"{name}.html")
    page.save(file)
    print(printable(str(file)))


@app.command()
def evaluate(
    target: Annotated[str, Argument(help=f"{RUN}.")],
    data: Annotated[
        list[str] | None,
        Argument(help="data=text data.path=my.txt, by default the run's own; length=256."),
    ] = None,
    json: AsJson = False,
    trust: Trust = False,
) -> None:
    """Measure a trained model on the validation part of its own or other data, at any length."""
    with fast_imports():
        from attnlab.commands import evaluation

    found = evaluation.evaluate(target, data or [], trust=trust)
    _print_result(evaluation.evaluation_table(found), found, json)


@app.command()
def patch(
    target: Annotated[str, Argument(help=f"{RUN}.")],
    clean: Annotated[str, Option(help="A text after which the first answer is right.")],
    corrupt: Annotated[str, Option(help="An equally long text with the other answer.")],
    answers: Annotated[str | None, Option(help="Two answers; by default the likeliest.")] = None,
    json: AsJson = False,
    trust: Trust = False,
) -> None:
    """Find the heads that carry the difference between two texts, by exchanging their outputs."""
    with fast_imports():
        from attnlab.commands import evaluation

    found = evaluation.patch(target, clean, corrupt, answers, trust=trust)
    _print_result(evaluation.patch_table(found), found, json)


def _print_result(table: "Table", plain: dict[str, Any], json: bool) -> None:
    from rich.console import Console

    from attnlab.runs.plain_rows import as_json

    if json:
        print(as_json(plain))
    else:
        Console(highlight=False, markup=False).print(table)


@app.command()
def export(
    target: Annotated[Path, Argument(help=f"{RUN}.")],
    out: Annotated[Path, Option(help="A new directory, for transformers to load.")],
    trust: Trust = False,
) -> None:
    """Export a model as a GPT-2 of transformers, with its tokenizer."""
    from attnlab import interop
    from attnlab.training.checkpoints import load_model

    net, alphabet = load_model(target, trust=trust)
    interop.export(net, alphabet, out)
    print(printable(str(out)))


@app.command()
def equalize(
    first: Annotated[str, Argument(help='Overrides of one arm, such as "attn=gqa".')],
    second: Annotated[str, Argument(help='Overrides of the other, such as "attn=sdpa".')],
    overrides: Annotated[list[str] | None, Argument(help="Overrides of both.")] = None,
) -> None:
    """Find the width of the MLP at which two arms have equal numbers of parameters."""
    from attnlab.commands import equal_parameters

    for arm, count in equal_parameters.equalize((first, second), overrides or []):
        print(printable(f"{count:>12,}  {arm}"))


def _beside(target: str, name: str) -> Path:
    """A file in the directory of a model, or in the current one for a name on the hub."""
    place = Path(target.removeprefix("hf:"))
    return (place if place.is_dir() else place.parent if place.exists() else Path()) / name


for verb in (
    *(cli_runs.runs, cli_runs.plot, cli_runs.compare, cli_runs.reproduce),
    cli_rank.rank,
):
    app.command()(verb)


def main() -> None:
    """Run the command line; bad input is one sentence and exit code 2."""
    warnings.formatwarning = lambda message, *_, **__: f"warning: {printable(str(message))}\n"
    try:
        app()
    except BrokenPipeError:  # the pipe was closed, as by `| head`
        sys.stderr.close()
        raise SystemExit(0) from None
    except (BadInput, ModuleNotFoundError, OSError) as error:
        sentence = str(error)
        if isinstance(error, OSError):
            if error.filename is None and error.errno not in DISK:
                raise  # of a network, for example
            sentence = disk_message(error)
        elif isinstance(error, ModuleNotFoundError) and not (sentence := missing_package(error)):
            raise
        print(f"error: {printable(' '.join(sentence.split()))}", file=sys.stderr)
        raise SystemExit(2) from None
