"""The value objects shared by all layers: immutable, picklable, with read-only properties.

A question is answered in a series of paid steps. A `Request` is one call to one model, a `Completion` its checked
reply, a `Call` the record of both with the cost. A `Step` has candidates, signals and the `Decision` made on them. An
`Answer` is the result for the caller. Unknown is always None, never 0.

Small values that are created many times per question are named tuples, the others frozen dataclasses: a frozen
dataclass takes four times as long to create, a fifth of a question's whole overhead (`benchmarks/overhead.py`).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from cascade.errors import UsageError
from cascade.money import Usage as Usage  # noqa: PLC0414 - a price is for a usage, and all values are found here
from cascade.money import total_nano_usd, usd_or_none

if TYPE_CHECKING:
    from cascade.chat import ChatRequest
    from cascade.conformal.certificate import Certificate

Role = Literal["system", "user", "assistant"]

BASE_ONLY, GUIDE_ONLY, LAST_ONLY = "base only", "guide only", "last model only"
"""The names, in logs and answers, of the ways to answer with only one model."""


class Message(NamedTuple):
    """One chat message."""

    role: Role
    content: str


NO_CERTIFICATE = "no certificate: "
"""The beginning of a warning that says why no certificate covers an answer."""
SKIP = "skip"
"""The purpose of a call that is not made; it is recorded with an empty reply and no cost."""
ACT = "act"
"""The purpose of a call that an agent makes on the way to its answer."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question, with an optional context: a text that contains the answer.

    `group` names the questions that belong together (a document, a user, a conversation); a split of a log never
    divides a group. `segment` is a part of the questions that may have a certificate of its own (a tenant, a task, a
    language). `chat` is the application's chat request, if there is one; `text` is then its last user message, and
    `context` the whole request as JSON.
    """

    text: str
    context: str | None = None
    group: str | None = None
    segment: str | None = None
    chat: ChatRequest | None = None

    @classmethod
    def of_chat(cls, request: ChatRequest) -> Question:
        """Return a chat request as a question."""
        text = request.asked_text.strip() or "(a message without text)"
        return cls(text, request.canonical, request.group, request.segment, request)


@dataclass(slots=True)
class Requester:
    """The caller of a call that can outlive it: whether it has left, and the nano-dollars held for the call."""

    gone: bool = False
    held_nano_usd: int = 0


class Request(NamedTuple):
    """One call to one model. It has no key and no address, so it can be logged completely.

    `role` is the model's role in the strategy ("base", "guide", a rung of a ladder) and `purpose` the purpose of the
    call ("answer", "judge", "direct"). Neither is sent. `at_most_once` forbids repeating a call that may have been
    billed, as under a hard cap. `top_logprobs` is the number of alternatives per token to request; None requests no
    log-probs. `sample` numbers repeated calls of the same prompt. With `chat`, the application's own request is sent
    unchanged, and `messages` is empty. `instead_of` is the model that this one replaces because it is down. `without`
    names the fields that cascade would add but the model refuses. `sends` are the fields that the operator sends with
    each call of the entry, including the vendor's name of the model if `model` is the id of one of several entries. A
    call with a `caller` outlives the caller's deadline. `deployment` names the model's deployment to which a try goes.
    """

    model: str
    messages: tuple[Message, ...]
    role: str
    purpose: str
    step: int
    question: Question
    max_tokens: int
    temperature: float = 0.0
    top_logprobs: int | None = None
    seed: int | None = None
    sample: int = 0
    at_most_once: bool = False
    chat: ChatRequest | None = None
    instead_of: str | None = None
    without: tuple[str, ...] = ()
    sends: Mapping[str, Any] = {}
    caller: Requester | None = None
    deployment: str | None = None

    @property
    def wire_model(self) -> str:
        """The vendor's name of the model."""
        return str(self.sends.get("model", self.model))

    @property
    def site(self) -> str:
        """The name of the provider's endpoint that is called: the model's, or "model at deployment"."""
        return self.model if self.deployment is None else f"{self.model} at {self.deployment}"


