"""Decide which contents of an answer go into its traces: keys never, texts as the configuration says. Pure.

The search for keys runs while the question is answered, before anything waits in a queue, so it must be quick. Only if
a key is found are the rows made at once, without the key.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from cascade.episodes import schema
from cascade.safety.keys import holds_key, redact
from cascade.types import Answer, Call

Content = Literal["full", "hash", "none"]
TEXTS = tuple(name for name in schema.CONTENT_COLUMNS if name != "gold")
"""The columns of content that hold one text each."""


def texts_of(answer: Answer, columns: Mapping[str, Any]) -> str:
    """Return all that an answer's rows will spell out, each text on lines of its own."""
    question = answer.question
    texts = [question.text, question.context or "", *_strings(columns.values())]
    for step in answer.steps:
        texts += [candidate.text for candidate in step.candidates]
        _add_generated(texts, step.calls)
    _add_generated(texts, answer.loose_calls)
    return "\n".join(texts)


def _add_generated(texts: list[str], calls: Iterable[Call]) -> None:
    for call in calls:
        completion = call.completion
        if completion is not None:
            texts.append(schema.said_text(completion))
            if completion.tokens is not None:
                generated = "".join([token[0] for token in completion.tokens])
                if generated != completion.text:  # a key may stand in what was generated and not in the text
                    texts.append(generated)


def _strings(values: Iterable[Any]) -> Iterator[str]:
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, list | tuple):
            yield from _strings(value)


def rows_of(answer: Answer, columns: Mapping[str, Any], content: Content) -> list[dict[str, Any]]:
    """Return the rows of an answer with what `content` says of its texts, and why the walk ended among its signals."""
    made = list(schema.rows(answer, **columns))
    for row in made:
        row["signals"]["replay"]["stopped"] = answer.stopped
    return veiled(made, content)


def veiled(rows: list[dict[str, Any]], content: Content) -> list[dict[str, Any]]:
    """Return rows with what `content` says in place of their texts. The rows given are changed."""
    if content != "full":
        for row in rows:
            _veil(row, content)
    return rows


def _veil(row: dict[str, Any], content: Content) -> None:
    """Replace each text of a row by a hash, or remove it."""
    for name in TEXTS:
        row[name] = hashed(row[name]) if content == "hash" and row[name] is not None else None
    gold = row["gold"]
    row["gold"] = [hashed(one) for one in gold] if content == "hash" and gold is not None else None
    row["signals"]["replay"]["tokens"] = None


def hashed(text: str) -> str:
    """Return the hash that replaces a text that is not kept; equal texts have equal hashes.

    >>> hashed("Danube")[:18]
    'sha256:65bba1ba433'
    """
    return f"sha256:{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()}"


_HASHED = re.compile(r"sha256:[0-9a-f]{64}")


def is_hashed(text: str) -> bool:
    """Whether a text is a hash made by `hashed`.

    >>> is_hashed(hashed("Danube")), is_hashed("sha256 of what?")
    (True, False)
    """
    return text.startswith("sha256:") and _HASHED.fullmatch(text) is not None


def without_keys(row: dict[str, Any], secrets: Iterable[str]) -> dict[str, Any]:
    """Return a row without anything of the shape of a key, and without the given secrets."""
    known = tuple(secrets)
    made = {name: _without_keys(value, known) for name, value in row.items() if name != "signals"}
    signals = dict(row["signals"])
    tokens = signals["replay"]["tokens"]
    spelt = () if tokens is None else ("".join([token[0] for token in tokens]), row["text"])
    if any(holds_key(text, known) for text in spelt):
        signals["replay"] = {**signals["replay"], "tokens": None}  # piece by piece they would spell it out
    return made | {"signals": signals}


def _without_keys(value: Any, secrets: tuple[str, ...]) -> Any:
    if isinstance(value, str):
        return redact(value, secrets)
    return [_without_keys(one, secrets) for one in value] if isinstance(value, list | tuple) else value
