"""The rows of an episode: one row for each call that returned.

The columns are those of `COLUMNS`. If a call produced a candidate, its row has the candidate's index in `candidate` and
the answer in `answer`; other rows (a sampled verdict, a call of an unfinished step) have null there. Unknown is null.
`signals` has the step's signals and, under "replay", the data for an exact replay of the call: purpose, sample, finish
reason, tokens with log-probs.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from cascade.errors import UsageError, refused_for_good
from cascade.identity import hash_of, question_id
from cascade.money import PLAIN_TIERS, PriceTable
from cascade.policies.signals import purposes_of
from cascade.text import now_utc
from cascade.types import ACT, Answer, Call, Completion, Question, Request, Step, Token, Usage

if TYPE_CHECKING:
    from cascade.chat import ChatRequest

SCHEMA_VERSION = 5
"""The version of the columns. Rows of another version are refused (`sql.native_rows`)."""
CARRIED_OVER = "carried over: no call"
"""The `cost_source` of an answer that is repeated in a later round without a call, since its run had ended."""
TOLD = "told"
"""Key in a row's `signals["replay"]`: a model was told during its run whether it was right."""
UNJUDGED = "an episode with an answer that is not known to be right or wrong"
"""Why a table that needs labels leaves an episode out."""
FAILED = "failed"
"""Key under "replay": step, role and error of each failed call of the episode."""
CUT = "cut off"
"""The walk of a call that was cut off: its cost counts, but it is not a step."""
WRITTEN = "written_input_tokens"
"""Key under "replay": how many tokens of the prompt the provider wrote to its cache."""
HOUR = "hour_input_tokens"
"""Key under "replay": how many of the `WRITTEN` tokens the provider keeps for an hour, if it said so."""
TIER = "service_tier"
"""Key under "replay": the service tier at which the call is charged, if it is not a plain one."""
ECHOED = "echoed"
"""Key under "replay": the model's name in the reply."""
FINGERPRINT = "fingerprint"
"""Key under "replay": the build of the model, as the provider reported it."""
DEPLOYMENT = "deployment"
"""Key under "replay": which of the model's deployments answered, if it has several."""
CHAT = "chat"
"""Key under "replay": a chat request was answered; `context` is then the request, and `text` the message, as JSON."""
CONTENT_COLUMNS = ("user", "question", "context", "gold", "answer", "text")
"""The columns with texts of users and models; the tokens in `signals` are such texts, too."""
IMPOSSIBLE_LOGPROB = -1e9
"""Stands for a log-prob of −inf in files."""
COLUMNS = (
    "episode_id", "walk", "dataset", "split", "group", "segment", "user", "question", "context", "gold",
    "step", "parents", "horizon", "candidate", "source", "model", "answer", "text", "correct", "confidence", "kept",
    "signals", "input_tokens", "cached_input_tokens", "output_tokens", "reasoning_tokens",
    "cost_nano_usd", "cost_source", "latency_ms", "created_at", "schema_version",
)  # fmt: skip


def is_told(row: Mapping[str, Any]) -> bool:
    """Return whether a row belongs to a run that continued until a model was told that it was right.

    The length and cost of such a run, and its repeated answers, reveal the truth, which is not known live.
    """
    return row["cost_source"] == CARRIED_OVER or bool(replay_of(row).get(TOLD))


def refused_steps(row: Mapping[str, Any]) -> frozenset[int]:
    """Return the steps of the row's episode whose call the model refused; empty if any call failed in another way.

    A server that is down affects all questions alike. A model that refuses requests selects among the questions:
    leaving these out would bias the sample.
    """
    failed = replay_of(row).get(FAILED)
    try:
        refused = [(int(step), refused_for_good(name)) for step, _, name in failed or ()]
    except (TypeError, ValueError):
        return frozenset()
    return frozenset(step for step, for_good in refused) if all(for_good for _, for_good in refused) else frozenset()