class Token(NamedTuple):
    """One generated token with its natural log-probability and the alternatives at its position.

    `logprob` is ≤ 0, −inf for an impossible token, and None if the provider's value was not a log-probability.
    """

    text: str
    logprob: float | None
    top: tuple[tuple[str, float], ...] = ()


class Iteration(NamedTuple):
    """One of several runs that a vendor made for one call: its kind, its model (None: the requested one), its usage."""

    kind: str
    model: str | None
    usage: Usage

    def to_anthropic(self) -> dict[str, Any]:
        """Return it in Anthropic's form, with 0 for unknown counts."""
        cached, written = self.usage.cached_input_tokens or 0, self.usage.written_input_tokens or 0
        return {
            "type": self.kind,
            **({} if self.model is None else {"model": self.model}),
            "input_tokens": (self.usage.input_tokens or 0) - cached - written,
            "cache_creation_input_tokens": written,
            "cache_read_input_tokens": cached,
            "cache_creation": self.usage.writes,
            "output_tokens": self.usage.output_tokens or 0,
        }


class Completion(NamedTuple):
    """A provider's checked reply.

    `tokens` is None without log-probs. As reported by the provider, `model` is the model's name, `fingerprint` its
    build, `tier` the service tier, `details` the counts of its usage by kind, and `iterations` the usage of each of
    several runs. `maybe_billed` is the number of earlier failed tries of the call that may still be charged. For a chat
    request, `message` is the assistant's whole message, `text` the same as one text, and `faults` the reasons why it
    should not be served. `shown`: a client already has its text, so it is served despite faults. `deployment` names the
    model's deployment that answered.
    """

    text: str
    finish_reason: str
    usage: Usage
    tokens: tuple[Token, ...] | None = None
    model: str | None = None
    request_id: str | None = None
    latency_s: float = 0.0
    notes: tuple[str, ...] = ()
    maybe_billed: int = 0
    message: Mapping[str, Any] | None = None
    faults: tuple[str, ...] = ()
    shown: bool = False
    fingerprint: str | None = None
    tier: str | None = None
    details: Mapping[str, Mapping[str, int]] = {}
    iterations: tuple[Iteration, ...] = ()
    deployment: str | None = None

    @property
    def truncated(self) -> bool:
        """Whether the text was cut at the token limit."""
        return self.finish_reason == "length"


class Call(NamedTuple):
    """The record of one call: the request, the reply or the error, and the cost.

    `cost_nano_usd` is None if price or usage is unknown; `cost_bound_nano_usd` is then an upper bound, if a price is
    known. `billed` is "yes", "no" or "maybe" (a timed-out call may still be charged). `unpriced` names the part of the
    call without a known price, if the model has one.
    """

    request: Request
    completion: Completion | None
    cost_nano_usd: int | None
    cost_bound_nano_usd: int | None
    billed: str = "yes"
    error: str | None = None
    unpriced: str | None = None

    @property
    def lacks_logprobs(self) -> bool:
        """Whether the reply lacks the requested log-probs."""
        if self.request.top_logprobs is None or self.completion is None:
            return False
        return self.completion.tokens is None and bool(self.completion.text)

    @property
    def is_cut(self) -> bool:
        """Whether the question ended during the call, so that its reply is unknown."""
        return self.completion is None and self.error is None

    @property
    def failed_with(self) -> str:
        """The name of the error with which it failed; "" if it did not fail."""
        return (self.error or "").partition(":")[0]


class Candidate(NamedTuple):
    """One answer that could be returned. `confidence` in [0, 1] is the strategy's own estimate that it is right.

    `message` is the model's whole message, if it answers a chat request.
    """

    text: str
    source: str
    model: str
    confidence: float | None = None
    message: Mapping[str, Any] | None = None


class Decision(NamedTuple):
    """A policy's decision at threshold kappa: which candidates are kept, and whether another step is bought.

    `scores` are in the order of the candidates, and so are `confidences`, in [0, 1] or None for unknown, if the policy
    has its own estimates, which then replace the candidates'. `buy` is the number of the step to buy next, for a policy
    that decides before each call, and `buy_name` its name. `sure` is the probability that the policy need not go on,
    and the one from which on it stops; None if its score is no probability. `Step.reason` puts the decision into words.
    """

    keep: tuple[int, ...]
    proceed: bool
    scores: tuple[float, ...]
    next_score: float
    kappa: float
    confidences: tuple[float | None, ...] | None = None
    buy: int | None = None
    buy_name: str | None = None
    sure: tuple[float, float] | None = None


