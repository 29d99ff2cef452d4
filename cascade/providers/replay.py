"""Answers from a log of episodes: what a model said then, it says again, to the letter and for no money.

A call is found by its question, step, role, purpose and sample. One that was never made cannot be replayed and is an
error, not a guess.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cascade.episodes.files import read_jsonl
from cascade.episodes.schema import question_id
from cascade.errors import BadRequestError, MissingExtraError
from cascade.providers.base import Payload
from cascade.types import Request

_Key = tuple[str, int, str, str, int]


@dataclass(frozen=True, slots=True)
class Replay:
    """Answers from logged rows."""

    calls: Mapping[_Key, Payload]

    @classmethod
    def open(cls, path: str) -> Replay:
        """Read a log: JSON lines, or Parquet where pyarrow is installed."""
        return cls.of(_parquet(path) if path.endswith(".parquet") else read_jsonl(Path(path)))

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]]) -> Replay:
        """Index rows as `episodes.schema.rows` makes them."""
        calls: dict[_Key, Payload] = {}
        for row in rows:
            signals = row["signals"] or {}
            key = (
                question_id(row["question"], row.get("context")),
                row["step"],
                row["source"],
                signals.get("purpose", "answer"),
                signals.get("sample", 0),
            )
            calls.setdefault(key, _payload(row, signals))
        return cls(calls)

    def complete(self, request: Request, timeout_s: float) -> Payload:  # noqa: ARG002 - it answers at once
        """Return what was logged for this call."""
        asked = question_id(request.question.text, request.question.context)
        key = (asked, request.step, request.role, request.purpose, request.sample)
        if key not in self.calls:
            raise BadRequestError(
                f"The log holds no call of the {request.role} ({request.purpose}) at step {request.step} "
                f"of this question: it was not made when the log was written.",
                model=request.model,
            )
        return self.calls[key]

    async def acomplete(self, request: Request, timeout_s: float) -> Payload:
        """Return what was logged for this call."""
        return self.complete(request, timeout_s)

    def close(self) -> None:
        """Nothing to give back."""


def _payload(row: Mapping[str, Any], signals: Mapping[str, Any]) -> Payload:
    choice: dict[str, Any] = {
        "index": 0,
        "message": {"role": "assistant", "content": row["text"]},
        "finish_reason": signals.get("finish_reason", "stop"),
    }
    if signals.get("tokens"):
        choice["logprobs"] = {"content": [_token(token) for token in signals["tokens"]]}
    usage: dict[str, Any] | None = {
        "prompt_tokens": row["input_tokens"],
        "completion_tokens": row["output_tokens"],
        "prompt_tokens_details": {"cached_tokens": row.get("cached_input_tokens")},
        "completion_tokens_details": {"reasoning_tokens": row.get("reasoning_tokens")},
    }
    if signals.get("usage_estimated"):
        usage = None
    return {"choices": [choice], "usage": usage, "model": row["model"]}


def _token(token: list[Any]) -> dict[str, Any]:
    top = token[2] if len(token) > 2 else []
    alternatives = [{"token": text, "logprob": value} for text, value in top]
    return {"token": token[0], "logprob": token[1], "top_logprobs": alternatives}


def _parquet(path: str) -> Iterable[Mapping[str, Any]]:
    try:
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise MissingExtraError("pyarrow", "reading Parquet", extra="fit") from None
    import json

    for row in pyarrow.parquet.read_table(path).to_pylist():
        yield {**row, "signals": json.loads(row["signals"] or "{}")}
