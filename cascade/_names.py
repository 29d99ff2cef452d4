"""The version, lazy loading of public names, and old names, which warn and give the new name."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from functools import partial, wraps
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

__version__ = "0.5.0"
GONE_WITH = "0.7"
"""The release without the old names."""


def loaded_on_use(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package that loads its public names when they are first used (PEP 562).

    Args:
        package: the package's name.
        homes: the names of each module, as seen from the package, with spaces between them.
    """
    module_of = {name: module for module, names in homes.items() for name in names.split()}

    def load(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(import_module(f"{package}.{module_of[name]}"), name)
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


MOVED: Mapping[str, str] = {
    "cascade.building": "cascade.factory",
    "cascade.conformal.certificate": "cascade.guarantees.certificate",
    "cascade.conformal.guarantee": "cascade.guarantees.base",
    "cascade.episodes.matching": "cascade.matching",
    "cascade.evaluation.report": "cascade.evaluation",
    "cascade.evaluation.report.card": "cascade.evaluation.card",
    "cascade.guarantees.agreement": "cascade.guarantees.served_answer",
    "cascade.guarantees.audit": "cascade.guarantees.base",
    "cascade.guarantees.coverage": "cascade.guarantees.kept_answers",
    "cascade.guarantees.error": "cascade.guarantees.served_answer",
    "cascade.guarantees.preference": "cascade.guarantees.served_answer",
    "cascade.guarantees.regret": "cascade.guarantees.served_answer",
    "cascade.guarantees.solvable": "cascade.guarantees.kept_answers",
    "cascade.policies.history": "cascade.policies.base",
    "cascade.sections": "cascade.config.schema",
    "cascade.training.notes": "cascade.training.dividing",
}
"""Modules that were public and have another name now, by the old one."""
_MOVED_NAMES: Mapping[str, str] = {
    "cascade.sections.BaseGuideConfig": "cascade.strategies.base_guide",
    "cascade.sections.LadderConfig": "cascade.strategies.ladder",
    "cascade.sections.ExitConfig": "cascade.strategies.exit",
    "cascade.sections.FixedConfig": "cascade.policies.fixed",
    "cascade.sections.RandomConfig": "cascade.policies.fixed",
    "cascade.sections.ThresholdConfig": "cascade.policies.threshold",
    "cascade.sections.PromptedConfig": "cascade.policies.prompted",
    "cascade.sections.DirectoryConfig": "cascade.policies.config",
}
"""Names that moved to another module than the rest of their old module."""


class OldModules:
    """Finds a module under its old name (`MOVED`). It is the last finder, so other imports are not slower."""

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        """Return the module's spec; None if the name is not an old one."""
        held = any(one.startswith(f"{name}.") for one in MOVED)
        return ModuleSpec(name, self, is_package=held) if name in MOVED else None  # type: ignore[arg-type]

    def create_module(self, _spec: ModuleSpec) -> None:
        """Leave it to the import system."""

    def exec_module(self, module: ModuleType) -> None:
        """Make the module forward attribute access to the new one."""
        vars(module)["__getattr__"] = partial(moved_attribute, module.__name__)


def moved_attribute(old: str, name: str) -> Any:
    """Return an attribute of a module with an old name, with a warning.

    Raises:
        AttributeError: the module under its new name has no such attribute.
    """
    if name.startswith("__"):
        raise AttributeError(f"module {old!r} has no attribute {name!r}")
    new = _MOVED_NAMES.get(f"{old}.{name}", MOVED[old])
    found = getattr(import_module(new), name)
    warn_renamed(f"{old}.{name}", f"{new}.{name}", stacklevel=2)
    return found


sys.meta_path.append(OldModules())
