"""Settings reach the class that they name, and files in the order in which they were read."""

import json
from pathlib import Path
from typing import Any

import pydantic
import pytest
from torch import nn

import attnlab.model
import tests.conftest
from attnlab.attention import AttentionConfig
from attnlab.errors import BadInput
from attnlab.settings.bind import attention_factory, bind
from attnlab.settings.own_code import is_users_file
from attnlab.settings.types import ModelSettings

GIVEN: dict[str, Any] = {
    "n_head": 2, "n_layer": 1, "block_size": 8, "n_embd": 4, "init": "unit", "mine": 1,
    "qk_std": None, "dropout": 0.0,
}  # fmt: skip


@pytest.mark.parametrize("order", [[*GIVEN], [*reversed(GIVEN)], sorted(GIVEN)])
def test_settings_are_written_in_the_order_in_which_they_were_read(order: list[str]) -> None:
    settings = ModelSettings(**{key: GIVEN[key] for key in order})
    assert list(settings.plain()) == order
    assert list(settings.model_copy(update={"source": "0"}).plain()) == [*order, "source"]


def takes_any(config: object, **settings: object) -> nn.Module:
    """A layer of the user's."""
    return nn.Identity()


def test_what_the_caller_supplies_is_no_setting() -> None:
    node = {"_target_": takes_any, "free": 1}
    assert bind(node, "attn", supplied=["config"]).keywords == {"free": 1}
    with pytest.raises(BadInput, match=r"attn\.config"):
        bind(node | {"config": 1}, "attn", supplied=["config"])


@pytest.mark.parametrize("windows", [[1], [1, None], [3, 2, None]])
def test_layers_have_the_variants_in_turn_from_the_first_on(windows: list[int | None]) -> None:
    nodes = {str(n): {"_target_": "SelfAttention", "window": w} for n, w in enumerate(windows)}
    make = attention_factory({"layers": nodes, "source": None})
    layers: list[Any] = [make(AttentionConfig(8, 2, 4, layer=n)) for n in range(6)]
    assert [layer.window for layer in layers] == (6 * windows)[:6]


@pytest.mark.parametrize(
    ("module", "own"),
    [(json, False), (attnlab.model, False), (pydantic, False), (tests.conftest, True)],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_a_file_is_the_users_if_it_is_neither_installed_nor_of_attnlab(
    module: Any, own: bool
) -> None:
    assert is_users_file(Path(module.__file__)) == own
