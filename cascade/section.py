"""The base classes of the sections of a configuration, and the choice of a section's class by its `kind`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast, get_args

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, model_validator
from pydantic_core import CoreSchema, core_schema

from cascade.checks import unknown
from cascade.errors import UsageError
from cascade.registry import Registry


class Section(BaseModel):
    """A section of the configuration: frozen; an unknown setting is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _no_truth_as_number(cls, data: Any) -> Any:
        """Refuse true and false (in YAML also `yes` and `on`) as numbers."""
        if not isinstance(data, Mapping):
            return data
        words = {
            name: str(value).lower()
            for name, value in data.items()
            if isinstance(value, bool) and name in cls.model_fields and _is_number(cls.model_fields[name].annotation)
        }
        return {**data, **words} if words else data


def _is_number(annotation: Any) -> bool:
    """Return whether a setting is a number and cannot be true or false."""
    kinds = {annotation, *get_args(annotation)} if isinstance(annotation, type) else set(get_args(annotation))
    bare = {get_args(kind)[0] if get_args(kind) else kind for kind in kinds}
    return bool(bare & {int, float}) and bool not in bare


class KindSection(Section):
    """A section with several kinds: each kind has its own class, found by the setting `kind`.

    Attributes:
        kind: the name of the kind.
    """

    kind: str


S = TypeVar("S", bound=KindSection)


@dataclass(frozen=True, slots=True)
class ByKind(Generic[S]):
    """The annotation of a setting that is a section of some kind: `Annotated[Base, ByKind(registry, "default")]`.

    Args:
        registry: finds the class of a kind.
        default: the kind of a section without the setting.
    """

    registry: Registry[type[S]]
    default: str

    def class_at(self, value: Any) -> type[S] | None:
        """Return the class of a section, or of its settings; None if `read` would refuse them."""
        if isinstance(value, KindSection):
            kind: Any = type(value)
            return kind if self.registry.lacks(kind) is None else None
        try:
            return self.class_of(value.get("kind", self.default)) if isinstance(value, Mapping) else None
        except ValueError:
            return None

    def class_of(self, kind: Any) -> type[S]:
        """Return the class of a kind.

        Raises:
            ValueError: there is no such kind, it cannot be imported, or it is not allowed here.
        """
        try:
            section = self.registry.find(kind) if isinstance(kind, str) else None
        except UsageError as error:
            message = str(error)
            raise ValueError(f"{message[:1].lower()}{message[1:]}") from None
        if section is None:
            raise ValueError(unknown("kind", kind, self.registry.names))
        return section

    def read(self, value: Any) -> S:
        """Return the section from its settings; a section is returned unchanged."""
        if isinstance(value, KindSection) and self.registry.lacks(type(value)) is None:
            return cast("S", value)
        if not isinstance(value, Mapping):
            # A ValueError, since pydantic collects those.
            raise ValueError(f"a setting here starts with its kind, as in {{kind: {self.default}}}")  # noqa: TRY004
        kind = value.get("kind", self.default)
        return self.class_of(kind).model_validate({**value, "kind": kind})

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Read settings with `read`; pydantic reports the section's problems with all others."""
        return core_schema.no_info_plain_validator_function(self.read)
