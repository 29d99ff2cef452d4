"""Servers of several vendors on one loopback port: they note the bytes that they get, and answer with a usage.

A vendor answers 400 where the real one would: DeepSeek without the reasoning of a turn with tool calls, Anthropic for a
signature that it did not make, OpenAI for reasoning that it did not encrypt, Gemini (`google`: its form for OpenAI's
clients) for the first tool call of a turn without its signature or the text in its place.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self

Body = dict[str, Any]
PLACEHOLDER = "skip_thought_signature_validator"
"""What Gemini's vendor documents for tool calls that another model made."""
PATHS = {
    "anthropic": "/v1/messages",
    "openai": "/v1/responses",
    "deepseek": "/deepseek/chat/completions",
    "chat": "/openai/chat/completions",
    "gemini": "/gemini",
    "google": "/google/chat/completions",
}


class Got(NamedTuple):
    """What one vendor got."""

    vendor: str
    raw: bytes

    @property
    def body(self) -> Body:
        return dict(json.loads(self.raw))


class Vendors:
    """The servers, running while it is a context. `answers` has each vendor's answer by its name: a body in its form."""

    def __init__(self, answers: Mapping[str, Callable[[Body], Body]]) -> None:
        self.answers, self.got, self.refused = answers, list[Got](), list[str]()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._http.vendors = self  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which litellm finds the servers and their keys."""
        url = f"http://127.0.0.1:{self._http.server_address[1]}"
        bases = {"ANTHROPIC": url, "DEEPSEEK": f"{url}/deepseek", "OPENAI": f"{url}/openai", "GEMINI": f"{url}/gemini"}
        keys = {f"{name}_API_KEY": "none" for name in bases}
        return {f"{name}_API_BASE": base for name, base in bases.items()} | keys

    def bodies(self, vendor: str) -> list[Body]:
        """Return what one vendor got."""
        return [got.body for got in self.got if got.vendor == vendor]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: Any

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        vendors: Vendors = self.server.vendors
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        vendor = next((name for name, path in PATHS.items() if self.path.startswith(path)), "openai")
        got = Got(vendor, raw)
        vendors.got.append(got)
        why = REFUSALS.get(vendor, lambda _: None)(got.body)
        if why is not None:
            vendors.refused.append(f"{vendor}: {why}")
            self._send(
                400, "application/json", json.dumps({"error": {"message": why, "type": "invalid_request_error"}})
            )
            return
        answer = vendors.answers[vendor](got.body)
        if got.body.get("stream") or "streamGenerateContent" in self.path:
            self._send(200, "text/event-stream", "".join(STREAMS[vendor](answer)))
        else:
            self._send(200, "application/json", json.dumps(answer))

    def _send(self, status: int, kind: str, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())


# --- what each vendor refuses ---


def _anthropic_refuses(body: Body) -> str | None:
    for message in body["messages"]:
        blocks = message["content"] if isinstance(message["content"], list) else []
        for block in blocks:
            if block["type"] == "thinking" and block["signature"] != f"sig-of-claude:{block['thinking']}":
                return "Invalid `signature` in `thinking` block"
            if block["type"] == "redacted_thinking" and block["data"] != "secret-of-claude":
                return "Invalid `data` in `redacted_thinking` block"
    last = body["messages"][-2]["content"] if len(body["messages"]) > 1 else []
    kinds = [block["type"] for block in last if not isinstance(block, str)]
    if body.get("thinking", {}).get("type") == "enabled" and "tool_use" in kinds and "thinking" not in kinds[0]:
        return "Expected `thinking` or `redacted_thinking`, but found `tool_use`"
    return None


def _deepseek_refuses(body: Body) -> str | None:
    for message in body["messages"]:
        if message.get("tool_calls") and message.get("reasoning_content") is None:
            return "The reasoning_content in the thinking mode must be passed back to the API."
    return None


def _openai_refuses(body: Body) -> str | None:
    for entry in body["input"] if isinstance(body.get("input"), list) else []:
        if entry.get("type") == "reasoning" and entry.get("encrypted_content") != "secret-of-openai":
            return "The encrypted content could not be verified."
    return None


def _refused_signature(first_calls: Iterable[tuple[str | None, str]]) -> str | None:
    bad = [signature for signature, placeholder in first_calls if signature not in {"sig-of-gemini", placeholder}]
    return f"Function call is missing a thought_signature: {bad}" if bad else None


def _google_refuses(body: Body) -> str | None:
    calls = [message["tool_calls"][0] for message in body["messages"] if message.get("tool_calls")]
    seals = [call.get("extra_content", {}).get("google", {}) for call in calls]
    return _refused_signature((seal.get("thought_signature"), PLACEHOLDER) for seal in seals)


def _gemini_refuses(body: Body) -> str | None:
    turns = [[part for part in turn["parts"] if "function_call" in part] for turn in body["contents"]]
    in_base64 = base64.b64encode(PLACEHOLDER.encode()).decode()
    return _refused_signature((parts[0].get("thoughtSignature"), in_base64) for parts in turns if parts)


REFUSALS: Mapping[str, Callable[[Body], str | None]] = {
    "google": _google_refuses,
    "gemini": _gemini_refuses,
    "anthropic": _anthropic_refuses,
    "deepseek": _deepseek_refuses,
    "openai": _openai_refuses,
}


# --- whole answers and their streams ---


def anthropic_answer(blocks: list[Body], usage: Body, end: str = "end_turn") -> Body:
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5"}
    return {**head, "content": blocks, "stop_reason": end, "stop_sequence": None, "usage": usage}


def chat_answer(message: Body, usage: Body, model: str = "deepseek-chat") -> Body:
    end = "tool_calls" if message.get("tool_calls") else "stop"
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": end}
    return {"id": "x", "object": "chat.completion", "created": 1, "model": model, "choices": [choice], "usage": usage}


def openai_answer(output: list[Body], usage: Body, model: str = "gpt-5") -> Body:
    head = {"id": "resp_1", "object": "response", "created_at": 1, "status": "completed", "model": model}
    more = {"error": None, "incomplete_details": None, "instructions": None, "metadata": {}, "tools": []}
    more |= {"parallel_tool_calls": True, "temperature": 1.0, "tool_choice": "auto", "top_p": 1.0}
    return {**head, **more, "output": output, "usage": usage}


def gemini_answer(text: str, usage: Body, *parts: Body) -> Body:
    content = {"role": "model", "parts": [*parts] or [{"text": text}]}
    candidate = {"content": content, "finishReason": "STOP", "index": 0}
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "gemini-2.5-flash"}


def _events(events: Iterable[Body], *, named: bool = False) -> Iterator[str]:
    for event in events:
        yield (f"event: {event['type']}\n" if named else "") + f"data: {json.dumps(event)}\n\n"


def _anthropic_stream(answer: Body) -> Iterator[str]:
    usage, blocks = answer["usage"], answer["content"]
    message = {**answer, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    events: list[Body] = [{"type": "message_start", "message": message}]
    for index, block in enumerate(blocks):
        kind = block["type"]
        deltas: dict[str, list[Body]] = {
            "text": [{"type": "text_delta", "text": block.get("text")}],
            "thinking": [
                {"type": "thinking_delta", "thinking": block.get("thinking")},
                {"type": "signature_delta", "signature": block.get("signature")},
            ],
            "tool_use": [{"type": "input_json_delta", "partial_json": json.dumps(block.get("input"))}],
            "redacted_thinking": [],
        }
        empty = {"text": {"text": ""}, "thinking": {"thinking": "", "signature": ""}, "tool_use": {"input": {}}}
        events.append({"type": "content_block_start", "index": index, "content_block": block | empty.get(kind, {})})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas[kind]]
        events.append({"type": "content_block_stop", "index": index})
    end = {"stop_reason": answer["stop_reason"], "stop_sequence": None}
    events += [{"type": "message_delta", "delta": end, "usage": usage}, {"type": "message_stop"}]
    return _events(events, named=True)


def _chat_stream(answer: Body) -> Iterator[str]:
    head = {name: answer[name] for name in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    choice = answer["choices"][0]
    delta = dict(choice["message"])
    if "tool_calls" in delta:
        delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(delta["tool_calls"])]
    reasoning = delta.pop("reasoning_content", None)
    deltas = [{"reasoning_content": piece} for piece in (reasoning or "").split("|") if piece] + [delta]
    yield from _events({**head, "choices": [{"index": 0, "delta": piece, "finish_reason": None}]} for piece in deltas)
    yield from _events([{**head, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]}])
    yield from _events([{**head, "choices": [], "usage": answer["usage"]}])
    yield "data: [DONE]\n\n"


def _openai_stream(answer: Body) -> Iterator[str]:
    events: list[Body] = [{"type": "response.created", "response": {**answer, "status": "in_progress", "output": []}}]
    for index, entry in enumerate(answer["output"]):
        place = {"output_index": index, "item_id": entry["id"]}
        empty = {"arguments": ""} if entry["type"] == "function_call" else {}
        events.append({"type": "response.output_item.added", **place, "item": entry | empty})
        for number, part in enumerate(entry.get("content") or ()):
            where = {**place, "content_index": number}
            events.append({"type": "response.output_text.delta", **where, "delta": part["text"], "logprobs": []})
            events.append({"type": "response.output_text.done", **where, "text": part["text"], "logprobs": []})
        if entry["type"] == "function_call":
            arguments = entry["arguments"]
            events.append({"type": "response.function_call_arguments.delta", **place, "delta": arguments})
            events.append({"type": "response.function_call_arguments.done", **place, "arguments": arguments})
        events.append({"type": "response.output_item.done", **place, "item": entry})
    events.append({"type": "response.completed", "response": answer})
    return _events([{**event, "sequence_number": number} for number, event in enumerate(events)], named=True)


STREAMS: Mapping[str, Callable[[Body], Iterator[str]]] = {
    "anthropic": _anthropic_stream,
    "deepseek": _chat_stream,
    "chat": _chat_stream,
    "openai": _openai_stream,
    "gemini": lambda answer: _events([answer]),
    "google": _chat_stream,
}
