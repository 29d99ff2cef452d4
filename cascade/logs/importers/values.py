"""Convert foreign values: money, counts, times, truth, and the texts inside chat messages. Unknown is None."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from typing import Any, NamedTuple

from cascade.logs.rowcheck import (
    CHECKS,
    KINDS,
    MAX_WHOLE,
    NUMBER,
    NUMBERS,
    TEXTS,
    TRUTH,
    WHOLE,
    WHOLES,
    OddValueError,
    texts_in,
)

SIGNALS = "signals."
ALSO = ("cost_usd", "latency_s")
"""Targets of a mapping beside cascade's columns: an amount in USD, seconds. And a signal, as "signals.NAME"."""
_NANO = 9
_CAPITAL = re.compile(r"(?<=[a-z0-9])([A-Z])")
_GROUPED = re.compile(r"[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?")
"""A number whose thousands are separated by commas. A count cannot have decimals; of USD, "1,234" may be 1.234."""
_MOST_DIGITS = 18
"""Digits before the point of an amount that is converted exactly; 1e900000 as an integer would take a minute."""
_UNITS = (1.0, 1e3, 1e6)
"""How many of them are a second: seconds, milliseconds, microseconds. What is larger counts nanoseconds."""
_SINCE = re.compile(r"\d+(?:\.\d+)?")
_FAR_S = 1e11
"""In seconds the year 5138, in milliseconds 1973."""
_MAX_DEPTH = 8
"""The maximum depth of a message's text."""
_TRUE = frozenset({"true", "1", "1.0", "yes", "y", "correct", "right", "pass", "passed"})
_FALSE = frozenset({"false", "0", "0.0", "no", "n", "incorrect", "wrong", "fail", "failed"})


def nano_usd(amount_usd: Any) -> int | None:
    """Return an amount of USD in nano-USD, rounded half to even; None if the value is no amount.

    >>> nano_usd(0.0003925), nano_usd("2.5e-9"), nano_usd(None), nano_usd("free"), nano_usd(-1)
    (392500, 2, None, None, None)
    >>> nano_usd("$0.0012"), nano_usd("1,234.5"), nano_usd("1,234"), nano_usd("0,001")
    (1200000, 1234500000000, None, None)
    """
    if amount_usd is None or isinstance(amount_usd, bool):
        return None
    try:
        exact = Decimal(_ungrouped(str(amount_usd).strip().removeprefix("$")))
    except InvalidOperation:
        return None
    if not exact.is_finite() or exact.adjusted() > _MOST_DIGITS:
        return None
    made = int(exact.scaleb(_NANO).to_integral_value(ROUND_HALF_EVEN))
    return made if 0 <= made <= MAX_WHOLE else None


