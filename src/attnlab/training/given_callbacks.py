"""Callbacks that Python gives to a run as objects, as settings of the run."""

import inspect
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import lightning.pytorch as L

from attnlab.errors import BadInput
from attnlab.settings.own_code import is_users_class
from attnlab.settings.roles import Settings, value_as_typed
from attnlab.settings.source import source_of_class
from attnlab.settings.trainer_arguments import check_class
from attnlab.training.config import RunConfig

PLAIN = (bool, int, float, str, type(None))


def with_callbacks(
    config: RunConfig, callbacks: Sequence[L.Callback]
) -> tuple[RunConfig, list[str]]:
    """The configuration with callbacks that were given as objects, and the overrides that name
    them. BadInput for what is no callback, and for two of one class."""
    named = dict(config.settings.callbacks)
    overrides = []
    for callback in callbacks:
        if not isinstance(callback, L.Callback):
            raise BadInput(f"callbacks = {callback!r} is no Lightning callback")
        check_class(type(callback))
        name = type(callback).__name__
        if name in named:
            raise BadInput(f"callbacks: there are two of {name}; give one of each class")
        node = callback_settings(callback)
        named[name] = node
        for key, value in node.items():
            overrides.append(f"+callbacks.{name}.{key}={value_as_typed(value)}")
    given = [partial(the_same, callback) for callback in callbacks]
    settings = config.settings.model_copy(update={"callbacks": named})
    return replace(config, settings=settings, callbacks=[*config.callbacks, *given]), overrides


def the_same(callback: L.Callback) -> L.Callback:
    """The callback itself: `partial(the_same, callback)` is the factory that a run wants."""
    return callback


def is_repeatable(config: RunConfig) -> bool:
    """Whether a run with these settings is known to be the same one again: not if a callback has
    an argument that `callback_settings` could not read."""
    return all(node.get("repeatable", True) for node in config.settings.callbacks.values())


def callback_settings(callback: L.Callback) -> Settings:
    """What tells a callback from others, as settings: its class, the arguments that are not the
    defaults, the start of a digest of its code if the class is the user's, and repeatable=False if
    an argument could not be read from its attributes."""
    cls = type(callback)
    found: Settings = {"_target_": f"{cls.__module__}.{cls.__qualname__}"}
    readable = True
    attributes = vars(callback)
    for name, parameter in inspect.signature(cls).parameters.items():
        # Most classes keep an argument under its name, or with an underscore before it. `empty`,
        # which is not plain, if this one does not.
        value = attributes.get(name, attributes.get(f"_{name}", parameter.empty))
        takes_any = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if takes_any or not is_plain(value):
            readable = False
        elif value != parameter.default:
            found[name] = value
    if is_users_class(cls):
        found["source"] = source_of_class(cls)[:12]
    if not readable:
        found["repeatable"] = False
    return found


def is_plain(value: object) -> bool:
    """Whether YAML has a value as it is: a text, a number, a truth value, None, or a list of
    these."""
    if isinstance(value, list | tuple):
        return all(isinstance(x, PLAIN) for x in value)
    return isinstance(value, PLAIN)