class Step(NamedTuple):
    """One paid step: its candidates, named signals (None = unknown), calls, and decision.

    `final` marks a step after which none is possible; `audited` a step that was run after the decision to stop, for an
    audit. `warnings` become warnings of the answer. `parents` are the numbers of the steps on which its content
    depends; None for the previous step.
    """

    number: int
    candidates: tuple[Candidate, ...]
    signals: Mapping[str, float | None]
    notes: tuple[str, ...] = ()
    calls: tuple[Call, ...] = ()
    decision: Decision | None = None
    final: bool = False
    audited: bool = False
    warnings: tuple[str, ...] = ()
    parents: tuple[int, ...] | None = None

    @property
    def cost_nano_usd(self) -> int | None:
        """The cost of this step; None if the cost of any of its calls is unknown."""
        return total_nano_usd(call.cost_nano_usd for call in self.calls)

    def confidence(self, index: int) -> float | None:
        """Return the confidence in a candidate: the policy's, or else the strategy's; None if unknown."""
        judged = None if self.decision is None else self.decision.confidences
        return self.candidates[index].confidence if judged is None else judged[index]

    @property
    def reason(self) -> str:
        """Why the walk went on or stopped here, in words."""
        decision = self.decision
        if decision is None:
            return "not decided"
        if self.audited:
            return "run for an audit: nothing is kept"
        sources = " and ".join(self.candidates[index].source for index in decision.keep)
        compared = f"{_compared(decision)}: " if self.candidates else ""  # without an answer no doubt decides
        if decision.proceed:
            onward = "went on" if decision.buy is None else f"asked {decision.buy_name or f'step {decision.buy}'}"
            return f"{compared}{onward}" + (f", keeping {sources}" if sources else "")
        ending = compared if decision.next_score < decision.kappa else "the last step: "  # with an unknown doubt, too
        return ending + (f"served {sources}" if sources else "nothing to serve")


