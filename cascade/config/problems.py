"""What is wrong with settings, in words: every problem at once, each with its path and the word that was meant."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from cascade.checks import did_you_mean, is_secret_name, shown_name
from cascade.config.schema import (
    POLICIES,
    STRATEGIES,
    WRITTEN,
    AuditConfig,
    BudgetConfig,
    GuaranteeConfig,
    LimitsConfig,
    ModelConfig,
    MonitorConfig,
    OnlineConfig,
    PriceConfig,
    ProviderConfig,
    TimeoutsConfig,
    TracesConfig,
)
from cascade.safety.keys import redact

MOST_PROBLEMS = 100
"""How many are listed: more are one mistake, and each takes time to put into words."""


def problems_in(model: type[BaseModel], error: ValidationError) -> list[str]:
    """Return what keeps settings from being a model, each problem as "path: what is wrong"."""
    found: list[str] = []
    listed = error.errors(include_url=False, include_input=True)
    for problem in listed[:MOST_PROBLEMS]:
        path = _path(problem["loc"])
        if problem["type"] == "extra_forbidden":
            name = str(problem["loc"][-1])
            if is_secret_name(name):
                continue  # said already, with better advice
            found.append(f"{path}: there is no such setting{did_you_mean(name, _fields_at(model, problem['loc']))}")
        elif problem["type"] == "value_error":
            lines = str(problem["ctx"]["error"]).split("\n")
            found += [f"{path}: {line}" if path else line for line in lines]
        elif problem["type"] == "missing":
            found.append(f"{path}: is missing")
        else:
            found.append(f"{path}: {problem['msg'][:1].lower()}{problem['msg'][1:]}{_seen(problem)}")
    if len(listed) > MOST_PROBLEMS:
        found.append(f"and {len(listed) - MOST_PROBLEMS} more problems; these come first")
    return found


_PASSES = 3
"""A misspelt kind hides what is wrong with its settings, and those what does not go with other sections."""


def problems_behind(model: type[BaseModel], document: Mapping[str, Any], error: ValidationError) -> list[str]:
    """Return what is wrong besides, seen once the settings that are wrong by themselves are left out."""
    rest, left_out, found = copy.deepcopy(dict(document)), set[str](), list[str]()
    for _ in range(_PASSES):
        for problem in error.errors(include_url=False):
            if not _spelt_right(rest, problem["loc"]):
                _leave_out(rest, problem["loc"])
            left_out.add(_path(problem["loc"]))
        try:
            model.model_validate(rest)
        except ValidationError as more:
            error = more
            behind = problems_in(model, more)
            found += [said for said in behind if said.split(": ")[0] not in left_out and "is missing" not in said]
        else:
            break
    return found


def _spelt_right(document: dict[str, Any], location: tuple[int | str, ...]) -> bool:
    """Give a section of a misspelt kind the kind that was meant, so that its settings can be looked at."""
    name = str(location[0]) if len(location) == 1 else ""
    kinds, section = {"strategy": tuple(STRATEGIES), "policy": WRITTEN}.get(name, ()), document.get(name)
    if not isinstance(section, dict) or section.get("kind") in kinds:
        return False
    near = difflib.get_close_matches(str(section.get("kind")), kinds, n=1)
    section.update({"kind": near[0]} if near else {})
    return bool(near)


def _leave_out(document: Any, location: tuple[int | str, ...]) -> None:
    """Take the setting at a location out of a document, as far as it is there."""
    *inside, last = _settings(location) or ("",)
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
    for part in _settings(location):
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path


def _settings(location: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """Return where a problem is, without the kind that pydantic puts after "strategy" and "policy"."""
    tagged = len(location) > 1 and location[0] in {"strategy", "policy"}
    return (location[0], *location[2:]) if tagged else location


def _fields_at(model: type[BaseModel], location: tuple[int | str, ...]) -> Iterable[str]:
    """Return the settings that exist where an unknown one stands."""
    sections: dict[str, type[BaseModel]] = {
        **STRATEGIES,
        **POLICIES,
        "budget": BudgetConfig,
        "timeouts": TimeoutsConfig,
        "limits": LimitsConfig,
        "provider": ProviderConfig,
        "traces": TracesConfig,
        "price": PriceConfig,
        "guarantee": GuaranteeConfig,
        "audit": AuditConfig,
        "monitor": MonitorConfig,
        "online": OnlineConfig,
    }
    if len(location) == 1:
        return model.model_fields
    parent = str(location[-2])
    if parent in sections:
        return sections[parent].model_fields
    return ModelConfig.model_fields if location[0] == "models" else ()
