"""Flatten OpenTelemetry's spans and Langfuse's observations into records that a preset reads.

Attributes come as an object or as OTLP's list of keys and typed values; numbered ones (`gen_ai.prompt.0.content`,
OpenInference's `llm.input_messages.0.message.role`) become lists; messages in events become `request` and `choices`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from cascade.chat import objects_in
from cascade.logs.chats import as_mapping, loaded, options_in

_MESSAGE = re.compile(r"gen_ai\.(system|user|assistant|tool)\.message")
_NUMBERED = re.compile(r"(?P<start>.+?)\.(?P<at>\d{1,4})\.(?P<rest>.+)")
_EVALUATION = "gen_ai.evaluation"
_SENT = "gen_ai.request."
_UNSENT = {"temperature": 1, "top_p": 1, "frequency_penalty": 0, "presence_penalty": 0}
"""What Langfuse's wrapper of OpenAI's client records for options that were not sent (langfuse/openai.py)."""


def attributes(raw: Any) -> dict[str, Any]:
    """Return attributes as plain values, from OTLP's list of keys and typed values or from an object.

    >>> attributes([{"key": "a", "value": {"intValue": "52"}}, {"key": "b", "value": {"arrayValue": {"values": []}}}])
    {'a': '52', 'b': []}
    """
    decoded = loaded(raw)
    if isinstance(decoded, Mapping):
        return dict(decoded)
    return {str(pair.get("key")): _typed(pair.get("value")) for pair in objects_in(decoded)}


def _typed(value: Any) -> Any:
    if not isinstance(value, Mapping) or not value:
        return None
    kind, inside = next(iter(value.items()))
    if kind == "arrayValue":
        return [_typed(entry) for entry in as_mapping(inside).get("values") or ()]
    return attributes(as_mapping(inside).get("values")) if kind == "kvlistValue" else inside


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes with numbered ones as lists of objects; dots in the names after a number nest objects.

    >>> nested({"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.call.name": "f", "gen_ai.model": "m"})
    {'gen_ai.prompt': [{'role': 'user', 'call': {'name': 'f'}}], 'gen_ai.model': 'm'}
    """
    fields: dict[str, Any] = {}
    for name, value in flat.items():
        if (match := _NUMBERED.fullmatch(name)) is None:
            fields[name] = value
            continue
        inside = fields.setdefault(match["start"], {})
        keys = [match["at"], *match["rest"].split(".")]
        for key in keys[:-1]:
            inside = inside.setdefault(key, {}) if isinstance(inside, dict) else {}
        if isinstance(inside, dict):
            inside[keys[-1]] = value
    return {name: _listed(value) if name not in flat else value for name, value in fields.items()}


def _listed(value: Any) -> Any:
    """Return a value with each object whose names are all numbers turned into a list, at every depth."""
    if not isinstance(value, dict):
        return value
    inside = {name: _listed(item) for name, item in value.items()}
    return [inside[name] for name in sorted(inside, key=int)] if all(map(str.isdigit, inside)) else inside


def prepared_span(line: str | None, _around: str | None) -> str | None:
    """Return a span as a flat JSON object: its attributes and its events' attributes, messages, choices and scores."""
    if not (span := as_mapping(line)):
        return None
    flat, request, choices, scores = nested(attributes(span.get("attributes"))), [], [], {}
    for event in span.get("events") or ():
        fields, name = attributes(as_mapping(event).get("attributes")), str(as_mapping(event).get("name"))
        if (match := _MESSAGE.fullmatch(name)) is not None:
            request.append({**fields, "role": match[1]})
        elif name == "gen_ai.choice":
            choices.append(fields if "message" in fields else {"message": fields})
        elif name == f"{_EVALUATION}.result":
            score = fields.get(f"{_EVALUATION}.score.label", fields.get(f"{_EVALUATION}.score.value"))
            scores[str(fields.get(f"{_EVALUATION}.name"))] = score
        else:
            flat |= {key: value for key, value in nested(fields).items() if key not in flat}
    own = {name.removeprefix("attributes."): span[name] for name in span if name not in {"attributes", "events"}}
    options = {name.removeprefix(_SENT): value for name, value in flat.items() if name.startswith(_SENT)}
    settings = _numbers({"tool_choice": flat.get("ai.prompt.toolChoice"), **options})
    of_events = {"request": request or None, "choices": choices or None, "scores": scores, "settings": settings}
    return json.dumps({**own, **flat, **of_events})


def prepared_observation(line: str | None, around: str | None) -> str | None:
    """Return one of Langfuse's observations with its settings and scores by name, and the trace around it."""
    record, trace = as_mapping(line), as_mapping(around)
    if not record:
        return None
    scores = {**_scores(trace.get("scores"), record.get("id")), **_scores(record.get("scores"), record.get("id"))}
    settings = _numbers(options_in(record.get("modelParameters", record.get("model_parameters")))).items()
    sent = {name: value for name, value in settings if value != _UNSENT.get(name)}
    return json.dumps({**record, "settings": sent, "scores": scores, "around": trace})


def _numbers(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with texts of numbers as numbers, without null, empty or infinite ones.

    >>> _numbers({"temperature": "0.2", "max_tokens": "Infinity", "stop": None, "verbosity": "low"})
    {'temperature': 0.2, 'verbosity': 'low'}
    """
    return {name: number for name, value in options.items() if (number := _number(value)) not in (None, "")}


def _number(value: Any) -> Any:
    if not isinstance(value, str | float):
        return value
    try:
        number = float(value)
    except ValueError:
        return value
    return int(number) if number.is_integer() else number if math.isfinite(number) else None


def _scores(raw: Any, observation: Any) -> dict[str, Any]:
    """Return the scores of a trace and of this observation, by name."""
    decoded = loaded(raw)
    if isinstance(decoded, Mapping):
        return dict(decoded)
    return {
        str(score["name"]): score.get("stringValue") or score.get("string_value") or score.get("value")
        for score in objects_in(decoded)
        if score.get("name") and score.get("observationId", score.get("observation_id")) in (None, observation)
    }
