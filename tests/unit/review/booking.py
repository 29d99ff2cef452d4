"""Logs of chat requests with outputs of two models, for tests of reviews."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cascade.chat import ChatRequest, output_text
from cascade.identity import question_id
from cascade.logs.schema import CHAT, COLUMNS
from cascade.types import GUIDE_ONLY, Question

TOOL = {
    "type": "function",
    "function": {"name": "book", "parameters": {"type": "object", "properties": {"room": {"type": "integer"}}}},
}


def call(room: object, *, spelled: str | None = None, name: str = "book") -> dict[str, Any]:
    """Return a message that calls the tool."""
    arguments = json.dumps({"room": room}) if spelled is None else spelled
    function = {"name": name, "arguments": arguments}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "x1", "type": "function", "function": function}],
    }


def episode(
    number: int, base: dict[str, Any], guide: dict[str, Any], *, text: str | None = None
) -> list[dict[str, Any]]:
    """Return the rows of a request that a cheap and a dear model answered, the dear one outright too."""
    content = text if text is not None else f"Book room {number} for the meeting about item {number}."
    request = ChatRequest([{"role": "user", "content": content}], {"tools": [TOOL]})
    question = Question.of_chat(request)
    rows = []
    for walk, step, model, message, cost in (
        (None, 1, "cheap", base, 10),
        (None, 2, "dear", guide, 100),
        (GUIDE_ONLY, 1, "dear", guide, 100),
    ):
        row: dict[str, Any] = dict.fromkeys(COLUMNS)
        row |= {
            "episode_id": question_id(question.text, question.context),
            "walk": walk,
            "dataset": "booking",
            "question": question.text,
            "context": question.context,
            "step": step,
            "horizon": 1 if walk else 2,
            "candidate": 0,
            "source": model,
            "model": model,
            "answer": output_text(message),
            "text": json.dumps(message),
            "kept": True if walk else None,
            "signals": {"reply_mean_logprob": -0.01 * (number % 17), "replay": {CHAT: True}},
            "cost_nano_usd": cost,
            "schema_version": 5,
        }
        rows.append(row)
    return rows


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write rows as a log."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def booking_log(path: Path, pairs: int, equal: int = 5) -> Path:
    """Write a log in which the models differ on so many requests, and agree on `equal` others."""
    rows = [row for number in range(pairs) for row in episode(number, call(number + 1_000), call(number))]
    for number in range(pairs, pairs + equal):
        rows += episode(number, call(number, spelled=f'{{ "room" : {number}.0 }}'), call(number))
    return write(path, rows)
