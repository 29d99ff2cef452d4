"""Names of packages that are loaded when they are first used, and old names, which warn and say the new one."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from functools import wraps
from importlib import import_module
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

GONE_WITH = "0.7"
"""The release without the old names."""


def loaded_on_use(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package that loads its public names when they are first used (PEP 562).

    Args:
        package: the package's name.
        homes: the module of each name, as seen from the package.
    """

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, found)
        return found

    return load


def warn_renamed(old: str, new: str, *, stacklevel: int = 2) -> None:
    """Warn that a name has changed; `stacklevel` is as for `warnings.warn`, counted from the caller."""
    warnings.warn(
        f"{old} is {new} now; the old name goes with {GONE_WITH}", DeprecationWarning, stacklevel=stacklevel + 1
    )


def renamed(old: str, method: Callable[P, T]) -> Callable[P, T]:
    """Return a method under its old name."""

    @wraps(method)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        warn_renamed(old, method.__name__)
        return method(*args, **kwargs)

    called.__doc__ = f"Do as `{method.__name__}`, whose old name this is."
    return called


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