def _compared(decision: Decision) -> str:
    """Return the comparison behind a decision, in words.

    >>> _compared(Decision((), True, (), 0.236, 0.105, sure=(0.79, 0.9)))
    '79.0 % sure, below 90.0 %'
    >>> _compared(Decision((), False, (), float("-inf"), 0.105))
    'nothing is asked after it'
    """
    wants_on = decision.next_score >= decision.kappa
    if decision.next_score != decision.next_score:
        return "doubt unknown"
    if decision.next_score == float("-inf"):
        return "nothing is asked after it"
    if decision.sure is None:
        return f"doubt {decision.next_score:.3g}, {'at least' if wants_on else 'below'} {decision.kappa:.3g}"
    is_sure, needed = (f"{100 * share:.1f} %" for share in decision.sure)
    return f"{is_sure} sure, {'below' if wants_on else 'at least'} {needed}"


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of text by `model` (its name, if known); a message's first has the `thinking` before it, packed."""

    text: str
    role: str
    step: int
    model: str | None = field(default=None, compare=False)
    thinking: str | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one question, with the record of all steps and calls.

    `text` is the best single answer, None if no step gave one. `answers` holds every distinct answer kept, best
    first: the prediction set that a certificate covers. `stopped` is one of "policy" (the policy had enough),
    "horizon" (the last step was reached), "budget", "deadline" (time ran out), "provider error" (in a later step).
    Calls made outside a finished step (an interrupted last one) are in `loose_calls` and in the cost. `audited`: the
    question was drawn for an audit and run to the last step, or as far as providers and the cap allowed; these steps
    are in `steps` and in the cost. `level` is the level of the policy that served, if it has levels.
    """

    question: Question
    text: str | None
    answers: tuple[str, ...]
    steps: tuple[Step, ...] = field(repr=False)
    stopped: str
    latency_s: float
    warnings: tuple[str, ...] = ()
    certificate: Certificate | None = None
    loose_calls: tuple[Call, ...] = field(default=(), repr=False)
    audited: bool = False
    level: str | None = None

    @property
    def served(self) -> tuple[Candidate, Call] | None:
        """The candidate whose text is served, and its call; None if nothing is served."""
        decided = {step.number for step in self.steps if step.decision and step.decision.keep}
        decided |= {judged for step in self.steps if step.number in decided for judged in step.parents or ()}
        for step in self.steps:
            indices = step.decision.keep if step.decision is not None else ()
            for index in indices or range(len(step.candidates) if step.number in decided or not decided else 0):
                candidate = step.candidates[index]
                calls = [
                    call
                    for call in step.calls
                    if call.request.role == candidate.source
                    and call.completion is not None
                    and (candidate.message is None or call.completion.message == candidate.message)
                ]
                if candidate.text == self.text and calls:
                    return candidate._replace(model=calls[-1].request.model), calls[-1]
        return None

    @property
    def uncovered(self) -> str | None:
        """Why no certificate covers the answer; None if one does, or if nothing is promised.

        By default the guide answers such a question (`guarantee.uncovered`).
        """
        reasons = [note.removeprefix(NO_CERTIFICATE) for note in self.warnings if note.startswith(NO_CERTIFICATE)]
        return "; ".join(reasons) or None

    @property
    def message(self) -> Mapping[str, Any] | None:
        """The served model's unchanged message, if a chat request was answered: content, tool calls, refusal."""
        served = self.served
        return None if served is None else served[0].message

    @property
    def tool_calls(self) -> tuple[Mapping[str, Any], ...]:
        """The tool calls of the message served."""
        from cascade.chat import calls_of  # needed only for chat requests

        return () if self.message is None else calls_of(self.message)

    @property
    def parsed(self) -> Any:
        """The parsed value of the served JSON; None if the answer is not JSON.

        >>> Answer(Question("?"), '{"intent": "card_lost"}', (), (), "policy", 0.0).parsed
        {'intent': 'card_lost'}
        """
        from cascade.chat import parsed

        message = self.message
        try:
            return parsed((self.text if message is None else message.get("content")) or "")
        except (ValueError, TypeError):
            return None

    def to_openai(self) -> dict[str, Any]:
        """Return the answer as a chat completion, as OpenAI's client library reads it.

        `usage` is that of the call whose message is served; the cost of the whole cascade is `cost`.

        Raises:
            UsageError: nothing was served.
        """
        served = self.served
        if served is None or self.text is None:
            raise UsageError("Nothing was served, so there is no chat completion: see answer.explain().")
        candidate, call = served
        completion = call.completion
        assert completion is not None  # noqa: S101 - `served` returns only calls with a reply
        message = {"role": "assistant", "content": self.text} if candidate.message is None else dict(candidate.message)
        finish = "tool_calls" if message.get("tool_calls") else completion.finish_reason
        finish = finish if finish in _FINISH_REASONS else "stop"
        chat = self.question.chat
        extras = {"system_fingerprint": completion.fingerprint, "service_tier": completion.tier}
        logprobs = _openai_logprobs(completion) if chat is not None and chat.top_logprobs else None
        return {
            "id": completion.request_id or "chatcmpl-cascade",
            "object": "chat.completion",
            "created": int(datetime.now(UTC).timestamp()),
            "model": completion.model or candidate.model,
            **{name: text for name, text in extras.items() if text is not None},
            "choices": [{"index": 0, "message": message, "finish_reason": finish, "logprobs": logprobs}],
            "usage": _openai_usage(completion),
        }

    @property
    def calls(self) -> tuple[Call, ...]:
        """Every call that was made, in order."""
        return tuple(call for step in self.steps for call in step.calls) + self.loose_calls

    @property
    def cost_nano_usd(self) -> int | None:
        """The exact cost in nano-dollars; None if any call's cost is unknown."""
        return total_nano_usd(call.cost_nano_usd for call in self.calls)

    @property
    def cost(self) -> Decimal | None:
        """The exact cost in USD; None, never 0, if a price or a usage is unknown."""
        return usd_or_none(self.cost_nano_usd)

    @property
    def cost_bound(self) -> Decimal | None:
        """An upper bound on the cost in USD, with an upper estimate of unknown usage; None without a price."""
        return usd_or_none(total_nano_usd(call.cost_bound_nano_usd for call in self.calls))

    @property
    def cost_by_model(self) -> dict[str, Decimal | None]:
        """The exact cost in USD of each model."""
        costs = [(call.request.model, call.cost_nano_usd) for call in self.calls]
        totals = {model: total_nano_usd([cost for name, cost in costs if name == model]) for model, _ in costs}
        return {model: usd_or_none(total) for model, total in totals.items()}

    def explain(self) -> str:
        """Return the path in words, one line per step, ending with the reason for the stop."""
        lines = []
        for step in self.steps:
            candidates = ", ".join(f"{c.source}: {c.text!r}" for c in step.candidates) or "no usable answer"
            lines.append(f"step {step.number}: {candidates} -> {step.reason}")
            lines.extend(f"  note: {note}" for note in step.notes)
        lines.extend(f"warning: {warning}" for warning in self.warnings)
        asked_at = [] if self.level is None else [f"level: {self.level}"]
        return "\n".join([*lines, *asked_at, f"stopped: {self.stopped}"])

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain JSON-ready values (infinite scores as strings)."""
        document: dict[str, Any] = _plain(replace(self, certificate=None))
        if self.certificate is not None:
            document["certificate"] = {**self.certificate.document, "statement": self.certificate.statement()}
        for step, plain in zip(self.steps, document["steps"], strict=True):
            plain["reason"] = step.reason
        for name, cost in (("cost_usd", self.cost), ("cost_bound_usd", self.cost_bound)):
            document[name] = None if cost is None else float(cost)
        document["cost_by_model_usd"] = {m: None if c is None else float(c) for m, c in self.cost_by_model.items()}
        return document


Run: TypeAlias = Generator[Request | Step, Completion | None, Answer]  # one question in progress (`engine.run`)
_FINISH_REASONS = frozenset({"stop", "length", "tool_calls", "content_filter", "function_call"})
_IMPOSSIBLE_LOGPROB = -9999.0
"""OpenAI's value for the log-probability of an impossible token, since JSON has no infinity."""


