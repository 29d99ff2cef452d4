"""The values that travel between the layers: immutable, picklable, without behaviour beyond reading them.

A question walks along a chain of paid steps. A `Request` is one call to one model, a `Completion` what came back after
the guard has checked it, a `Call` the record of both with its cost. A `Step` is one paid stage with its candidates and
signals and the `Decision` made on them. An `Answer` is what the caller gets. Unknown is None everywhere, never 0.

The small values that are made many times a question are named tuples, the others frozen dataclasses: a frozen
dataclass takes four times as long to make, a fifth of all the overhead of an ask (`benchmarks/overhead.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import UTC, datetime
from decimal import Decimal
from itertools import repeat
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from cascade.errors import UsageError
from cascade.money import Usage as Usage  # noqa: PLC0414 - a price is for a usage, and all values are found here
from cascade.money import total_nano_usd, usd_or_none

if TYPE_CHECKING:
    from cascade.chat import ChatRequest


Role = Literal["system", "user", "assistant"]

ALONE = BASE_ONLY, GUIDE_ONLY, LAST_ONLY = "base only", "guide only", "last model only"
"""The ways to answer with one model by itself, as logs and answers call them."""


class Message(NamedTuple):
    """One chat message."""

    role: Role
    content: str


SKIP = "skip"
"""The purpose of a call that is not made: it goes on record as an empty reply that cost nothing."""
ACT = "act"
"""The purpose of a call that an agent makes on the way to its answer."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked, with an optional text that the answer is to be read from.

    `group` is what hangs together with other questions (a document, a user, a conversation): no split of a log cuts
    through it. `segment` is what certificates are made for one by one (a tenant, a task, a language). `chat` is the
    request that an application sent, where it sent one; `text` is then its last user message, and `context` the whole
    request as JSON.
    """

    text: str
    context: str | None = None
    group: str | None = None
    segment: str | None = None
    chat: ChatRequest | None = None

    @classmethod
    def of_chat(cls, request: ChatRequest) -> Question:
        """Return the question that a chat request asks."""
        text = request.asked_text.strip() or "(a message without text)"
        return cls(text, request.canonical, request.group, request.segment, request)


class Request(NamedTuple):
    """One call to one model. It holds no key and no address, so it can be logged whole.

    `role` names the model's place in the strategy ("base", "guide", a rung of a ladder) and `purpose` what the call is
    for ("answer", "judge", "direct"). Neither is sent. `at_most_once` forbids to repeat a call that may have been
    billed, as under a hard cap. `top_logprobs` is how many alternatives per token are wanted;
    None asks for no log-probs at all. `sample` numbers repeated calls of the same prompt. With `chat` it is the
    application's own request that is sent, unchanged, and `messages` is empty. `instead_of` is the model in whose place
    this one is asked, because that one is down or too dear for what is left of a budget. `without` names what
    cascade would add and the model refuses.
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
    schema: Mapping[str, Any] | None = None
    sample: int = 0
    at_most_once: bool = False
    chat: ChatRequest | None = None
    instead_of: str | None = None
    without: tuple[str, ...] = ()


class Token(NamedTuple):
    """One generated token with its natural log-probability and the alternatives at its place.

    `logprob` is ≤ 0, −inf for an impossible token, None where something came that is not a log-probability.
    """

    text: str
    logprob: float | None
    top: tuple[tuple[str, float], ...] = ()


def tokens_of(
    texts: Iterable[str], logprobs: Iterable[float | None], tops: Iterable[tuple[tuple[str, float], ...]]
) -> list[Token]:
    """Return a token for each of these, as `Token` makes it, in a third less time: replies have hundreds of them.

    >>> tokens_of(["Yes"], [-0.1], [()])
    [Token(text='Yes', logprob=-0.1, top=())]
    """
    return list(map(tuple.__new__, repeat(Token), zip(texts, logprobs, tops, strict=False)))


