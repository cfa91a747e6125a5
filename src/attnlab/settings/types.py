"""The settings of a run as typed objects: the keys of conf/train.yaml and what they may be."""

from typing import Annotated, Any, cast

from annotated_types import Ge, Le, Lt
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from pydantic import PositiveInt, ValidationError

from attnlab.errors import BadInput, first_line
from attnlab.settings.ordered import OrderedSettings
from attnlab.settings.roles import Settings, flat, in_present_words
from attnlab.settings.trainer_arguments import TrainerSettings

ConfigGroup = dict[str, Any]  # the arguments of one object


class ModelSettings(OrderedSettings, extra="allow"):
    """The sizes of a model, and the settings of its initial weights."""

    n_layer: PositiveInt
    n_head: PositiveInt
    n_embd: PositiveInt
    block_size: PositiveInt
    dropout: Annotated[float, Ge(0), Lt(1)]
    init: str
    qk_std: Annotated[float, Ge(0)] | None
    source: str | None = None  # SHA-256 of the user's own code in it


class DataSettings(OrderedSettings, extra="allow"):
    """The keys of the group `data` that belong to no function."""

    batch_size: PositiveInt
    eval_lengths: list[PositiveInt] | None
    source: str | None = None  # SHA-256 of the data


class RunSettings(OrderedSettings, extra="forbid"):
    """All settings of a run: the keys of conf/train.yaml, and what they were resolved to."""

    name: str | int | float
    outputs: str
    seed: Annotated[int, Ge(0), Le(2**63 - 1)]  # what NumPy, pandas and PyTorch can hold
    force: bool
    compile: bool
    check_layer: bool
    train_loss: bool
    checkpoint_every: PositiveInt
    init_from: str | None
    attn: ConfigGroup
    model: ModelSettings
    data: DataSettings
    optim: ConfigGroup
    trainer: TrainerSettings
    probes: dict[str, ConfigGroup]
    callbacks: dict[str, ConfigGroup]
    logger: dict[str, ConfigGroup]
    variant: str | None = None  # the choice of the group `attn`
    init_source: str | None = None  # SHA-256 of the weights of `init_from`


def read_settings(cfg: DictConfig) -> RunSettings:
    """The composed configuration as typed settings; BadInput with the first error found."""
    settings: Settings = {}
    try:
        content = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
        settings = in_present_words(cast(Settings, content))  # a DictConfig is a dict
        return RunSettings(**settings)
    except MissingMandatoryValue as error:
        raise BadInput(f"{error.full_key} must be given") from error
    except OmegaConfBaseException as error:
        raise BadInput(first_line(error)) from error
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":  # lr for optim.lr
            like = [name for name in flat(settings) if name.endswith(f".{key}")]
            hint = f"; did you mean {' or '.join(like)}?" if like else ""
            raise BadInput(f"{key} is not a setting{hint}") from error
        raise BadInput(f"{key} = {first['input']}: {first['msg'].lower()}") from error
