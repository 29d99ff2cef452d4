"""Answers from a log of episodes: what a model said then, it says again, to the letter and for no money.

A call is found by its question, step, role, purpose and sample, and of several such, as several walks make them, by the
digest of what was sent. One that was never made cannot be replayed and is an error, not a guess.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cascade.episodes.files import read_rows
from cascade.episodes.schema import IMPOSSIBLE_LOGPROB, question_id, request_digest
from cascade.errors import BadRequestError, UsageError
from cascade.providers.base import Payload
from cascade.types import Request

_Key = tuple[str, int, str, str, int]


@dataclass(frozen=True, slots=True)
class Replay:
    """Answers from logged rows. `calls`: what was said, by place in the episode and digest (None where unknown)."""

    calls: Mapping[_Key, Mapping[str | None, Payload]]

    @classmethod
    def open(cls, path: str) -> Replay:
        """Read a log: a file or the URL of a store, as `episodes.files.read_rows` takes it.

        Raises:
            UsageError: it is missing, or not a log of episodes.
            MissingExtraError: a package that reads it is not installed.
        """
        return cls.of(read_rows(path), path)

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]], source: str = "the log") -> Replay:
        """Index rows as `episodes.schema.rows` makes them. Rows without the question or the text are passed over.

        Raises:
            UsageError: a row is not of that form, or none holds a text.
        """
        calls: dict[_Key, dict[str | None, Payload]] = {}
        number = 0
        for number, row in enumerate(rows, 1):
            if row.get("text") is None or row.get("question") is None:
                continue
            try:
                key, digest, payload = _indexed(row)
            except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
                said = f"{type(error).__name__} {error}"
                raise UsageError(f"Row {number} of {source} is not a row of an episode log: {said}") from None
            calls.setdefault(key, {}).setdefault(digest, payload)
        if number and not calls:
            raise UsageError(
                f"No row of {source} holds both a question and what a model said to it: nothing to replay."
            )
        return cls(calls)

    def complete(self, request: Request, timeout_s: float) -> Payload:  # noqa: ARG002 - it answers at once
        """Return what was logged for this call."""
        asked = question_id(request.question.text, request.question.context)
        key = (asked, request.step, request.role, request.purpose, request.sample)
        found = self.calls.get(key, {})
        payload = found.get(request_digest(request))
        if payload is None and (None in found or request.top_logprobs is None):
            # Asked without log-probs, perhaps because the model gave none before, it is not what is on record.
            payload = next(iter(found.values()), None)
        if payload is None:
            raise BadRequestError(
                f"The log holds no call of the {request.role} ({request.purpose}) at step {request.step} "
                f"of this question: it was not made when the log was written, or with other settings.",
                model=request.model,
            )
        return payload

    async def acomplete(self, request: Request, timeout_s: float) -> Payload:
        """Return what was logged for this call."""
        return self.complete(request, timeout_s)

    def close(self) -> None:
        """Nothing to give back."""


def _indexed(row: Mapping[str, Any]) -> tuple[_Key, str | None, Payload]:
    signals = row["signals"] or {}
    replay = signals.get("replay") or {}
    asked = question_id(row["question"], row.get("context"))
    key = (asked, row["step"], row["source"], replay.get("purpose", "answer"), replay.get("sample", 0))
    digest = replay.get("request")
    return key, digest if isinstance(digest, str) else None, _payload(row, replay)


def _payload(row: Mapping[str, Any], replay: Mapping[str, Any]) -> Payload:
    choice: dict[str, Any] = {
        "index": 0,
        "message": {"role": "assistant", "content": row["text"]},
        "finish_reason": replay.get("finish_reason", "stop"),
    }
    if replay.get("tokens"):
        choice["logprobs"] = {"content": [_token(token) for token in replay["tokens"]]}
    usage: dict[str, Any] | None = {
        "prompt_tokens": row["input_tokens"],
        "completion_tokens": row["output_tokens"],
        "prompt_tokens_details": {"cached_tokens": row.get("cached_input_tokens")},
        "completion_tokens_details": {"reasoning_tokens": row.get("reasoning_tokens")},
    }
    if replay.get("usage_estimated"):
        usage = None
    return {"choices": [choice], "usage": usage, "model": row["model"]}


def _token(token: list[Any]) -> dict[str, Any]:
    top = token[2] if len(token) > 2 else []
    alternatives = [{"token": text, "logprob": _logprob(value)} for text, value in top]
    return {"token": token[0], "logprob": _logprob(token[1]), "top_logprobs": alternatives}


def _logprob(value: float | None) -> float | None:
    return float("-inf") if value is not None and value <= IMPOSSIBLE_LOGPROB else value
