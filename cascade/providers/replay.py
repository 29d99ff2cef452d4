"""Answers from a log of episodes: a model's logged reply is repeated exactly, at no cost.

A call is found by its question, step, role, purpose and sample; among several such calls, made by several walks, it is
found by the digest of the request. A call that was never made cannot be replayed and is an error.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cascade.episodes.opening import rows_of
from cascade.errors import BadRequestError, UsageError
from cascade.identity import question_id
from cascade.logs.schema import CHAT, ECHOED, HOUR, IMPOSSIBLE_LOGPROB, WRITTEN, request_digest
from cascade.providers.base import Payload, Provider
from cascade.providers.registry import ProviderSettings
from cascade.types import Request, Usage

_Key = tuple[str, int, str, str, int]


@dataclass(frozen=True, slots=True)
class Replay:
    """Answers from logged rows. `calls`: the replies, by place in the episode and digest (None if unknown)."""

    calls: Mapping[_Key, Mapping[str | None, Payload]]

    @classmethod
    def open(cls, path: str) -> Replay:
        """Read a log: a file, or the URL of a store.

        Raises:
            UsageError: the log is missing, or is not a log of episodes.
            MissingExtraError: a package that is needed to read it is not installed.
        """
        return cls.of(rows_of(path), path)

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]], source: str = "the log") -> Replay:
        """Index rows in the form of `logs.schema.rows`. Rows with no question, or no text and no answer, are skipped.

        Raises:
            UsageError: a row has another form, or all rows were skipped.
        """
        calls: dict[_Key, dict[str | None, Payload]] = {}
        number = 0
        for number, row in enumerate(rows, 1):
            if row.get("question") is None or _reply_text(row) is None:
                continue
            try:
                key, digest, payload = _indexed(row)
            except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
                problem = f"{type(error).__name__} {error}"
                raise UsageError(f"Row {number} of {source} is not a row of an episode log: {problem}") from None
            calls.setdefault(key, {}).setdefault(digest, payload)
        if number and not calls:
            raise UsageError(f"No row of {source} has both a question and a model's text or answer to replay.")
        return cls(calls)

    async def complete(self, request: Request, timeout_s: float) -> Payload:  # noqa: ARG002 - it answers at once
        """Return the logged reply to this call."""
        question = question_id(request.question.text, request.question.context)
        key = (question, request.step, request.role, request.purpose, request.sample)
        replies = self.calls.get(key, {})
        payload = replies.get(request_digest(request))
        if payload is None and (None in replies or request.top_logprobs is None):
            # A request without log-probs, perhaps because the model gave none before, differs from the logged one.
            payload = next(iter(replies.values()), None)
        if payload is None and not replies:
            payload = self._at_another_step(request, question)
        if payload is None:
            call = f"call of the {request.role} ({request.purpose}) at step {request.step} of this question"
            differs = "with this prompt, model and settings" if replies else "with this text and context"
            raise BadRequestError(f"The log has no {call} {differs}.", model=request.model)
        # A row without the server's name for the model has an entry's id instead, which no server would send.
        return {**payload, "model": request.wire_model} if payload["model"] == request.model else payload

    def _at_another_step(self, request: Request, question: str) -> Payload | None:
        """Return the same call logged at a later step, since a policy may leave out steps of a ladder."""
        rest, digest = (request.role, request.purpose, request.sample), request_digest(request)
        later = [self.calls.get((question, step, *rest), {}) for step in range(request.step + 1, _MOST_STEPS + 1)]
        payloads = [replies.get(digest, replies.get(None)) for replies in later]  # cascade's own logs have digests
        return next((payload for payload in payloads if payload is not None), None)

    async def close(self) -> None:
        """Do nothing: there is nothing to release."""


_MOST_STEPS = 100
"""The most steps that a configuration may have."""


def _indexed(row: Mapping[str, Any]) -> tuple[_Key, str | None, Payload]:
    signals = row["signals"] or {}
    replay = signals.get("replay") or {}
    question = question_id(row["question"], row.get("context"))
    key = (question, row["step"], row["source"], replay.get("purpose", "answer"), replay.get("sample", 0))
    digest = replay.get("request")
    return key, digest if isinstance(digest, str) else None, _payload(row, replay)


def _reply_text(row: Mapping[str, Any]) -> str | None:
    """Return a model's reply, or the answer if an importer knew only that."""
    text = row.get("text")
    return row.get("answer") if text is None else text


def _payload(row: Mapping[str, Any], replay: Mapping[str, Any]) -> Payload:
    text, tokens = _reply_text(row), replay.get("tokens")
    choice: dict[str, Any] = {
        "index": 0,
        "message": json.loads(text or "") if replay.get(CHAT) else {"role": "assistant", "content": text},
        "finish_reason": replay.get("finish_reason", "stop"),
    }
    mean = (row["signals"] or {}).get("reply_mean_logprob")
    if not tokens and mean is not None:  # a table has only the mean: a single token has the same
        tokens = [[text, mean]]
    if tokens:
        choice["logprobs"] = {"content": [_token(token) for token in tokens]}
    written = Usage(None, None, written_input_tokens=replay.get(WRITTEN), hour_input_tokens=replay.get(HOUR))
    usage: dict[str, Any] | None = {
        "prompt_tokens": row["input_tokens"],
        "completion_tokens": row["output_tokens"],
        "prompt_tokens_details": {
            "cached_tokens": row.get("cached_input_tokens"),
            "cache_write_tokens": replay.get(WRITTEN),
            "cache_creation_token_details": written.writes,
        },
        "completion_tokens_details": {"reasoning_tokens": row.get("reasoning_tokens")},
    }
    if replay.get("usage_estimated"):
        usage = None
    return {"choices": [choice], "usage": usage, "model": replay.get(ECHOED) or row["model"]}


def _token(token: list[Any]) -> dict[str, Any]:
    top = token[2] if len(token) > 2 else []
    alternatives = [{"token": text, "logprob": _logprob(value)} for text, value in top]
    return {"token": token[0], "logprob": _logprob(token[1]), "top_logprobs": alternatives}


def _logprob(value: float | None) -> float | None:
    return float("-inf") if value is not None and value <= IMPOSSIBLE_LOGPROB else value


def create(settings: ProviderSettings) -> Replay:
    """Return the provider with its log read."""
    return Replay.open(str(settings.options["path"]))


@dataclass(slots=True)
class Memo:
    """Makes each call once: repeats the answer to an identical call (`schema.request_digest`), or else asks `inner`.

    A failed call is made again. Answers are kept until `close`, which also closes `inner`. Two tasks that send the
    same call at the same time may both ask; the first answer is kept.
    """

    inner: Provider
    _answers: dict[str, Payload] = field(default_factory=dict, repr=False)

    async def complete(self, request: Request, timeout_s: float) -> Payload:
        """Answer a request, from memory if an identical one was sent before."""
        key = request_digest(request)
        if key not in self._answers:
            self._answers.setdefault(key, await self.inner.complete(request, timeout_s))
        return self._answers[key]

    async def close(self) -> None:
        """Forget the answers and close the provider."""
        self._answers.clear()
        await self.inner.close()