def _openai_logprobs(completion: Completion) -> dict[str, Any] | None:
    """Return a reply's log-probs in OpenAI's form; None if one is unknown."""
    if completion.tokens is None or any(token.logprob is None for token in completion.tokens):
        return None
    return {
        "content": [
            {**_openai_token(token.text, token.logprob), "top_logprobs": [_openai_token(*top) for top in token.top]}
            for token in completion.tokens
        ]
    }


def _openai_token(text: str, logprob: float | None) -> dict[str, Any]:
    finite = _IMPOSSIBLE_LOGPROB if logprob is None else max(_IMPOSSIBLE_LOGPROB, logprob)
    return {"token": text, "logprob": finite, "bytes": list(text.encode("utf-8", "replace"))}


def _openai_usage(completion: Completion) -> dict[str, Any] | None:
    """Return token counts in OpenAI's form; None if a count is unknown, which the form cannot express."""
    usage, details = completion.usage, completion.details
    read, written = usage.input_tokens, usage.output_tokens
    if read is None or written is None:
        return None
    counts: dict[str, Any] = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
    breakdown = {
        "prompt_tokens_details": {
            "cached_tokens": usage.cached_input_tokens,
            "cache_write_tokens": usage.written_input_tokens,
        },
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }
    for name, ours in breakdown.items():
        figures = {**details.get(name, {}), **{kind: count for kind, count in ours.items() if count is not None}}
        if figures:
            counts[name] = figures
    if usage.writes is not None:  # under LiteLLM's name, since OpenAI has none
        counts.setdefault("prompt_tokens_details", {})["cache_creation_token_details"] = usage.writes
    if completion.iterations:
        counts["iterations"] = [iteration.to_anthropic() for iteration in completion.iterations]
    return counts


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {name.name: _plain(getattr(value, name.name)) for name in fields(value)}
    if hasattr(value, "_asdict"):
        return _plain(value._asdict())
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and (value in {float("inf"), float("-inf")} or value != value):  # noqa: PLR0124 - NaN
        return str(value)
    return value
