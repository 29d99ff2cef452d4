"""A request with tools goes through litellm as it goes through plain HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from cascade.chat import ChatRequest, output_text
from cascade.providers.guard import Guard
from cascade.providers.litellm import LiteLLM
from cascade.providers.openai_http import OpenAIHTTP
from cascade.providers.registry import Endpoint
from cascade.resilience.portal import Deadline
from unit.made import request

pytestmark = pytest.mark.litellm
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"n": 1}'}}
MESSAGES: dict[str, dict[str, Any]] = {
    "a tool call": {"role": "assistant", "content": None, "tool_calls": [CALL]},
    "a tool call that is written as text": {"role": "assistant", "content": '{"name": "add", "arguments": {"n": 1}}'},
}


@pytest.fixture(params=MESSAGES)
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    """Return the address of a server that answers every request with one message."""
    choice = {"index": 0, "message": MESSAGES[request.param], "finish_reason": "stop"}
    body = json.dumps(
        {
            "id": "x",
            "object": "chat.completion",
            "created": 1,
            "model": "small",
            "choices": [choice],
            "usage": {"prompt_tokens": 20, "completion_tokens": 9, "total_tokens": 29},
        }
    ).encode()

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


async def test_a_request_with_tools_gives_the_same_calls_and_counts(address):
    asked = request(chat=ChatRequest([{"role": "user", "content": "Add."}], {"tools": TOOLS}), messages=())
    found = []
    for provider in (OpenAIHTTP({"": Endpoint(address)}), LiteLLM({"": Endpoint(address)})):
        guard = Guard(provider)
        made = await guard.complete(asked, Deadline.after(60.0))
        await guard.close()
        found.append((output_text(made.message or {}), made.usage[:2], made.faults))
    assert found == [('[{"arguments":{"n":1},"name":"add"}]', (20, 9), ())] * 2
