"""What a server can say piece by piece: the lines of server-sent streams, good and bad."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .bodies import USAGE, encode, good

_DONE = b"data: [DONE]\n\n"
Lines = list[bytes]


def _chunk(body: Mapping[str, Any], choices: list[Any], **more: Any) -> bytes:
    head = {"id": "chat-1", "object": "chat.completion.chunk", "created": 1, "model": body["model"]}
    return b"data: " + encode({**head, "choices": choices, **more}) + b"\n\n"


def _piece(body: Mapping[str, Any], text: str | None, finish: str | None = None, index: int = 0, **more: Any) -> bytes:
    delta = {} if text is None else {"content": text}
    return _chunk(body, [{"index": index, "delta": delta, "finish_reason": finish}], **more)


def _words(body: Mapping[str, Any]) -> Lines:
    text: str = good(body)["choices"][0]["message"]["content"]
    return [_piece(body, text[start : start + 7]) for start in range(0, len(text), 7)]


def _usage(body: Mapping[str, Any], **counts: int) -> bytes:
    return _chunk(body, [], usage={**USAGE, **counts})


def _ok(body: Mapping[str, Any]) -> Lines:
    return [*_words(body), _piece(body, None, "stop"), _usage(body), _DONE]


def _reset(body: Mapping[str, Any]) -> Lines:
    return [*_words(body)[:3], b"RESET"]


def _no_finish(body: Mapping[str, Any]) -> Lines:
    return _words(body)[:3]


def _finish_error(body: Mapping[str, Any]) -> Lines:
    return [*_words(body)[:3], _piece(body, None, "error"), _usage(body), _DONE]


def _error_in_choice(body: Mapping[str, Any]) -> Lines:
    failed = {"index": 0, "delta": {}, "finish_reason": None, "error": {"message": "overloaded", "code": 503}}
    return [*_words(body)[:3], _chunk(body, [failed]), _piece(body, None, "stop"), _DONE]


def _no_usage(body: Mapping[str, Any]) -> Lines:
    return [*_words(body), _piece(body, None, "stop"), _DONE]


def _usage_doubled(body: Mapping[str, Any]) -> Lines:
    early = [_usage(body, prompt_tokens=1, completion_tokens=1), *_words(body)]
    return [*early, _piece(body, None, "stop"), _usage(body), _usage(body), _DONE]


def _usage_with_choices(body: Mapping[str, Any]) -> Lines:
    return [*_words(body), _piece(body, None, "stop", usage=USAGE), _DONE]


def _usage_before_finish(body: Mapping[str, Any]) -> Lines:
    return [*_words(body), _usage(body), _piece(body, None, "stop"), _DONE]


def _empty_chunks(body: Mapping[str, Any]) -> Lines:
    noise = [b": keep-alive\n\n", b"\n", b"event: ping\n\n", _chunk(body, []), _piece(body, ""), b"data: 7\n\n"]
    mixed = [line for word in _words(body) for line in (*noise, word)]
    return [*mixed, _piece(body, None, "stop"), *noise, _usage(body), _DONE]


def _text_after_finish(body: Mapping[str, Any]) -> Lines:
    return [*_words(body), _piece(body, None, "stop"), _piece(body, "\nAnswer: Elbe"), _usage(body), _DONE]


def _text_after_done(body: Mapping[str, Any]) -> Lines:
    return [*_ok(body), _piece(body, "\nAnswer: Elbe"), _piece(body, None, "error")]


def _two_choices(body: Mapping[str, Any]) -> Lines:
    mixed = [line for word in _words(body) for line in (word, _piece(body, "Elbe ", index=1))]
    return [*mixed, _piece(body, None, "stop"), _usage(body), _DONE]


def _odd_characters(body: Mapping[str, Any]) -> Lines:
    return [_piece(body, "Answer: Dan\ud800\x00"), _piece(body, "ube", "stop"), _usage(body), _DONE]


def _halves(body: Mapping[str, Any]) -> Lines:
    return [_piece(body, "Answer: Danube \ud83d"), _piece(body, "\ude00", "stop"), _usage(body), _DONE]


def _refusal(body: Mapping[str, Any]) -> Lines:
    refused = _chunk(body, [{"index": 0, "delta": {"refusal": "I cannot."}, "finish_reason": None}])
    return [*_words(body), refused, _piece(body, None, "stop"), _usage(body), _DONE]


def _error_inside(body: Mapping[str, Any]) -> Lines:
    error = {"error": {"message": "overloaded", "type": "overloaded_error", "code": 503}}
    return [*_words(body)[:2], b"data: " + encode(error) + b"\n\n"]


def _calls(*pieces: tuple[Any, str | None, str | None, str]) -> Callable[[Mapping[str, Any]], Lines]:
    """Return a mode of pieces of tool calls: the index (... for none), the id, the name and the arguments of each."""

    def mode(body: Mapping[str, Any]) -> Lines:
        lines = list[bytes]()
        for index, call_id, name, arguments in pieces:
            call: dict[str, Any] = {"function": {"arguments": arguments} | ({} if name is None else {"name": name})}
            call |= {} if index is ... else {"index": index}
            call |= {} if call_id is None else {"id": call_id, "type": "function"}
            lines.append(_chunk(body, [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}]))
        return [*lines, _piece(body, None, "tool_calls"), _usage(body), _DONE]

    return mode


def as_stream(payload: Mapping[str, Any]) -> Lines:
    """Return a whole reply as a stream of one piece."""
    choices = payload.get("choices")
    if isinstance(choices, list):
        pieces = [
            {**raw, "delta": raw.get("message"), "message": None} if isinstance(raw, dict) else raw for raw in choices
        ]
        payload = {**payload, "choices": pieces, "object": "chat.completion.chunk"}
    return [b"data: " + encode(payload) + b"\n\n", _DONE]


STREAMS: dict[str, Callable[[Mapping[str, Any]], Lines]] = {
    "ok": _ok,
    "calls_in_turn": _calls((0, "a", "add", '{"n"'), (0, None, None, ": 1}"), (1, "b", "add", '{"n": 2}')),
    "calls_same_index": _calls((0, "a", "add", '{"n": 1}'), (0, "b", "add", '{"n"'), (0, None, None, ": 2}")),
    "calls_no_index": _calls((..., "a", "add", '{"n": 1}'), (..., "b", "add", '{"n"'), (..., None, None, ": 2}")),
    "calls_index_drift": _calls((0, "a", "add", '{"n"'), (1, "a", None, ": 1}"), (2, "b", "add", '{"n": 2}')),
    "calls_without_ids": _calls((0, None, "add", '{"n": 1}'), (0, None, "add", '{"n"'), (0, None, None, ": 2}")),
    "stream_reset": _reset,
    "stream_no_finish": _no_finish,
    "stream_finish_error": _finish_error,
    "stream_error_in_choice": _error_in_choice,
    "stream_text_after_finish": _text_after_finish,
    "stream_text_after_done": _text_after_done,
    "stream_no_usage": _no_usage,
    "stream_usage_doubled": _usage_doubled,
    "stream_usage_with_choices": _usage_with_choices,
    "stream_usage_before_finish": _usage_before_finish,
    "stream_empty_chunks": _empty_chunks,
    "stream_two_choices": _two_choices,
    "stream_odd_characters": _odd_characters,
    "stream_error_inside": _error_inside,
    "stream_halves": _halves,
    "stream_refusal": _refusal,
}
