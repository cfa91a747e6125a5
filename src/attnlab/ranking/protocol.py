"""The protocol of the ranking, experiments/ranking/ranking.yaml, and the runs that it asks for."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from attnlab.errors import BadInput

NAME = "ranking"  # of the directory in experiments/
FILE = "ranking.yaml"
LONG = 4  # variants are compared after n steps and after LONG times n


@dataclass(frozen=True)
class Task:
    """What variants are compared on, with its own grid of learning rates."""

    name: str
    says: str
    overrides: tuple[str, ...]
    steps: int  # n
    rates: tuple[float, ...]
    selection_seeds: tuple[int, ...]
    seconds: float | None = None  # of n steps, on one core; None: not measured
    floor: float | None = None  # the accuracy without attention; None for a text
    length: int | None = None  # at which the accuracy after 4 n steps is measured, if not T
    quick: bool = False
    only: tuple[str, ...] = ()  # arms; empty: all
    convolution: bool = False  # also for a user's own arm with a convolution

    def title(self, steps: int) -> str:
        """The name in a table. After n steps, a task is tested at T, whatever its `length`."""
        return self.name.removesuffix(f" at {self.length}") if steps == self.steps else self.name


@dataclass(frozen=True)
class Contestant:
    """A variant of attention, or a control."""

    name: str
    says: str
    overrides: tuple[str, ...]
    partner: str  # the arm with which it is compared: the same but for its attention
    claims: str = ""  # by the paper
    seeds_from: int = 0  # added to every seed
    rate_of_sdpa: float = 0.0  # a factor on the rate of the partner, instead of a rate of its own
    control: str = ""  # the verdict that it must have in every cell
    pairs: Mapping[str, str] = field(default_factory=dict)  # task -> another arm, compared there
    code: str = ""  # the digest of a user's own code
    own: bool = False  # given on the command line
    convolution: bool = False  # in the layer of one's own


@dataclass(frozen=True)
class Trial:
    """One run of the ranking. Equal runs of two contestants are one run."""

    overrides: tuple[str, ...]
    seed: int
    code: str = ""


@dataclass(frozen=True)
class Protocol:
    """Tasks, contestants and seeds."""

    test: tuple[int, ...]
    baseline: str
    models: str  # in words
    common: tuple[str, ...]
    tasks: tuple[Task, ...]
    arms: Mapping[str, Contestant] = field(default_factory=dict)

    def cells(self, quick: bool) -> list[tuple[Contestant, Task]]:
        """All pairs of a contestant and a task, in the order in which they are run."""
        return [
            (arm, task)
            for arm in self.arms.values()
            for task in self.tasks
            if (task.quick or not quick)
            and (
                not task.only
                or arm.name in task.only
                or (arm.convolution and task.convolution and arm.partner in task.only)
            )
        ]

    def trial(self, arm: Contestant, task: Task, rate: float, steps: int, seed: int) -> Trial:
        """The run of `steps` steps at a constant rate, validated every n steps."""
        end = [] if task.floor is None else ["callbacks=solved"]
        # A task may be without positions, so that it is one for arms with and without them.
        further = [word for word in arm.overrides if word not in task.overrides]
        overrides = (
            *(*task.overrides, *self.common, *end, *further),
            *(f"optim.lr={rate:g}", f"optim.min_lr={rate:g}"),
            *(f"trainer.max_steps={steps}", f"trainer.val_check_interval={task.steps}"),
        )
        return Trial(overrides, arm.seeds_from + seed, arm.code)


def read_protocol(directory: Path, size: str | None = None) -> Protocol:
    """Read the protocol of experiments/ranking, of the published size or of another one; BadInput
    if the file is missing or not valid, or has no such size."""
    file = directory / FILE
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
        sizes: dict[str | None, Any] = {None: {}} | content.get("sizes", {})
        known = {
            name: parse(content | changed, content["tasks"]) for name, changed in sizes.items()
        }
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise BadInput(f"{file} is not a protocol of attnlab rank: {error}") from error
    if size not in known:
        others = " or ".join(name for name in known if name is not None)
        raise BadInput(f"--size {size} is unknown; it must be {others or 'left out'}")
    return known[size]


def parse(content: Mapping[str, Any], names: Iterable[str] = ()) -> Protocol:
    """The protocol from the content of its file. `names` are those of all tasks, if another size
    of the models has only some."""
    baseline, names = content["baseline"], set(names) or set(content["tasks"])
    selection = {"selection_seeds": content["selection_seeds"]}
    tasks = [
        Task(name=name, **_entry(selection | entry)) for name, entry in content["tasks"].items()
    ]
    arms = {
        name: Contestant(
            name=name, **{"overrides": (f"attn={name}",), "partner": baseline} | _entry(entry)
        )
        for name, entry in content["arms"].items()
    }
    for arm in arms.values():
        if arm.partner not in arms:
            raise ValueError(f"{arm.name}: there is no partner {arm.partner}")
        if unknown := ({*arm.pairs} - {*names}) | ({*arm.pairs.values()} - {*arms}):
            raise ValueError(f"{arm.name}: pairs name no task or arm: {', '.join(unknown)}")
    return Protocol(
        test=tuple(content["test_seeds"]),
        baseline=baseline,
        models=content["models"],
        common=tuple(content["common"]),
        tasks=tuple(tasks),
        arms=arms,
    )


def _entry(content: Mapping[str, Any]) -> dict[str, Any]:
    found = {key: tuple(x) if isinstance(x, list) else x for key, x in content.items()}
    if "rates" in found:  # YAML 1.1 reads 1e-3, without a point, as a text
        found["rates"] = tuple(map(float, found["rates"]))
    return found
