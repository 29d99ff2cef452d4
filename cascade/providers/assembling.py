"""Assemble the chunks of a stream to one payload, which then passes the same checks as any other.

A stream is complete only if a choice has a finish reason; without one it was cut (F26, F27). Usage may come with or
without choices, twice, or early: the last one counts, once (F28).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cascade.chat import refusal_of
from cascade.errors import StreamInterruptedError
from cascade.providers.base import Payload
from cascade.providers.reading import MAX_TEXT_CHARS, as_storable, content_text, raise_error_inside
from cascade.types import Request


@dataclass(slots=True)
class Assembler:
    """Collects chunks. `add` returns the new text of a chunk, `payload` the complete reply after the stream's end."""

    request: Request
    secrets: tuple[str, ...] = field(default=(), repr=False)
    notes: list[str] = field(default_factory=list)
    _texts: list[str] = field(default_factory=list)
    _refusals: list[str] = field(default_factory=list)
    _calls: dict[int, dict[str, Any]] = field(default_factory=dict)
    _more: dict[str, Any] = field(default_factory=dict)
    _logprobs: list[Any] = field(default_factory=list)
    _head: dict[str, Any] = field(default_factory=dict)
    _finish: str | None = None
    _usage: Any = None
    _length: int = 0

    def add(self, chunk: Payload) -> str:
        """Add one chunk and return its new text, possibly empty."""
        raise_error_inside(chunk, self.request, self.secrets)
        for name in ("id", "model", "system_fingerprint", "service_tier"):
            if chunk.get(name):
                self._head.setdefault(name, chunk[name])
        if chunk.get("usage") is not None:
            self._usage = chunk["usage"]
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and choice.get("index") in {0, None}:  # others were not asked for (F30)
                return self._add_choice(choice)
        return ""

    def _add_choice(self, choice: Mapping[str, Any]) -> str:
        finish = choice.get("finish_reason")
        if isinstance(finish, str):
            self._finish = finish
        logprobs = choice.get("logprobs")
        if isinstance(logprobs, dict) and isinstance(logprobs.get("content"), list):
            self._logprobs.extend(logprobs["content"])
        delta = choice.get("delta") or choice.get("message")  # the whole message, if a server does not stream
        if not isinstance(delta, dict):
            return ""
        self._refusals.append(refusal_of(delta))
        if self.request.chat is not None:
            self._add_message(delta)
        text = as_storable(content_text(delta.get("content"), self.notes))
        if not text:
            return ""
        if self._length > MAX_TEXT_CHARS:
            self.notes.append(f"the stream went on after {MAX_TEXT_CHARS} characters, which is left out")
            return ""
        self._texts.append(text)
        self._length += len(text)
        return text

    def _add_message(self, delta: Mapping[str, Any]) -> None:
        """Add the parts of a message that are not text: the pieces of its tool calls, by index, and other fields."""
        calls = delta.get("tool_calls")
        for place, piece in enumerate(calls if isinstance(calls, list) else ()):
            if isinstance(piece, dict):
                index = piece.get("index")
                _join(self._calls.setdefault(index if isinstance(index, int) else place, {}), piece)
        for name in delta.keys() - {"role", "content", "refusal", "tool_calls"}:
            if delta[name] is not None:
                _join(self._more, {name: delta[name]})

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._texts)

    def interrupted(self, why: str) -> StreamInterruptedError:
        """Return the error for a stream that broke, with its text so far."""
        return StreamInterruptedError(
            f"the stream of {self.request.model} was incomplete: {why}",
            model=self.request.model,
            partial=self.text,
        )

    def payload(self) -> Payload:
        """Return the completion in the form of a reply that was not streamed.

        Raises:
            StreamInterruptedError: no finish reason came.
        """
        if self._finish is None:
            raise self.interrupted("no finish reason came.")
        message: dict[str, Any] = {"role": "assistant", "content": self.text or (None if self._calls else "")}
        message |= self._more
        if self._calls:
            message["tool_calls"] = [self._calls[index] for index in sorted(self._calls)]
        if refusal := "".join(self._refusals):
            message["refusal"] = refusal
        choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": self._finish}
        if self._logprobs:
            choice["logprobs"] = {"content": self._logprobs}
        return {**self._head, "choices": [choice], "usage": self._usage}


_WHOLE = frozenset({"id", "type", "name", "index", "role"})
"""Fields of a delta that are always complete; some servers repeat them with every piece."""


def _join(so_far: dict[str, Any], piece: Mapping[str, Any]) -> None:
    """Add a delta to the earlier ones: texts are continued, objects merged, and everything else replaced."""
    for name, value in piece.items():
        known = so_far.get(name)
        if name == "index" or value is None:
            continue
        if isinstance(known, dict) and isinstance(value, Mapping):
            _join(known, value)
        elif isinstance(value, Mapping):
            so_far[name] = {}
            _join(so_far[name], value)
        elif isinstance(known, str) and isinstance(value, str) and name not in _WHOLE:
            so_far[name] = known + as_storable(value)
        elif isinstance(known, list) and isinstance(value, list):
            so_far[name] = [*known, *value]
        elif name not in _WHOLE or not known:
            so_far[name] = value
