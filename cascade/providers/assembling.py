"""Assemble the chunks of a stream into one payload, which then passes the same checks as any other.

A stream is complete only if a choice has a finish reason; without one it was cut off (F26, F27). Usage may come with or
without choices, early, or more than once; only the last usage counts (F28).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cascade.chat import ENDINGS, refusal_of
from cascade.errors import StreamInterruptedError
from cascade.providers.base import Payload
from cascade.providers.histories import packed
from cascade.providers.reading import MAX_TEXT_CHARS, as_storable, content_text, fields_of, raise_error_inside
from cascade.types import Request, TextDelta


@dataclass(slots=True)
class Assembler:
    """Collects chunks. `add` returns the new text of a chunk, `payload` the complete reply after the stream's end."""

    request: Request
    secrets: tuple[str, ...] = field(default=(), repr=False)
    notes: list[str] = field(default_factory=list)
    _texts: list[str] = field(default_factory=list)
    _refusals: list[str] = field(default_factory=list)
    _calls: list[tuple[Any, dict[str, Any]]] = field(default_factory=list)
    _more: dict[str, Any] = field(default_factory=dict)
    _logprobs: list[Any] = field(default_factory=list)
    _head: dict[str, Any] = field(default_factory=dict)
    _finish: str | None = None
    _half: str = ""
    _usage: Any = None
    _length: int = 0

    @property
    def began(self) -> bool:
        """Whether the model has begun to write: a text, a thought or a tool call."""
        return bool(self._texts or self._more or self._calls)

    def add(self, chunk: Payload) -> str:
        """Add one chunk and return its new text, possibly empty."""
        raise_error_inside(chunk, self.request, self.secrets)
        for name in ("id", "object", "model", "system_fingerprint", "service_tier"):
            if chunk.get(name):
                self._head.setdefault(name, chunk[name])
        if chunk.get("usage") is not None:
            self._usage = chunk["usage"]
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and choice.get("index") in (0, None):  # no others were requested (F30)
                raise_error_inside(choice, self.request, self.secrets)
                return self._add_choice(choice)
        return ""

    def _add_choice(self, choice: Mapping[str, Any]) -> str:
        if self._finish is not None and choice.get("delta"):
            if any(choice["delta"].get(name) for name in choice["delta"].keys() - {"role"}):
                self.notes.append("the stream went on after its end; the rest was left out")
            choice = {**choice, "delta": {}, "logprobs": None}
        finish = choice.get("finish_reason")
        if isinstance(finish, str) and (self._finish is None or self._finish.lower() in ENDINGS):
            self._finish = finish  # a reason outside ENDINGS is never replaced
        if isinstance(logprobs := fields_of(choice.get("logprobs")).get("content"), list):
            self._logprobs.extend(logprobs)
        delta = choice.get("delta") or choice.get("message")  # the whole message, if a server does not stream
        if not isinstance(delta, dict):
            return ""
        self._refusals.append(refusal_of(delta))
        if self.request.chat is not None:
            self._add_message(delta)
        text = self._half + content_text(delta.get("content"), self.notes)
        self._half = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""  # the other half comes with the next piece
        text = as_storable(text.removesuffix(self._half))
        if not text:
            return ""
        if self._length > MAX_TEXT_CHARS:
            self.notes.append(f"the stream went on after {MAX_TEXT_CHARS} characters; the rest was left out")
            return ""
        self._texts.append(text)
        self._length += len(text)
        return text

    def _add_message(self, delta: Mapping[str, Any]) -> None:
        """Add the parts of a message that are not text: the pieces of its tool calls, and other fields."""
        calls = delta.get("tool_calls")
        for piece in calls if isinstance(calls, list) else ():
            if isinstance(piece, dict):
                _join(self._call_of(piece), piece)
        for name in delta.keys() - {"role", "content", "refusal", "tool_calls"}:
            if delta[name] is not None:
                _join(self._more, {name: delta[name]})
        if isinstance(blocks := self._more.get("thinking_blocks"), list):
            self._more["thinking_blocks"] = _whole_blocks(blocks)

    def _call_of(self, piece: Mapping[str, Any]) -> dict[str, Any]:
        """Return the call that a piece continues, or a new one.

        An id identifies the call. A name without an id starts a new call, unless it continues the call at its index
        (`_goes_on`). A piece with neither continues the call at its index, or else the last call.
        """
        index, name = piece.get("index"), fields_of(piece.get("function")).get("name")
        at_index = [call for place, call in self._calls if place == index and index is not None]
        if call_id := piece.get("id"):
            known = [call for _, call in self._calls if call.get("id") == call_id]
            known = known or [call for call in at_index[-1:] if call.get("id") in {None, ""}]
        elif name:
            known = [call for call in at_index[-1:] if _goes_on(call, piece)]
        else:
            known = at_index or [call for _, call in self._calls]
        if not known:
            known = [{}]
            self._calls.append((index, known[0]))
        return known[-1]

    def delta(self, text: str) -> TextDelta:
        """Return a new text as a piece of the reply, the first one with the thinking before it."""
        request = self.request
        thinking = packed(self._more, request.wire_model) if len(self._texts) == 1 else None
        return TextDelta(text, request.role, request.step, request.model, thinking)

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._texts)

    def interrupted(self, why: str) -> StreamInterruptedError:
        """Return the error for a stream that broke, with its text so far."""
        why = f"the stream of {self.request.model} was incomplete: {why}"
        return StreamInterruptedError(why, model=self.request.model, partial=self.text)

    def payload(self) -> Payload:
        """Return the completion in the form of a reply that was not streamed.

        Raises:
            StreamInterruptedError: no finish reason came.
        """
        if self._finish is None:
            raise self.interrupted("no finish reason came.")
        if self._half:
            self.notes.append("the stream ended with half of a character, which was left out")
        message: dict[str, Any] = {"role": "assistant", "content": self.text or (None if self._calls else "")}
        message |= self._more
        if self._calls:
            in_order = sorted(self._calls, key=lambda call: call[0] if isinstance(call[0], int) else math.inf)
            message["tool_calls"] = [call for _, call in in_order]
        if refusal := "".join(self._refusals):
            message["refusal"] = refusal
        choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": self._finish}
        if self._logprobs:
            choice["logprobs"] = {"content": self._logprobs}
        return {**self._head, "choices": [choice], "usage": self._usage}


