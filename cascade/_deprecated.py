"""Old names that still work: each use warns and says the new name."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any

GONE_WITH = "0.7"
"""The release without the old names."""


def warn_renamed(old: str, new: str, *, stacklevel: int = 2) -> None:
    """Warn that a name has changed; `stacklevel` is as for `warnings.warn`, counted from the caller."""
    warnings.warn(
        f"{old} is {new} now; the old name goes with {GONE_WITH}", DeprecationWarning, stacklevel=stacklevel + 1
    )


def moved_attribute(old: str, new: str, name: str) -> Any:
    """Return what the `__getattr__` of a module that has moved is asked for, with a warning.

    Args:
        old: the module's old name.
        new: its new name.
        name: the attribute.

    Raises:
        AttributeError: the new module has no such attribute.
    """
    if name.startswith("__"):
        raise AttributeError(f"module {old!r} has no attribute {name!r}")
    found = getattr(import_module(new), name)
    warn_renamed(f"{old}.{name}", f"{new}.{name}", stacklevel=3)
    return found
