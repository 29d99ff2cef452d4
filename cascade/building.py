"""The old name of `cascade.factory`."""

from __future__ import annotations

from typing import Any

from cascade._names import moved_attribute


def __getattr__(name: str) -> Any:
    return moved_attribute(__name__, "cascade.factory", name)
