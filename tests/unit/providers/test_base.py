"""The body that goes over the wire holds what the request says and nothing of the question's record."""

from __future__ import annotations

import json

from cascade.providers.fields import sendable, wire_body
from cascade.types import Message
from unit.made import request


def test_a_plain_request_has_only_what_every_server_reads() -> None:
    assert wire_body(request(), "small") == {
        "model": "small",
        "messages": [{"role": "user", "content": "Which river runs through Vienna?"}],
        "max_tokens": 64,
        "temperature": 0.0,
    }


def test_what_is_wanted_besides_is_added() -> None:
    asked = request(top_logprobs=5, seed=0)
    more = {name: value for name, value in wire_body(asked, "m").items() if name not in wire_body(request(), "m")}
    assert more == {"logprobs": True, "top_logprobs": 5, "seed": 0}


def test_any_text_can_be_sent_as_utf8() -> None:
    assert sendable("naïve 🙂") == sendable("naïve \ud83d\ude42") == "naïve 🙂"
    body = wire_body(request(messages=(Message("user", "Da\ud800nube"),)), "small")
    assert json.dumps(body, ensure_ascii=False).encode("utf-8")
    assert body["messages"][0]["content"] == "Da?nube"
