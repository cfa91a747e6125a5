"""Hydra's sweeper `optuna`: searches for the best values of settings, for each arm separately."""

import itertools
import math
import shlex
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution


class OptunaSweeper(Sweeper):
    """Searches `interval(...)` and `choice(...)`; each combination of the other values is an arm.

    The sampler is the tree-structured Parzen estimator (Bergstra et al. 2011). A trial that
    diverged or failed counts as infinitely bad. conf/hydra/sweeper/optuna.yaml describes the
    settings: `params` are overrides that say what to search, `n_trials` counts those in `storage`,
    too, and the trials of a `batch` do not use each other's results.
    """

    def __init__(
        self, params: DictConfig, n_trials: int, batch: int, seed: int, storage: str | None
    ) -> None:
        self.params, self.n_trials, self.batch = params, n_trials, batch
        self.seed, self.storage = seed, storage

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Make the launcher; Hydra calls this first."""
        self.launcher: Launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> None:
        """Run the trials of all arms and print the best one of each."""
        from attnlab.errors import BadInput
        from attnlab.installation import training_command

        if not all(isinstance(n, int) and n > 0 for n in (self.n_trials, self.batch)):
            raise BadInput("hydra.sweeper.n_trials and hydra.sweeper.batch must be 1 or more")
        arms, space = self._arms_and_space(arguments)
        if not space:  # typed values have replaced what `params` searches
            self.launcher.launch(arms, initial_job_idx=0)
            return
        studies, number = self._studies(arms, space), 0
        while True:
            asked = []
            for arm, study in zip(arms, studies, strict=True):
                left = self.n_trials - sum(trial.state.is_finished() for trial in study.trials)
                asked += [(arm, study, study.ask(space)) for _ in range(min(self.batch, left))]
            if not asked:
                break
            commands = [[*arm, *_drawn(trial.params)] for arm, _, trial in asked]
            results = self.launcher.launch(commands, initial_job_idx=number)
            number += len(asked)
            for (_, study, trial), result in zip(asked, results, strict=True):
                loss = float(result.return_value)
                study.tell(trial, math.inf if math.isnan(loss) else loss)
        for arm, study in zip(arms, studies, strict=True):
            if math.isinf(study.best_value):
                print(f"None of {len(study.trials)} trials ended with a loss: {shlex.join(arm)}")
                continue
            print(f"Best of {len(study.trials)} trials: val loss {study.best_value:.4f}")
            best = shlex.join([*arm, *_drawn(study.best_params)])
            print(f"  {training_command()} -m {best} seed=0,1,2")

    def _studies(
        self, arms: list[tuple[str, ...]], space: "dict[str, BaseDistribution]"
    ) -> "list[optuna.Study]":
        """A study for each arm, with its trials if it is in the storage."""
        import optuna
        from sqlalchemy.exc import SQLAlchemyError

        from attnlab.errors import BadInput

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            storage = optuna.storages.get_storage(self.storage)
        except SQLAlchemyError as error:  # its text may show a password
            raise BadInput(
                f"hydra.sweeper.storage cannot be opened ({type(error).__name__}); "
                "name a file as sqlite:///tune.db"
            ) from error
        studies = []
        for name in (" ".join([*arm, *space]) for arm in arms):
            study = optuna.create_study(storage=storage, study_name=name, load_if_exists=True)
            # With the same seed, a search that continues would repeat its first trials.
            study.sampler = optuna.samplers.TPESampler(seed=self.seed + len(study.trials))
            studies.append(study)
        return studies

    def _arms_and_space(
        self, arguments: list[str]
    ) -> "tuple[list[tuple[str, ...]], dict[str, BaseDistribution]]":
        """The combinations of the values that are not searched, and what Optuna draws."""
        overrides = [f"{key!s}={value}" for key, value in self.params.items()] + arguments
        parsed = OverridesParser.create().parse_overrides(overrides)
        typed = {override.get_key_element(): override for override in parsed}  # the last counts
        space = {key: x for key, o in typed.items() if (x := distribution(o)) is not None}
        values = [
            [f"{key}={value}" for value in o.sweep_string_iterator()]
            if o.is_sweep_override()
            else [str(o.input_line)]
            for key, o in typed.items()
            if key not in space
        ]
        return list(itertools.product(*values)), space


def distribution(override: Override) -> "BaseDistribution | None":
    """What Optuna draws for a setting, `tag(log, ...)` on a logarithmic scale; None for an arm."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    from attnlab.errors import BadInput

    sweep = override.value()
    if isinstance(sweep, ChoiceSweep) and not sweep.simple_form:
        return CategoricalDistribution(list(override.sweep_string_iterator()))
    if not isinstance(sweep, IntervalSweep):
        return None
    start, end, log = sweep.start or 0, sweep.end or 0, "log" in sweep.tags
    if start > end or (log and start <= 0):
        raise BadInput(f"{override.input_line} must go from low to high, with log from above 0")
    if isinstance(start, int) and isinstance(end, int):
        return IntDistribution(start, end, log=log)
    return FloatDistribution(start, end, log=log)


def _drawn(params: dict[str, Any]) -> list[str]:
    """Overrides of drawn values; three digits are enough, and directories are named by them."""
    return [f"{k}={x:.3g}" if isinstance(x, float) else f"{k}={x}" for k, x in params.items()]
