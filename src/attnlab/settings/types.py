"""The settings of a run as typed objects: the keys of conf/train.yaml and what they may be."""

from typing import Annotated, Any, Literal, cast

from annotated_types import Ge, Le, Lt
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from pydantic import (
    BaseModel,
    PositiveInt,
    PrivateAttr,
    ValidationError,
    model_serializer,
    model_validator,
)
from pydantic.functional_validators import ModelWrapValidatorHandler
from typing_extensions import Self

from attnlab.errors import BadInput, first_line
from attnlab.settings.roles import Settings, flat, in_present_words

ConfigGroup = dict[str, Any]  # the arguments of one object
# 16-mixed is missing: the gradients of its scaled loss would be clipped wrongly.
Precision = Literal["auto", "32-true", "bf16-mixed", "bf16-true", "64-true"]
# Strategies that fork or spawn lose the result of the process that trains.
Strategy = Literal["auto", "ddp", "ddp_find_unused_parameters_true"]


class OrderedSettings(BaseModel, strict=True):
    """Settings that are written in the order in which they were read, without later defaults."""

    _order: list[str] = PrivateAttr(default_factory=list)

    @model_validator(mode="wrap")
    @classmethod
    def _keep_order(cls, given: Settings, validate: ModelWrapValidatorHandler[Self]) -> Self:
        part = validate(given)
        part._order = list(given)
        return part

    @model_serializer
    def _in_order(self) -> Settings:
        values = dict(self)
        added = [name for name in type(self).model_fields if name in self.model_fields_set]
        return {name: values[name] for name in dict.fromkeys([*self._order, *added])}

    def plain(self) -> Settings:
        """The settings as plain values, as they are written to files."""
        return self.model_dump()


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


class TrainerSettings(OrderedSettings, extra="allow"):
    """The arguments of Lightning's Trainer that have a narrower range here."""

    strategy: Strategy
    precision: Precision
    max_steps: PositiveInt
    val_check_interval: PositiveInt
    accumulate_grad_batches: PositiveInt
    log_every_n_steps: PositiveInt


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
