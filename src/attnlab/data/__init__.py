"""Texts and tasks: the contract `Data`, and what fulfills it."""

from attnlab.data.contract import Data

__all__ = ["Data"]
