"""Defaults of a Protocol's members that a subclass may replace by a method, a property or a field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    default = property
else:

    class default:  # noqa: N801 - a decorator, as `property` is
        """A computed attribute, as `property`, that a dataclass may replace by a field of the same name.

        A dataclass takes what it finds on its base class for the default of a field, and cannot set a field where the
        base class has a property. So this shows nothing on the class, and gives way to what is set on the object.
        """

        def __init__(self, function: Any) -> None:
            self.function, self.__doc__ = function, function.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            self.name = name

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            if instance is None:
                raise AttributeError(self.name)
            return self.function(instance)
