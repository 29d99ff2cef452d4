"""What every part of the configuration is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, model_validator


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
