"""Optional packages that tests use."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest


class Package:
    """A package that is loaded at its first use: only by workers that run its tests. Without it, a module is skipped."""

    def __init__(self, name: str) -> None:
        self._name = name
        if find_spec(name) is None:
            pytest.skip(f"{name} is not installed", allow_module_level=True)

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # pytest asks all that a module holds for such names
            raise AttributeError(attribute)
        return getattr(import_module(self._name), attribute)