def whole(value: Any) -> int | None:
    """Return a count as an integer; None if the value is no count.

    >>> whole("52"), whole(12.0), whole("1,234"), whole(-1), whole("many"), whole(True)
    (52, 12, 1234, None, None, None)
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value if 0 <= value <= MAX_WHOLE else None
    if isinstance(value, str) and value.strip().isdecimal() and len(value) <= len(str(MAX_WHOLE)):
        return whole(int(value))  # a float has 53 bits
    exact = number(value.replace(",", "") if isinstance(value, str) and _GROUPED.fullmatch(value.strip()) else value)
    return int(exact) if exact is not None and exact.is_integer() and 0 <= exact <= MAX_WHOLE else None


def number(value: Any) -> float | None:
    """Return a finite number; None if the value is no finite number.

    >>> number("0.5"), number("1,234.5"), number("1,234"), number("nan")
    (0.5, 1234.5, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        return None
    try:
        made = float(_ungrouped(value) if isinstance(value, str) else value)
    except (ValueError, OverflowError):
        return None
    return made if math.isfinite(made) else None


def _ungrouped(said: str) -> str:
    """Return a number's text without separators of thousands, where they cannot be a decimal comma."""
    said = said.strip()
    is_clear = _GROUPED.fullmatch(said) is not None and ("." in said or said.count(",") > 1)
    return said.replace(",", "") if is_clear else said


def truth(value: Any) -> bool | None:
    """Return whether something was right; None if the value is not clear.

    >>> truth(1.0), truth("Wrong"), truth(0.7), truth([True])
    (True, False, None, True)
    """
    value = loaded(value)
    if isinstance(value, list) and len(value) == 1:
        return truth(value[0])
    said = str(value).strip().lower()
    return True if said in _TRUE else False if said in _FALSE else None


def text(value: Any) -> str | None:
    """Return an id, a name or a text; None if it is empty or another kind of value."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    return str(value) or None


def loaded(value: Any) -> Any:
    """Return the value of a JSON text; return any other value, and a text that is not JSON, unchanged."""
    if not isinstance(value, str) or value[:1] not in '[{"':
        return value
    try:
        return json.loads(value, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return value


def mapping(value: Any) -> Mapping[str, Any]:
    """Return an object, given as such, as JSON, or as Parquet's pairs; an empty one for anything else."""
    found = loaded(value)
    if isinstance(found, list) and all(isinstance(one, tuple) and len(one) == 2 for one in found):
        found = dict(found)
    return found if isinstance(found, Mapping) else {}


class Moment(NamedTuple):
    """A point in time: seconds since 1970, and as ISO 8601 in UTC."""

    seconds: float
    iso: str


def moment(value: Any) -> Moment | None:
    """Return a time written as ISO 8601 (UTC if it does not say) or as a number since 1970; None for none.

    Whether a number counts seconds, milliseconds, microseconds or nanoseconds is told by its size.

    >>> moment("2026-11-21T10:00:00Z").iso, moment("1544712660000000000").iso
    ('2026-11-21T10:00:00.000+00:00', '2018-12-13T14:51:00.000+00:00')
    >>> moment("1544712660.5").iso, moment(1544712660000).iso
    ('2018-12-13T14:51:00.500+00:00', '2018-12-13T14:51:00.000+00:00')
    """
    made = loaded(value)
    try:
        if isinstance(made, datetime):
            at = made
        elif isinstance(made, int | float) or _SINCE.fullmatch(str(made)):
            since = float(made)
            at = datetime.fromtimestamp(since / next((unit for unit in _UNITS if since < _FAR_S * unit), 1e9), UTC)
        else:
            at = datetime.fromisoformat(str(made))
        at = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
        return Moment(at.timestamp(), at.isoformat(timespec="milliseconds"))
    except (ValueError, OverflowError, OSError):
        return None


def passed_ms(start: Moment | None, end: Moment | None) -> float | None:
    """Return the milliseconds between two times; None if one is unknown or they are in the wrong order."""
    if start is None or end is None or end.seconds < start.seconds:
        return None
    return round((end.seconds - start.seconds) * 1000, 3)


def cast(column: str, value: Any) -> Any:
    """Convert a value, also from a text, to the type of one of cascade's columns; None if it is empty.

    Beside the columns it converts those of `ALSO` (USD become nano-USD) and signals.
    """
    if value is None or value == "":
        return None
    made: Any
    if column == "cost_usd":
        made, why = nano_usd(value), "is no amount of USD"
    elif column == "latency_s" or column.startswith(SIGNALS):
        made, why = number(value), "is no number"
    else:
        made, why = _read(KINDS[column], value), ""
    if made is None:
        raise OddValueError(why)
    check = CHECKS.get(column)
    return made if check is None else check(column, made)


def _read(kind: str, value: Any) -> Any:
    if kind == WHOLE:
        return whole(value)
    if kind == NUMBER:
        return number(value)
    if kind == TRUTH:
        return truth(value)
    if kind == TEXTS:
        return texts_in(value) if isinstance(value, str) else value if isinstance(value, list) else [value]
    return mapping(value) if kind == NUMBERS else loaded(value) if kind == WHOLES else value


# --- names and attributes ---


def snake(name: str) -> str:
    """Return a field's name in the spelling of the exports to a bucket.

    >>> snake("parentObservationId"), snake("trace_id")
    ('parent_observation_id', 'trace_id')
    """
    return _CAPITAL.sub(lambda found: f"_{found[1]}", name).lower()


def attributes(given: Any) -> dict[str, Any]:
    """Return attributes as plain values, from OTLP's list of keys and typed values or from an object.

    >>> attributes([{"key": "a", "value": {"intValue": "52"}}, {"key": "b", "value": {"arrayValue": {"values": []}}}])
    {'a': 52, 'b': []}
    """
    if isinstance(given, Mapping):
        return dict(given)
    pairs = [one for one in given if isinstance(one, Mapping)] if isinstance(given, list) else []
    return {str(one.get("key")): _held(one.get("value")) for one in pairs}


def _held(value: Any) -> Any:
    """Return the content of a typed value of OTLP. Its JSON form writes 64-bit integers as texts."""
    if not isinstance(value, Mapping) or not value:
        return None
    kind, held = next(iter(value.items()))
    if kind == "intValue":
        return whole(held)
    if kind == "arrayValue":
        values = held.get("values") if isinstance(held, Mapping) else None
        return [_held(one) for one in values or ()]
    if kind == "kvlistValue":
        return attributes(held.get("values") if isinstance(held, Mapping) else None)
    return held


# --- chat messages ---


def question_in(asked: Any) -> str | None:
    """Return the user's last text in a request to a model: messages, a prompt, or a body with them."""
    return _spoken(loaded(asked), _USER, 0)


def reply_in(answered: Any) -> str | None:
    """Return a model's reply: the text of its first choice, of its message, or a plain text.

    It is "" if the reply only calls a tool, and None if no reply is recorded.

    >>> reply_in({"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}), reply_in({})
    ('', None)
    """
    reply = loaded(answered)
    said = _spoken(reply, _MODEL, 0)
    return "" if said is None and _calls_tool(reply, 0) else said


def answer_in(held: Any) -> str | None:
    """Return the answer in a cell that may hold a model's message; any other object or list is an answer in JSON.

    >>> answer_in({"role": "assistant", "content": "Paris"}), answer_in({"city": "Zürich"}), answer_in({})
    ('Paris', '{"city": "Zürich"}', None)
    """
    said = reply_in(held)
    if said is not None or not held:
        return said
    parts = held if isinstance(held, list) else [held]
    is_message = any(isinstance(one, Mapping) and one.keys() & {"role", *_MODEL.under} for one in parts)
    return None if is_message else json.dumps(held, ensure_ascii=False, default=str)


def _calls_tool(value: Any, depth: int) -> bool:
    """Return whether a part of a reply, at most `_MAX_DEPTH` deep, calls a tool."""
    if depth > _MAX_DEPTH:
        return False
    if isinstance(value, Mapping):
        own = value.get("type") in _TOOL_CALLS or any(value.get(name) for name in ("tool_calls", "function_call"))
        return own or any(_calls_tool(one, depth + 1) for one in value.values())
    return isinstance(value, list) and any(_calls_tool(one, depth + 1) for one in value)


class _Speaker(NamedTuple):
    """The speaker whose text is searched: names of the role, and names of text fields, the likeliest first."""

    roles: frozenset[str]
    under: tuple[str, ...]


_USER = _Speaker(
    frozenset({"user", "human"}),
    ("messages", "contents", "input", "prompt", "question", "query", "parts", "content", "text"),
)
_MODEL = _Speaker(
    frozenset({"assistant", "ai", "model"}),
    ("choices", "candidates", "message", "output", "parts", "content", "text", "completion", "answer"),
)
_OTHER_PARTS = frozenset(
    {
        *("reasoning", "thinking", "redacted_thinking", "function_call"),
        *("tool_call", "tool_use", "tool_call_response", "tool_result"),
    }
)
_TOOL_CALLS = ("function_call", "tool_call", "tool_use")
_OF_A_CHOICE = frozenset({"message", "index", "finish_reason", "finishReason"})


def _spoken(value: Any, who: _Speaker, depth: int) -> str | None:
    if isinstance(value, str):
        return value.strip() or None
    if depth > _MAX_DEPTH:
        return None
    if isinstance(value, Mapping):
        inside = next((value[name] for name in who.under if value.get(name)), None)
        return _spoken(inside, who, depth + 1)
    return _spoken_in_list(value, who, depth) if isinstance(value, list) and value else None


def _spoken_in_list(value: list[Any], who: _Speaker, depth: int) -> str | None:
    inside = [one for one in value if isinstance(one, Mapping)]
    if any("role" in one for one in inside):
        own = (_spoken(one, who, depth + 1) for one in reversed(inside) if one.get("role") in who.roles)
        return next((said for said in own if said is not None), None)
    if inside and inside[0].keys() & _OF_A_CHOICE:
        return _spoken(inside[0], who, depth + 1)  # of several choices the first was served
    parts = [one for one in value if not (isinstance(one, Mapping) and one.get("type") in _OTHER_PARTS)]
    texts = [_spoken(one, who, depth + 1) for one in parts]
    return "\n".join([one for one in texts if one is not None]) or None
