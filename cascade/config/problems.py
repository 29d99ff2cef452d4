"""Describes the problems of settings: all at once, each with its path and the name that was probably meant."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from cascade.checks import did_you_mean, is_secret_name, shown_name
from cascade.safety import redact
from cascade.section import ByKind
from cascade.text import counted

MOST_PROBLEMS = 100
"""The maximum number of listed problems: more usually have one cause, and describing each takes time."""


def problems_in(model: type[BaseModel], document: Mapping[str, Any], error: ValidationError) -> list[str]:
    """Return the problems of settings, each as "path: what is wrong".

    Args:
        model: the model class.
        document: the settings.
        error: pydantic's error.
    """
    found: list[str] = []
    listed = _own(error.errors(include_url=False, include_input=True))
    for problem in listed[:MOST_PROBLEMS]:
        path = _path(problem["loc"])
        if problem["type"] == "extra_forbidden":
            name = str(problem["loc"][-1])
            if is_secret_name(name):
                continue  # already reported, with better advice
            known = _fields_at(model, document, problem["loc"])
            found.append(f"{path}: there is no such setting{did_you_mean(name, known)}")
        elif problem["type"] == "value_error":
            lines = str(problem["ctx"]["error"]).split("\n")
            found += [f"{path}: {line}" if path else line for line in lines]
        elif problem["type"] == "missing":
            found.append(f"{path}: is missing")
        else:
            found.append(f"{path}: {_words(problem)}{_seen(problem)}")
    if len(listed) > MOST_PROBLEMS:
        found.append(f"and {len(listed) - MOST_PROBLEMS} more problems; these come first")
    return found


def _own(listed: list[Any]) -> list[Any]:
    """Leave out the problem that a list is too short if the cause is an invalid item."""
    within = {problem["loc"][:-1] for problem in listed}
    return [problem for problem in listed if problem["type"] != "too_short" or problem["loc"] not in within]


def _words(problem: Any) -> str:
    """Return a problem of a setting in terms of YAML; pydantic's messages name Python's types."""
    if problem["type"] in {"tuple_type", "list_type"}:
        return "input should be a list"
    if problem["type"] == "model_type":
        return "input should be settings, as in {name: value}"
    if problem["type"] == "too_short":
        return f"input should have at least {counted(problem['ctx']['min_length'], 'item')}"
    if problem["type"] == "union_tag_invalid":
        known = problem["ctx"]["expected_tags"].replace("'", "").split(", ")
        return f"there is no kind {shown_name(problem['ctx']['tag'])}{did_you_mean(problem['ctx']['tag'], known)}"
    return f"{problem['msg'][:1].lower()}{problem['msg'][1:]}"


_PASSES = 3
"""A misspelt kind hides problems of its settings, and these hide conflicts with other sections."""


def problems_behind(model: type[BaseModel], document: Mapping[str, Any], error: ValidationError) -> list[str]:
    """Return further problems, found after leaving out the settings that are wrong by themselves."""
    rest, left_out, found = copy.deepcopy(dict(document)), set[str](), list[str]()
    for _ in range(_PASSES):
        for problem in error.errors(include_url=False):
            if not _spelt_right(model, rest, problem["loc"]):
                _leave_out(rest, problem["loc"])
            left_out.add(_path(problem["loc"]))
        try:
            model.model_validate(rest)
        except ValidationError as more:
            error = more
            if "strategy" in document and "strategy" not in rest and not more.errors(include_url=False)[0]["loc"]:
                break  # it was left out, and the default strategy (base and guide) needs other models and policies
            behind = problems_in(model, rest, more)
            found += [said for said in behind if said.split(": ")[0] not in left_out and "is missing" not in said]
        else:
            break
    return found


def _spelt_right(model: type[BaseModel], document: dict[str, Any], location: tuple[int | str, ...]) -> bool:
    """Correct a section's misspelt kind, so that its settings can be checked."""
    name = str(location[0]) if len(location) == 1 else ""
    chooses, section = _by_kind(model, name), document.get(name)
    if chooses is None or not isinstance(section, dict) or chooses.class_at(section) is not None:
        return False
    near = difflib.get_close_matches(str(section.get("kind")), chooses.offered, n=1)
    section.update({"kind": near[0]} if near else {})
    return bool(near)


def _by_kind(model: type[BaseModel], name: str) -> ByKind[Any] | None:
    """Return the function that selects a setting's class by its kind; None if the setting has only one class."""
    field = model.model_fields.get(name)
    return next((one for one in field.metadata if isinstance(one, ByKind)), None) if field else None


def _leave_out(document: Any, location: tuple[int | str, ...]) -> None:
    """Remove the setting at a location from a document, if it is there."""
    *inside, last = location or ("",)
    for part in inside:
        document = document.get(part) if isinstance(document, dict) else None
    if isinstance(document, dict):
        document.pop(last, None)


def _seen(problem: Any) -> str:
    value = problem.get("input")
    if isinstance(value, str):
        return f", not {redact(shown_name(value))}"
    return f", not {value!r}"[:60] if isinstance(value, int | float | bool | None) else ""


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path


def _fields_at(model: type[BaseModel], document: Any, location: tuple[int | str, ...]) -> Iterable[str]:
    """Return the known settings at the place of an unknown one."""
    at: type[BaseModel] | None = model
    for part in location[:-1]:
        document = document.get(part) if isinstance(document, Mapping) else None
        if at is None or part not in at.model_fields:
            continue  # a name given by the user, such as that of a model, or an index in a list
        chooses = _by_kind(at, str(part))
        at = _model_in(at.model_fields[str(part)].annotation) if chooses is None else chooses.class_at(document)
    return () if at is None else at.model_fields


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the first model class in a type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for one in get_args(annotation) if (found := _model_in(one)) is not None), None)