def _whole_blocks(pieces: list[Any]) -> list[Any]:
    """Join the pieces of thinking blocks; each block ends with its signature, without which no vendor reads it."""
    blocks: list[Any] = []
    for piece in pieces:
        last: Any = blocks[-1] if blocks else None
        thinks = [isinstance(block, dict) and block.get("type") == "thinking" for block in (last, piece)]
        if all(thinks) and not last.get("signature"):
            _join(last, piece)
        else:
            blocks.append(dict(piece) if isinstance(piece, dict) else piece)
    return blocks


def _goes_on(call: Mapping[str, Any], piece: Mapping[str, Any]) -> bool:
    """Return whether a named piece continues a call: same name, or none yet, and nothing added to whole arguments."""
    so_far, more = fields_of(call.get("function")), fields_of(piece.get("function"))
    if so_far.get("name") not in (None, "", more.get("name")):
        return False
    try:
        json.loads(so_far.get("arguments") or "")
    except (ValueError, TypeError):
        return True
    return not more.get("arguments")


_WHOLE = frozenset({"id", "type", "name", "index", "role"})
"""Fields of a delta that are always complete; some servers repeat them with every piece."""


def _join(so_far: dict[str, Any], piece: Mapping[str, Any]) -> None:
    """Add a delta to the earlier ones: texts and lists are extended, objects merged, and everything else replaced."""
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
            so_far[name] = known + value
        elif isinstance(known, list) and isinstance(value, list):
            so_far[name] = [*known, *value]
        elif name not in _WHOLE or not known:
            so_far[name] = value
