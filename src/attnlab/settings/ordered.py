"""Typed settings that keep the order in which they were read."""

from pydantic import BaseModel, PrivateAttr, model_serializer, model_validator
from pydantic.functional_validators import ModelWrapValidatorHandler
from typing_extensions import Self

from attnlab.settings.roles import Settings


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
