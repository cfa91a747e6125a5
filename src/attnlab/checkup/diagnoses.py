"""The causes that a checkup can name: how to fix each, and which other causes it explains."""

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml


@dataclass(frozen=True)
class Cause:
    """One cause, an entry of causes.yaml."""

    title: str  # a few words, for tables
    advice: str  # how to fix it
    explains: frozenset[str] = frozenset()  # causes whose findings are then only symptoms
    rank: int = 1  # smaller is more specific; symptoms go to the most specific cause


@cache
def read_causes() -> dict[str, Any]:
    """The content of causes.yaml."""
    text = files("attnlab.checkup").joinpath("causes.yaml").read_text(encoding="utf-8")
    read: dict[str, Any] = yaml.safe_load(text)
    return read


@cache
def causes() -> dict[str, Cause]:
    """All causes by name."""
    read = read_causes()
    groups: dict[str, list[str]] = read["groups"]

    def members(names: list[str]) -> frozenset[str]:
        """Names of causes, with those of all groups among them."""
        parts = [members(groups[name]) if name in groups else {name} for name in names]
        return frozenset().union(*parts)

    return {
        name: Cause(**entry | {"explains": members(entry.get("explains", []))})
        for name, entry in read["causes"].items()
    }
