"""What every section of the configuration is, and how a section is chosen by its `kind`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from cascade.checks import did_you_mean, shown_name
from cascade.errors import UsageError
from cascade.registry import Registry


class Section(BaseModel):
    """A part of the configuration: frozen, and a setting that it does not know is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _no_truth_as_number(cls, data: Any) -> Any:
        """Read true and false (in YAML `yes` and `on` too) as words where a number is wanted: they are none."""
        if not isinstance(data, Mapping):
            return data
        words = {
            name: str(value).lower()
            for name, value in data.items()
            if isinstance(value, bool) and name in cls.model_fields and _is_number(cls.model_fields[name].annotation)
        }
        return {**data, **words} if words else data


def _is_number(annotation: Any) -> bool:
    """Whether a setting is a number, and cannot be true or false."""
    kinds = {annotation, *get_args(annotation)} if isinstance(annotation, type) else set(get_args(annotation))
    bare = {get_args(kind)[0] if get_args(kind) else kind for kind in kinds}
    return bool(bare & {int, float}) and bool not in bare


class KindSection(Section):
    """A section of one kind among several: its class is found by `kind`, and holds what is known of that kind.

    Attributes:
        kind: the name that it is found by.
        not_by_hand: why this kind cannot be written into a configuration; None if it can.
    """

    kind: str
    not_by_hand: ClassVar[str | None] = None


S = TypeVar("S", bound=KindSection)


@dataclass(frozen=True, slots=True)
class ByKind(Generic[S]):
    """The annotation of a setting that is a section of some kind: `Annotated[Base, ByKind(registry, "default")]`.

    Args:
        registry: finds the class of a kind.
        default: the kind of a section that names none.
        held: whether the section stands in a policy directory. There kinds stand too that nobody writes by hand, and
            no kind is a place ("module:Class"): to read a directory must not import what the directory names.
    """

    registry: Registry[type[S]]
    default: str
    held: bool = False

    @property
    def offered(self) -> tuple[str, ...]:
        """The kinds that a person may write."""
        return tuple([name for name in self.registry.names if self._by_hand(name)])

    def _by_hand(self, name: str) -> bool:
        """Whether a kind is written by hand. What packages bring is, and is not imported to find out."""
        found = self.registry.find(name) if name in self.registry.built_in else None
        return found is None or found.not_by_hand is None

    def class_at(self, value: Any) -> type[S] | None:
        """Return the class of a section, or of the settings of one; None where `read` would refuse them."""
        if isinstance(value, KindSection):
            found: Any = type(value)
            return found if self.registry.lacks(found) is None else None
        try:
            return self.class_of(value.get("kind", self.default)) if isinstance(value, Mapping) else None
        except ValueError:
            return None

    def class_of(self, kind: Any) -> type[S]:
        """Return the class of a kind.

        Raises:
            ValueError: there is no such kind, it cannot be imported, or it may not stand here.
        """
        if self.held and ":" in str(kind):
            raise ValueError(
                f"a policy directory names installed kinds alone, and {shown_name(kind)} is a place: give the class an "
                f"entry point in the group {self.registry.group}"
            )
        try:
            found = self.registry.find(kind) if isinstance(kind, str) else None
        except UsageError as error:
            said = str(error)
            raise ValueError(f"{said[:1].lower()}{said[1:]}") from None
        if found is None:
            raise ValueError(f"there is no kind {shown_name(kind)}{did_you_mean(str(kind), self.offered)}")
        if found.not_by_hand is not None and not self.held:
            raise ValueError(found.not_by_hand)
        return found

    def read(self, value: Any) -> S:
        """Return the section that settings describe; a section is returned as it is."""
        if self.registry.lacks(type(value)) is None:
            ready: S = value
            return ready
        if not isinstance(value, Mapping):
            # A ValueError, since pydantic collects those.
            raise ValueError(f"a setting here starts with its kind, as in {{kind: {self.default}}}")  # noqa: TRY004
        kind = value.get("kind", self.default)
        return self.class_of(kind).model_validate({**value, "kind": kind})

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Read settings with `read`: pydantic puts the problems of the section it finds among all others."""
        return core_schema.no_info_plain_validator_function(self.read)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the schema of a choice among the kinds that a person may write."""
        found = [self.class_of(name) for name in self.offered]
        return {"oneOf": [handler(one.__pydantic_core_schema__) for one in found]}