class Completion(NamedTuple):
    """A checked answer of a provider.

    `tokens` is None where no log-probs came; `model` is the name it echoed, and `fingerprint` what the provider says of
    the model's build, `tier` at which service tier it was served, and `details` the counts of its usage by their kinds;
    `maybe_billed` counts earlier tries of the same call that failed and may be charged all the same.
    Where a chat request was answered, `message` is the assistant's whole message, `text` what it says as one text, and
    `faults` why it should not be served. `shown` says that a client has its text already, so that it is served whatever
    its faults.
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

    @property
    def truncated(self) -> bool:
        """Whether the text was cut at the token limit."""
        return self.finish_reason == "length"


class Call(NamedTuple):
    """The record of one call: who was asked what for, what came back or went wrong, and what it cost.

    `cost_nano_usd` is None where price or usage is unknown; `cost_bound_nano_usd` then holds the most it can have been,
    if a price is known. `billed` is "yes", "no" or "maybe" (a timed-out call may be charged all the same). `unpriced`
    is what of a call has no known price although its model has one. `begun` is the number of the step during which the
    call was begun early; None for a call that was begun at its own step.
    """

    request: Request
    completion: Completion | None
    cost_nano_usd: int | None
    cost_bound_nano_usd: int | None
    billed: str = "yes"
    error: str | None = None
    unpriced: str | None = None
    begun: int | None = None

    @property
    def lacks_logprobs(self) -> bool:
        """Whether the reply came without the log-probs that it was asked for."""
        if self.request.top_logprobs is None or self.completion is None:
            return False
        return self.completion.tokens is None and bool(self.completion.text)

    @property
    def is_cut(self) -> bool:
        """Whether the question ended while the call was under way, so that its reply is not known."""
        return self.completion is None and self.error is None and self.begun is None

    @property
    def failed_with(self) -> str:
        """The name of the error that it failed with; "" where it did not."""
        return (self.error or "").partition(":")[0]


class Candidate(NamedTuple):
    """One answer that could be returned. `confidence` in [0, 1] is the strategy's own estimate that it is right.

    `message` is the model's whole message, where a chat request is answered.
    """

    text: str
    source: str
    model: str
    confidence: float | None = None
    message: Mapping[str, Any] | None = None


class Decision(NamedTuple):
    """What a policy's scores became at threshold kappa: which candidates are kept, whether another step is paid.

    `scores` belong to the candidates in order. So do `confidences`, in [0, 1] or None for unknown, where the policy has
    estimates of its own; they then stand in the place of the candidates'. `buy` is the number of the offer that it
    buys next where it goes on, of a policy that decides before each call, and `buy_name` what the strategy calls that.
    `Step.reason` says it in words.
    """

    keep: tuple[int, ...]
    proceed: bool
    scores: tuple[float, ...]
    next_score: float
    kappa: float
    confidences: tuple[float | None, ...] | None = None
    buy: int | None = None
    buy_name: str | None = None


class Forced(NamedTuple):
    """A decision that the configuration takes.

    "accept" keeps every candidate and stops, "abstain" keeps none and stops; "escalate" goes on, and leaves to the
    policy what is kept.
    """

    action: Literal["accept", "abstain", "escalate"]
    reason: str


class Step(NamedTuple):
    """One paid stage: candidates, named signals (None = not known), the calls that made it, what was decided.

    `forced` is set where the configuration leaves the policy no choice; `final` marks a step that none can follow;
    `audited` one that was run after the decision to stop, to see what it would have brought. `warnings` are what the
    caller has to know of the step; they become warnings of the answer. `parents` are the numbers of the steps that its
    content depends on; None for the step before.
    """

    number: int
    candidates: tuple[Candidate, ...]
    signals: Mapping[str, float | None]
    notes: tuple[str, ...] = ()
    calls: tuple[Call, ...] = ()
    decision: Decision | None = None
    forced: Forced | None = None
    final: bool = False
    audited: bool = False
    warnings: tuple[str, ...] = ()
    parents: tuple[int, ...] | None = None

    @property
    def cost_nano_usd(self) -> int | None:
        """What this step cost; None if any of its calls has an unknown cost."""
        return total_nano_usd(call.cost_nano_usd for call in self.calls)

    def confidence(self, index: int) -> float | None:
        """Return how likely a candidate is right: as the policy estimates it, or else the strategy; None if unknown."""
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
        if self.forced is not None:
            return self.forced.reason
        p_yes = self.signals.get("p_yes")
        judged = "" if p_yes is None else f"P(yes) {p_yes:.3f}, "
        kept = " and ".join(self.candidates[index].source for index in decision.keep)
        wants_on = decision.next_score >= decision.kappa
        compared = f"next {decision.next_score:.3g} {'≥' if wants_on else '<'} kappa {decision.kappa:.3g}"
        if decision.proceed:
            onward = "go on" if decision.buy is None else f"buy {decision.buy_name or f'offer {decision.buy}'}"
            return f"{judged}{compared}: {onward}" + (f", keeping {kept}" if kept else "")
        ending = f"last step ({compared})" if wants_on else compared
        return f"{judged}{ending}: " + (f"keep {kept}" if kept else "nothing to keep")


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of text as a model writes it, for `stream`. `model` is who writes it, where that is known."""

    text: str
    role: str
    step: int
    model: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Certificate:
    """What is guaranteed about the answers, from what data, and for what cascade (`guarantees.certificate`).

    Attributes:
        kind: the kind of guarantee: "coverage", "solvable", "f1", "budget", "regret", "error", or an installed one.
        alpha: the share of questions that may be missed; None where only a budget is promised.
        n: calibration questions that the threshold was set on, each of another group.
        calibration_id: the start of the SHA-256 of everything else in the certificate.
        delta: the probability that the calibration misleads; None for a promise on average over calibrations.
        k: the rank of the threshold among the critical values; None where it was set by tests on a path.
        kappa: the threshold.
        abstain_below: nothing is served whose confidence is below; None without abstention.
        budget_nano_usd: the promised bound on the mean cost of a question.
        group: the group of questions it speaks of, where it was made by groups: before 0.6, or with --by-group.
        pool: whether it speaks of all segments together that have no certificate of their own.
        keeps_everything: whether the promise is kept by keeping every answer of every step.
        data_sha256, policy_sha256: what it was made from.
        made_for: the strategy, models, prices and prompts that it holds for; None inside for what is not known.
        created, expires: dates, ISO 8601, UTC; it holds until the end of the day `expires`.
        assumptions: what it rests on, in words.
        segment: the segment of questions it speaks of; None for all.
        unit: what it speaks of: a random "question", or a random question of a random "group" where the log had groups
            of several; None before 0.6, where all questions of a group counted as unrelated.
        together: with how many segments' promises it holds at once but for a probability together × delta; None where
            it holds by itself.
        reference: the model whose output the served answer is compared with; None where labels said what is right.
        comparator: the matcher that compares them.

    Reference: Angelopoulos & Bates, A gentle introduction to conformal prediction (2021), and `design/`.
    """

    kind: str
    alpha: float | None
    n: int
    calibration_id: str
    delta: float | None = None
    k: int | None = None
    kappa: float = 0.0
    abstain_below: float | None = None
    budget_nano_usd: int | None = None
    group: str | None = None
    pool: bool = False
    keeps_everything: bool = False
    data_sha256: str = ""
    policy_sha256: str = ""
    made_for: Mapping[str, Any] = field(default_factory=dict)
    created: str = ""
    expires: str | None = None
    assumptions: tuple[str, ...] = ()
    segment: str | None = None
    unit: Literal["question", "group"] | None = None
    together: int | None = None
    reference: str | None = None
    comparator: str | None = None

    @property
    def name(self) -> str | None:
        """The segment that it speaks of, or the group where it was made by groups; None for all, or all others."""
        return self.segment if self.segment is not None else self.group


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one question and everything that happened on the way.

    `text` is the best single answer, None if the cascade abstained. `answers` holds every distinct answer kept, best
    first: the prediction set that a certificate speaks of. `stopped` is one of "policy" (the policy had enough),
    "horizon" (the last step was reached), "budget", "deadline" (the time was over), "forced" (by the configuration),
    "provider error" (a later step), "abstained" (the best answer is not sure enough to be served).
    `calls` made outside a finished step (an interrupted last one) are in `loose_calls` and in the cost. `audited` says
    that the question was drawn for an audit and run on to the last step, or as far as providers and the cap allowed;
    those steps are in `steps` and in the cost. `level` is the level of the policy that served, where it has some.
    """

    question: Question
    text: str | None
    answers: tuple[str, ...]
    steps: tuple[Step, ...]
    stopped: str
    latency_s: float
    warnings: tuple[str, ...] = ()
    certificate: Certificate | None = None
    loose_calls: tuple[Call, ...] = field(default=())
    audited: bool = False
    level: str | None = None

    @property
    def served(self) -> tuple[Candidate, Call] | None:
        """The candidate whose text is served and the call that made it; None where nothing is served."""
        for step in self.steps:
            kept = step.decision.keep if step.decision is not None else ()
            for index in kept or range(len(step.candidates)):
                found = step.candidates[index]
                made = [
                    call
                    for call in step.calls
                    if call.request.role == found.source
                    and call.completion is not None
                    and (found.message is None or call.completion.message == found.message)
                ]
                if found.text == self.text and made:
                    return found._replace(model=made[-1].request.model), made[-1]
        return None

    @property
    def message(self) -> Mapping[str, Any] | None:
        """The served model's message, unchanged, where a chat request was answered: content, tool calls, refusal."""
        served = self.served
        return None if served is None else served[0].message

    @property
    def tool_calls(self) -> tuple[Mapping[str, Any], ...]:
        """The tool calls of the message served."""
        from cascade.chat import calls_of  # of a chat request alone

        return () if self.message is None else calls_of(self.message)

    @property
    def parsed(self) -> Any:
        """The value of the JSON that is served; None where the answer is no JSON.

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

        `usage` is that of the call whose message is served; what the whole cascade cost is `cost`.

        Raises:
            UsageError: nothing was served.
        """
        served = self.served
        if served is None or self.text is None:
            raise UsageError("Nothing was served, so there is no chat completion: see answer.explain().")
        candidate, call = served
        completion = call.completion
        assert completion is not None  # noqa: S101 - `served` looks for a call that came back
        message = {"role": "assistant", "content": self.text} if candidate.message is None else dict(candidate.message)
        finish = "tool_calls" if message.get("tool_calls") else completion.finish_reason
        finish = finish if finish in _FINISH_REASONS else "stop"
        asked = self.question.chat
        told = {"system_fingerprint": completion.fingerprint, "service_tier": completion.tier}
        logprobs = _openai_logprobs(completion) if asked is not None and asked.top_logprobs else None
        return {
            "id": completion.request_id or "chatcmpl-cascade",
            "object": "chat.completion",
            "created": int(datetime.now(UTC).timestamp()),
            "model": completion.model or candidate.model,
            **{name: said for name, said in told.items() if said is not None},
            "choices": [{"index": 0, "message": message, "finish_reason": finish, "logprobs": logprobs}],
            "usage": _openai_usage(completion.usage, completion.details),
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
        """The exact cost in USD; None where a price or a usage is unknown, never 0 instead."""
        return usd_or_none(self.cost_nano_usd)

    @property
    def cost_bound(self) -> Decimal | None:
        """The most that the question can have cost in USD, with unknown usage estimated; None without a price."""
        return usd_or_none(total_nano_usd(call.cost_bound_nano_usd for call in self.calls))

    @property
    def cost_by_model(self) -> dict[str, Decimal | None]:
        """The exact cost in USD of each model."""
        by_model: dict[str, list[int | None]] = {}
        for call in self.calls:
            by_model.setdefault(call.request.model, []).append(call.cost_nano_usd)
        return {model: usd_or_none(total_nano_usd(costs)) for model, costs in by_model.items()}

    def explain(self) -> str:
        """Return the path in words, a line a step, ending with why it stopped."""
        lines = []
        for step in self.steps:
            shown = ", ".join(f"{c.source}: {c.text!r}" for c in step.candidates) or "no usable answer"
            lines.append(f"step {step.number}: {shown} -> {step.reason}")
            lines.extend(f"  note: {note}" for note in step.notes)
            lines.extend(f"  note: {_begun(call)}" for call in step.calls if call.begun is not None)
        lines.extend(f"{_begun(call)}; {_unused(call)}" for call in self.loose_calls if call.begun is not None)
        lines.extend(f"warning: {warning}" for warning in self.warnings)
        asked_at = [] if self.level is None else [f"level: {self.level}"]
        return "\n".join([*lines, *asked_at, f"stopped: {self.stopped}"])

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain JSON-ready values (infinite scores as strings)."""
        document: dict[str, Any] = _plain(self)
        for step, plain in zip(self.steps, document["steps"], strict=True):
            plain["reason"] = step.reason
        cost = self.cost
        document["cost_usd"] = None if cost is None else float(cost)
        bound = self.cost_bound
        document["cost_bound_usd"] = None if bound is None else float(bound)
        document["cost_by_model_usd"] = {m: None if c is None else float(c) for m, c in self.cost_by_model.items()}
        return document


def _begun(call: Call) -> str:
    return f"{call.request.role} was begun early, together with step {call.begun}"


def _unused(call: Call) -> str:
    """Return in words what became of a call that was begun early and not used."""
    ended = "it was not used" if call.error is None else call.error.rstrip(".")
    cost, most = usd_or_none(call.cost_nano_usd), usd_or_none(call.cost_bound_nano_usd)
    if cost is not None:
        return f"{ended}; it cost ${cost.normalize():f}"
    return f"{ended}; its cost is unknown" + ("" if most is None else f", at most ${most.normalize():f}")


_FINISH_REASONS = frozenset({"stop", "length", "tool_calls", "content_filter", "function_call"})


_IMPOSSIBLE_LOGPROB = -9999.0
"""What OpenAI's API gives for the log-probability of an impossible token: JSON has no infinity."""


def _openai_logprobs(completion: Completion) -> dict[str, Any] | None:
    """Return a reply's log-probs in OpenAI's form; None where one is unknown."""
    if completion.tokens is None or any(token.logprob is None for token in completion.tokens):
        return None
    return {
        "content": [
            {**_openai_token(one.text, one.logprob), "top_logprobs": [_openai_token(*other) for other in one.top]}
            for one in completion.tokens
        ]
    }


def _openai_token(text: str, logprob: float | None) -> dict[str, Any]:
    finite = _IMPOSSIBLE_LOGPROB if logprob is None else max(_IMPOSSIBLE_LOGPROB, logprob)
    return {"token": text, "logprob": finite, "bytes": list(text.encode("utf-8", "replace"))}


def _openai_usage(usage: Usage, details: Mapping[str, Mapping[str, int]]) -> dict[str, Any] | None:
    """Return token counts in OpenAI's form; None where a count is unknown: the form has no place for one that is."""
    read, written = usage.input_tokens, usage.output_tokens
    if read is None or written is None:
        return None
    counts: dict[str, Any] = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
    known = {
        "prompt_tokens_details": {
            "cached_tokens": usage.cached_input_tokens,
            "cache_write_tokens": usage.written_input_tokens,
        },
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }
    for name, ours in known.items():
        found = {**details.get(name, {}), **{kind: many for kind, many in ours.items() if many is not None}}
        if found:
            counts[name] = found
    return counts


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {name.name: _plain(getattr(value, name.name)) for name in fields(value)}
    if hasattr(value, "_asdict"):
        return _plain(value._asdict())
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, float) and (value in {float("inf"), float("-inf")} or value != value):  # noqa: PLR0124 - NaN
        return str(value)
    return value
