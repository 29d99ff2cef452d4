"""Find what a configuration names: a built-in, a plug-in of an installed package, or the user's own class.

There is a `Registry` for each sort of plug-in: strategies, policies, providers, matchers, promises, agents. It maps
names to objects and imports an object when it is first used.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Generic, TypeVar

from cascade.checks import did_you_mean
from cascade.errors import CascadeError, UsageError, quote

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Registry(Generic[T]):
    """The plug-ins of one sort, by name.

    A package cannot replace a built-in name. If `by_place` is true, a name may also be an import path
    "module:attribute".

    Args:
        sort: the noun for such a plug-in in messages: "strategy".
        group: the group of entry points in which packages register theirs: "cascade.strategies".
        built_in: the import path "module:attribute" of each built-in plug-in, by name.
        lacks: returns, in words, why an object cannot be such a plug-in; None if it can.
        by_place: whether a name may be an import path.
    """

    sort: str
    group: str
    built_in: Mapping[str, str]
    lacks: Callable[[Any], str | None]
    by_place: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Every known name, the built-in ones first. Nothing is imported."""
        return tuple(dict.fromkeys([*self.built_in, *(point.name for point in entry_points(group=self.group))]))

    def find(self, name: str) -> T | None:
        """Return the object of a name; None if there is none.

        Raises:
            UsageError: it exists and cannot be used: its import fails, two packages register this name, or it is not a
                plug-in of this sort. The message says what to do.
        """
        path = self._path(name)
        if path is None:
            return None
        called = f"The {self.sort} {name!r}" + (f" ({path})" if path != name else "")
        try:
            plugin = imported(path)
        except ValueError as error:
            raise UsageError(f"{called} {error}. {_ADVICE}") from error
        lacking = self.lacks(plugin)
        if lacking is not None:
            raise UsageError(f"{called} cannot be used: {lacking}.")
        checked: T = plugin
        return checked

    def file(self, name: str) -> Path | None:
        """Return the file that defines the object of a name, as `file_of` does; None if there is none."""
        path = self._path(name)
        return None if path is None else file_of(path)

    def _path(self, name: str) -> str | None:
        if name in self.built_in:
            return self.built_in[name]
        if self.by_place and ":" in name:
            return name
        points = [point for point in entry_points(group=self.group) if point.name == name]
        paths = sorted({f"{point.module}:{point.attr}" for point in points})
        if len(paths) > 1:
            raise UsageError(
                f"{len(paths)} packages provide a {self.sort} {name!r} ({', '.join(paths)}); uninstall all but one."
            )
        return paths[0] if paths else None


_ADVICE = "Repair or uninstall the package that provides it."


def subclass_of(base: type) -> Callable[[Any], str | None]:
    """Return a `Registry.lacks` for plug-ins that are classes: complete subclasses of `base`.

    >>> subclass_of(int)(bool), subclass_of(int)(str)
    (None, 'it is not a subclass of builtins.int')
    """

    def lacks(plugin: Any) -> str | None:
        if not isinstance(plugin, type) or not issubclass(plugin, base):
            return f"it is not a subclass of {base.__module__}.{base.__qualname__}"
        missing = sorted(getattr(plugin, "__abstractmethods__", ()))
        return f"it does not define {', '.join(missing)}" if missing else None

    return lacks


def callable_alone(plugin: Any) -> str | None:
    """Return why an object cannot be a factory, as for `Registry.lacks`."""
    return None if callable(plugin) else "it cannot be called"


def imported(path: str) -> Any:
    """Return the object at "module:attribute". The module is imported, which runs it.

    Raises:
        ValueError: the path has another form, or there is no such object. The message continues after the name.

    >>> imported("math:sqrt")(9.0)
    3.0
    """
    module, _, attribute = path.partition(":")
    if not module or not attribute:
        raise ValueError('must be "module:attribute", such as my_module:MyClass')
    try:
        if module not in sys.modules:
            from cascade.forks import no_fork  # a loaded module needs no lock

            with no_fork():
                import_module(module)
        return reduce(getattr, attribute.split("."), import_module(module))
    except ModuleNotFoundError as error:
        raise ValueError(f"cannot be found: there is no module {error.name} in the folders of PYTHONPATH") from None
    except AttributeError as error:
        loaded = sys.modules.get(module)
        names = [name for name in dir(loaded) if not name.startswith("_")]
        if loaded is None or attribute in names:  # raised by the module's own code
            raise ValueError(f"cannot be imported: AttributeError: {quote(error)}") from error
        raise ValueError(f"cannot be found in {module}{did_you_mean(attribute, names)}") from None
    except CascadeError:
        raise
    except Exception as error:  # whatever a foreign module raises while it is imported
        raise ValueError(f"cannot be imported: {type(error).__name__}: {quote(error)}") from error


@contextmanager
def code_of(plugin: Any) -> Iterator[None]:
    """Turn what an object of a class outside cascade raises into a UsageError with the class and the line."""
    try:
        yield
    except CascadeError:
        raise
    except Exception as error:
        if not of_ones_own(plugin):
            raise
        raise UsageError(f"{raised_by(plugin, error)}: {quote(error)}.") from None


def of_ones_own(plugin: Any) -> bool:
    """Return whether the class of an object is not cascade's."""
    return not type(plugin).__module__.startswith("cascade.")


def raised_by(plugin: Any, error: Exception) -> str:
    """Return the class of an object and of what it raised, with the line, if possible one in the object's file."""
    kind, frames = type(plugin), traceback.extract_tb(error.__traceback__)
    file = getattr(sys.modules.get(kind.__module__), "__file__", "") if of_ones_own(plugin) else ""
    last, name = [*frames, *(frame for frame in frames if frame.filename == file)][-1], type(error).__name__
    return f"{kind.__module__}:{kind.__qualname__} raises {name} ({Path(last.filename).name}, line {last.lineno})"


def file_of(path: str) -> Path | None:
    """Return the file of the module at "module:attribute"; None if there is no such module or it has no file.

    The module is not imported; the packages around it are.

    >>> file_of("json.decoder:JSONDecoder").name
    'decoder.py'
    """
    try:
        spec = find_spec(path.partition(":")[0])
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec is not None and spec.has_location and spec.origin is not None else None
