"""What kinds of requests a calibration held: a certificate speaks of no others.

Only what changes a reply by its kind is looked at: tools, a form, what is in the messages, and how the reply is drawn.
What is asked is not: fresh questions are as unlike each other as those of the calibration.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from cascade.chat import ChatRequest

Kind: TypeAlias = Mapping[str, float | str]
"""What is special about a request, by a name: a number, or a text (JSON), "" where there is nothing more to say."""
Seen: TypeAlias = Mapping[str, Mapping[str, Any]]
"""By a name of `Kind`: `of` requests had it; `least` and `most` of its numbers, `texts`, which are None if too many."""

PLAIN: Kind = {}
"""A question in cascade's own words, or a single message of a user with no setting."""
MOST_TEXTS = 50
"""A setting with more texts than this is another with each request, such as stop words made from the question."""
_DRAWN = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "logit_bias", "stop", "reasoning_effort", "verbosity", "modalities", "tool_choice", "parallel_tool_calls",
    "web_search_options",
)  # fmt: skip
"""The settings that change how a reply is drawn. What is only kept or passed on (user, metadata, store) does not."""
_NEUTRAL = {"tool_choice": "auto", "parallel_tool_calls": True}
"""Settings at their default, which say nothing."""
_LIMIT = "a limit of the reply"


def kind_of(chat: ChatRequest | None) -> Kind:
    """Return what is special about a request.

    >>> dict(kind_of(ChatRequest([{"role": "user", "content": "Hi"}], {"temperature": 2, "max_tokens": 1})))
    {'temperature': 2.0, 'a limit of the reply': 1.0}
    """
    if chat is None:
        return PLAIN
    roles = [message.get("role") for message in chat.messages]
    held = {
        "tools": bool(chat.tools or chat.options.get("functions")),
        "a JSON schema": chat.json_schema is not None,
        "a JSON object": chat.wants_json and chat.json_schema is None,
        "a system message": any(role in ("system", "developer") for role in roles),
        "several turns": any(role not in ("system", "developer", "user") for role in roles),
        **dict.fromkeys(_parts(chat), True),
    }
    found: dict[str, float | str] = {name: "" for name, there in held.items() if there}
    for name in _DRAWN:
        value = chat.options.get(name)
        if value is not None and value != _NEUTRAL.get(name):
            found[name] = float(value) if type(value) in (int, float) else json.dumps(value, sort_keys=True)
    if chat.max_tokens is not None:
        found[_LIMIT] = float(chat.max_tokens)
    return found


def _parts(chat: ChatRequest) -> Iterator[str]:
    """Yield what the messages hold beside text: the types of their parts, as "image parts"."""
    for message in chat.messages:
        content = message.get("content")
        for part in content if isinstance(content, list | tuple) else ():
            kind = str(part.get("type", "text")) if isinstance(part, Mapping) else "text"
            if kind not in ("text", "refusal"):
                yield f"{kind.removeprefix('input_').removesuffix('_url')} parts"


def seen(kinds: Sequence[Kind | None]) -> dict[str, Any] | None:
    """Return what requests held, as plain JSON values; None where one is not on record.

    >>> seen([{"tools": ""}, {"tools": "", "temperature": 0.5}])["kinds"]["temperature"]
    {'of': 1, 'least': 0.5, 'most': 0.5}
    """
    known = [kind for kind in kinds if kind is not None]
    if not known or len(known) < len(kinds):
        return None
    names = sorted({name for kind in known for name in kind})
    return {"of": len(known), "kinds": {name: _held([kind[name] for kind in known if name in kind]) for name in names}}


def _held(values: Sequence[float | str]) -> dict[str, Any]:
    numbers = [value for value in values if isinstance(value, float)]
    texts = sorted({value for value in values if isinstance(value, str)})
    found: dict[str, Any] = {"of": len(values)}
    if numbers:
        found |= {"least": min(numbers), "most": max(numbers)}
    if texts:
        found["texts"] = texts if len(texts) <= MOST_TEXTS else None
    return found


def unlike(kind: Kind, held: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield how a request differs from all that a calibration held, a sentence each; nothing where that is not known.

    Args:
        kind: of the request.
        held: what `seen` returned.

    >>> list(unlike({"temperature": 2.0}, seen([{"temperature": 0.2}, {"temperature": 1.0}])))
    ['the request has temperature 2, and the calibration requests had 0.2 to 1']
    """
    if held is None:
        return
    kinds: Seen = held["kinds"]
    for name, value in kind.items():
        there = kinds.get(name)
        if there is None:
            yield f"the request has {_said(name, value)}, which no calibration request had"
        elif isinstance(value, float) and "least" in there and not _within(name, value, there):
            yield f"the request has {_said(name, value)}, and the calibration requests had {_range(there)}"
        elif isinstance(value, str) and there.get("texts", ()) is not None and value not in there.get("texts", ()):
            yield f"the request has {_said(name, value)}, which no calibration request had"
    for name, there in kinds.items():
        if there["of"] == held["of"] and name not in kind and name != _LIMIT:
            yield f"the request has not {name}, and every calibration request had"


def _within(name: str, value: float, there: Mapping[str, Any]) -> bool:
    """Whether a number lies among those of the calibration. A larger limit cuts off no more than a smaller one."""
    return bool(there["least"] <= value and (value <= there["most"] or name == _LIMIT))


def _range(there: Mapping[str, Any]) -> str:
    least, most = there["least"], there["most"]
    return f"{least:g}" if least == most else f"{least:g} to {most:g}"


_LONGEST_SHOWN = 60


def _said(name: str, value: float | str) -> str:
    shown = f"{value:g}" if isinstance(value, float) else value[:_LONGEST_SHOWN]
    return f"{name} {shown}".strip()