def replay_of(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the values of a row under "replay"; an empty mapping if there are none."""
    replay = (row.get("signals") or {}).get("replay")
    return replay if isinstance(replay, Mapping) else {}


def answers(row: Mapping[str, Any]) -> bool:
    """Return whether a row has an answer, or whether one was right; a user's own log may lack `candidate`.

    >>> answers({"candidate": None, "answer": None, "correct": True})
    True
    """
    return not (row["candidate"] is None and row["answer"] is None and row["correct"] is None)


def replied(row: Mapping[str, Any]) -> bool:
    """Return whether a model's reply is logged: by its text, or as a call that cascade itself logged."""
    return row["text"] is not None or "finish_reason" in replay_of(row)


def chat_of(row: Mapping[str, Any]) -> ChatRequest | None:
    """Return the chat request that a row's model answered; None if there is none or it is unknown."""
    return request_of(row["context"]) if row["context"] and replay_of(row).get(CHAT) else None


@lru_cache(maxsize=256)  # the rows of a request are mostly consecutive
def request_of(context: str) -> ChatRequest | None:
    """Return the chat request in a context, as JSON; None if it has none."""
    from cascade.chat import ChatRequest  # only for chat requests

    try:
        body = json.loads(context)
        return ChatRequest.from_openai(body) if isinstance(body, dict) else None
    except (ValueError, UsageError):
        return None


def request_digest(request: Request) -> str:
    """Return a digest of a call: of everything that is sent, and the sample's number. Equal digests share one answer.

    If the answer is random (a temperature, and no seed) the digest includes the step, since a later step samples again.
    """
    content = request.messages if request.chat is None else request.chat.canonical
    sent = (request.model, content, request.max_tokens, request.temperature, request.top_logprobs)
    drawn = (request.step,) if request.temperature > 0 and request.seed is None else ()
    own = (request.sends,) if request.sends else ()
    # The None keeps the digests equal to those in existing logs.
    text = json.dumps([*sent, request.seed, None, request.sample, *drawn, *own], ensure_ascii=False, default=str)
    return hash_of(text)


def rows(answer: Answer, *, horizon: int | None = None, **columns: Any) -> Iterator[dict[str, Any]]:
    """Yield an answer's rows, one per call that returned, in the order of the calls.

    A call that was cut off has a row, too, which records what it may have cost (`CUT`).

    Args:
        answer: the answer, with its steps.
        horizon: T, how many steps the question could have taken.
        columns: values that the answer does not have: `dataset`, `split`, `group`, `segment`, `user`, `gold`, `walk`,
            `episode_id`. Segment and user are by default the question's own.
    """
    head = _head(answer.question) | {"horizon": horizon} | columns
    failures = [call for call in answer.calls if call.error is not None]
    failed = [[call.request.step, call.request.role, call.failed_with] for call in failures]
    placed = [(step, call) for step in answer.steps for call in step.calls]
    placed += [(_unfinished(call), call) for call in answer.loose_calls]
    for step, call in placed:
        if call.completion is not None:
            row: dict[str, Any] = head | _call_columns(step, call, call.completion)
            if failed:
                row["signals"]["replay"][FAILED] = failed
            yield row
    nothing, cut = Completion("", "cancelled", Usage(None, None)), {"walk": CUT, "text": None, "latency_ms": None}
    yield from (
        head | _call_columns(_unfinished(call), call, nothing) | cut for call in answer.loose_calls if call.is_cut
    )


def _head(question: Question) -> dict[str, Any]:
    """Return a row with every column: those about the question are filled in, the others are null."""
    return dict.fromkeys(COLUMNS) | {
        "episode_id": question_id(question.text, question.context),
        "question": question.text,
        "context": question.context,
        "segment": question.segment,
        "user": None if question.chat is None else question.chat.user,
        "created_at": now_utc(),
        "schema_version": SCHEMA_VERSION,
    }


def call_row(call: Call, completion: Completion) -> dict[str, Any]:
    """Return the row of a single call whose step does not exist yet: it has no candidate, truth or step's signals."""
    return _head(call.request.question) | _call_columns(_unfinished(call), call, completion)


def _unfinished(call: Call) -> Step:
    return Step(call.request.step, (), {})


def _call_columns(step: Step, call: Call, completion: Completion) -> dict[str, Any]:
    candidate, usage, message = _candidate_of(step, call), completion.usage, completion.message
    unpriced = "no price" if call.cost_bound_nano_usd is None else "usage estimated"
    return {
        "step": step.number,
        "parents": None if step.parents is None else list(step.parents),
        "candidate": candidate,
        "source": call.request.role,
        "model": call.request.model,
        "answer": None if candidate is None else step.candidates[candidate].text,
        "text": completion.text if message is None else json.dumps(message, ensure_ascii=False),
        "confidence": None if candidate is None else step.candidates[candidate].confidence,
        "kept": None if candidate is None or step.decision is None else candidate in step.decision.keep,
        "signals": _signals(step, call, completion),
        "input_tokens": usage.input_tokens,
        "cached_input_tokens": usage.cached_input_tokens,
        "output_tokens": usage.output_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
        "cost_nano_usd": call.cost_nano_usd,
        "cost_source": "price table" if call.cost_nano_usd is not None else unpriced,
        "latency_ms": round(completion.latency_s * 1000, 3),
    }


_DECIDING, _JUDGING = {ACT, *purposes_of("decision")}, purposes_of("verdict")


def _candidate_of(step: Step, call: Call) -> int | None:
    """Return the index of the candidate that a call produced: its role's, if this is the call's first sample.

    A call that decides what to do next produced none: its model's answer, if there is one, came from another call. The
    same is true of a verdict on a chat in a round of base and guide; a judge in its own step offers the answer again.
    """
    in_round = call.request.question.chat is not None and step.parents is None
    if call.request.sample or call.request.purpose in (_DECIDING | _JUDGING if in_round else _DECIDING):
        return None
    for index, candidate in enumerate(step.candidates):
        if candidate.source == call.request.role:
            return index
    return None


def _signals(step: Step, call: Call, completion: Completion) -> dict[str, Any]:
    from cascade.budget.charges import asked_tier  # only where rows are written

    tokens = None if completion.tokens is None else [token_row(token) for token in completion.tokens]
    replay: dict[str, Any] = {
        "purpose": call.request.purpose,
        "sample": call.request.sample,
        "finish_reason": completion.finish_reason,
        "request": request_digest(call.request),
    }
    replay |= {"usage_estimated": completion.usage.estimated, "tokens": tokens}
    if completion.message is not None:
        replay[CHAT] = True
    if completion.model is not None:
        replay[ECHOED] = completion.model
    if completion.usage.written_input_tokens:
        replay[WRITTEN] = completion.usage.written_input_tokens
        replay |= {} if (hour := completion.usage.hour_input_tokens) is None else {HOUR: hour}
    tier = asked_tier(call.request) if completion.tier is None else completion.tier
    if tier is not None and tier not in PLAIN_TIERS:
        replay[TIER] = tier
    if completion.fingerprint is not None:
        replay[FINGERPRINT] = completion.fingerprint
    if completion.deployment is not None:
        replay[DEPLOYMENT] = completion.deployment
    if completion.maybe_billed:
        replay["maybe_billed"] = completion.maybe_billed
    if call.cost_nano_usd is None and call.cost_bound_nano_usd is not None:
        replay["cost_bound_nano_usd"] = call.cost_bound_nano_usd
    return {**step.signals, "replay": replay}


def token_row(token: Token) -> list[Any]:
    """Return a token as a row stores it."""
    row = [token.text, _finite(token.logprob)]
    return [*row, [[text, _finite(value)] for text, value in token.top]] if token.top else row


def _finite(value: float | None) -> float | None:
    """Return a log-prob as a JSON number: JSON has no −inf."""
    return None if value is None else max(value, IMPOSSIBLE_LOGPROB)


def usage_in(row: Mapping[str, Any], hour: int | None = None) -> Usage:
    """Return the usage of a row's call; `hour` is the number of tokens cached for an hour, if the row has none.

    It is 0 for a call whose cost is known, since its cache writes were then of one kind.
    """
    counts = row["input_tokens"], row["output_tokens"], row["cached_input_tokens"], row["reasoning_tokens"]
    replay = replay_of(row)
    return Usage(*counts, written_input_tokens=replay.get(WRITTEN), hour_input_tokens=replay.get(HOUR, hour))


def uncached_nano_usd(row: Mapping[str, Any]) -> int | None:
    """Return what a row's call would have cost without a prompt cache; None if unknown.

    The price is the bundled table's, provided it yields the recorded cost; a user's own price is not in a log.
    """
    cost, cached = row["cost_nano_usd"], row["cached_input_tokens"]
    if not cached or cost is None:
        return None if cost is None else int(cost)
    price, usage = PriceTable.bundled().price(row["model"] or ""), usage_in(row, hour=0)
    if price is None or price.cost_nano_usd(usage) != cost:
        return None
    return price.cost_nano_usd(usage._replace(cached_input_tokens=0, written_input_tokens=0))


def completion_of(row: Mapping[str, Any]) -> Completion:
    """Return the completion that a row records: the inverse of `rows`.

    Raises:
        KeyError, TypeError, ValueError: the row is not of this form.
    """
    from cascade.chat import output_text
    from cascade.chat_faults import message_faults

    replay = row["signals"]["replay"]
    tokens = replay.get("tokens")
    message = json.loads(row["text"]) if replay.get(CHAT) else None
    chat = None if message is None else chat_of(row)
    return Completion(
        text=row["text"] if message is None else output_text(message),
        finish_reason=replay["finish_reason"],
        usage=usage_in(row)._replace(estimated=replay["usage_estimated"]),
        tokens=None if tokens is None else tuple([_token_of(token) for token in tokens]),
        model=replay.get(ECHOED),
        latency_s=(row["latency_ms"] or 0.0) / 1000,
        maybe_billed=replay.get("maybe_billed", 0),
        message=message,
        faults=() if chat is None or message is None else message_faults(chat, message, replay["finish_reason"]),
    )


def _token_of(row: list[Any]) -> Token:
    text, logprob, *top = row
    alternatives = tuple([(alternative, _infinite(value)) for alternative, value in (top[0] if top else ())])
    return Token(text, None if logprob is None else _infinite(logprob), alternatives)


def _infinite(value: float) -> float:
    return -math.inf if value <= IMPOSSIBLE_LOGPROB else value


# --- texts that are not kept ---


def hashed(text: str) -> str:
    """Return the hash that replaces a text that is not kept; equal texts have equal hashes.

    >>> hashed("Danube")[:18]
    'sha256:65bba1ba433'
    """
    return f"sha256:{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()}"


_HASHED = re.compile(r"sha256:[0-9a-f]{64}")


def is_hashed(text: str) -> bool:
    """Return whether a text is a hash made by `hashed`.

    >>> is_hashed(hashed("Danube")), is_hashed("sha256 of what?")
    (True, False)
    """
    return text.startswith("sha256:") and _HASHED.fullmatch(text) is not None


PLACES = 3


@dataclass(slots=True)
class Dropped:
    """Counts of what was left out while a log was read (F54 to F57), by reason, with the first locations of each.

    Attributes:
        rows: how many rows are missing, by reason.
        notes: how often a row was kept although it had an invalid value, by reason; the value became null, never 0.
        first: the first three locations of each reason to drop a row, as "log.jsonl:17: not a JSON object".
        noted: the first three locations of each note.
    """

    rows: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    first: list[str] = field(default_factory=list)
    noted: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        """The number of rows that were dropped."""
        return self.rows.total()

    def drop(self, reason: str, location: str, count: int = 1) -> None:
        """Count rows that are left out."""
        if self.rows[reason] < PLACES:
            self.first.append(f"{location}: {reason}")
        self.rows[reason] += count

    def note(self, reason: str, location: str, count: int = 1) -> None:
        """Count rows that are kept although something is odd about them."""
        if self.notes[reason] < PLACES:
            self.noted.append(f"{location}: {reason}")
        self.notes[reason] += count

    def describe(self) -> str:
        """Return the counts in one line; an empty text if nothing was dropped or noted.

        >>> dropped = Dropped()
        >>> dropped.drop("not a JSON object", "log.jsonl:17")
        >>> dropped.describe()
        '1 left out: not a JSON object (1). First: log.jsonl:17'
        """
        clauses = []
        if self.rows:
            clauses.append(f"{self.count:,} left out: {_counted(self.rows)}")
        if self.notes:
            clauses.append(f"noted: {_counted(self.notes)}")
        if not clauses:
            return ""
        places, reasons = [*self.first, *self.noted], [*self.rows, *self.notes]
        of_reason = [[place for place in places if place.endswith(f": {reason}")] for reason in reasons]
        listed = dict.fromkeys(place for at in range(PLACES) for own in of_reason for place in own[at : at + 1])
        known = f": {reasons[0]}" if len(reasons) == 1 else ""
        return f"{'; '.join(clauses)}. First: {'; '.join([place.removesuffix(known) for place in [*listed][:PLACES]])}"


def _counted(counts: Counter[str]) -> str:
    return ", ".join([f"{reason} ({count:,})" for reason, count in counts.most_common()])
