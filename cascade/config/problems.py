"""Describes the problems of settings: all at once, each with its path and the name that was probably meant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from cascade.checks import did_you_mean, is_secret_name, shown_name
from cascade.safety import redact
from cascade.section import ByKind
from cascade.text import counted

MOST_PROBLEMS = 100
"""The maximum number of listed problems: more usually have one cause, and describing each takes time."""
_Location = tuple[int | str, ...]


def problems_of(model: type[BaseModel], document: Mapping[str, Any], error: ValidationError) -> list[str]:
    """Return the problems that pydantic's error lists, each once, as "path: what is wrong"."""
    lines: list[str] = []
    listed = error.errors(include_url=False, include_input=True)
    around = {problem["loc"][:end] for problem in listed for end in range(len(problem["loc"]))}
    for problem in listed[:MOST_PROBLEMS]:
        path, kind = _path(problem["loc"]), problem["type"]
        if kind == "too_short" and problem["loc"] in around:
            continue  # a list is too short because an entry of it is wrong
        if kind == "extra_forbidden":
            name = str(problem["loc"][-1])
            if not is_secret_name(name):  # already reported, with better advice
                lines.append(
                    f"{path}: there is no such setting{did_you_mean(name, _fields_at(model, document, problem['loc']))}"
                )
        elif kind == "value_error":
            lines += [f"{path}: {line}" if path else line for line in str(problem["ctx"]["error"]).split("\n")]
        else:
            lines.append(f"{path}: {_in_words(problem)}")
    if len(listed) > MOST_PROBLEMS:
        lines.append(f"and {counted(len(listed) - MOST_PROBLEMS, 'more problem')}; these come first")
    return list(dict.fromkeys(lines))


_OF_YAML = {
    "missing": "is missing",
    "tuple_type": "input should be a list",
    "list_type": "input should be a list",
    "model_type": "input should be settings, as in {name: value}",
}
"""Replacements for pydantic's messages that name Python types."""


def _in_words(problem: Any) -> str:
    message = _OF_YAML.get(problem["type"], f"{problem['msg'][:1].lower()}{problem['msg'][1:]}")
    if problem["type"] == "too_short":
        message = f"input should have at least {counted(problem['ctx']['min_length'], 'item')}"
    if problem["type"] == "union_tag_invalid":
        known = problem["ctx"]["expected_tags"].replace("'", "").split(", ")
        return f"there is no kind {shown_name(problem['ctx']['tag'])}{did_you_mean(problem['ctx']['tag'], known)}"
    value = problem.get("input")
    if isinstance(value, str):
        return f"{message}, not {redact(shown_name(value))}"
    shown = isinstance(value, int | float | bool | None) and problem["type"] != "missing"
    return message + (f", not {value!r}"[:60] if shown else "")


def _path(location: _Location) -> str:
    path = ""
    for name in location:
        path += f"[{name}]" if isinstance(name, int) else f".{name}" if path else str(name)
    return path


def _fields_at(model: type[BaseModel], document: Any, location: _Location) -> Iterable[str]:
    """Return the known settings at the place of an unknown one."""
    section: type[BaseModel] | None = model
    for name in location[:-1]:
        document = document.get(name) if isinstance(document, Mapping) else None
        field = None if section is None else section.model_fields.get(str(name))
        if field is None:
            continue  # a name given by the user, such as that of a model, or an index in a list
        by_kind = next((chooses for chooses in field.metadata if isinstance(chooses, ByKind)), None)
        section = _model_in(field.annotation) if by_kind is None else by_kind.class_at(document)
    return () if section is None else section.model_fields


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the first model class in a type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for inner in get_args(annotation) if (model := _model_in(inner)) is not None), None)
