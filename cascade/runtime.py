"""A configuration in service: its models behind guards, its policy, caps and traces, and the calls of each question."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias, TypeVar

from cascade import factory
from cascade.budget.charges import Budget
from cascade.chat import Chat, ChatRequest, chat_request
from cascade.checks import MAX_QUESTION_CHARS, above_zero, did_you_mean
from cascade.config import CascadeConfig
from cascade.config.policies import DirectoryConfig
from cascade.engine import RunPlan, RunTerms, drive, run
from cascade.errors import BatchError, ClosedError, UsageError
from cascade.money import Price, exact_dollars, nano_usd
from cascade.plans.nodes import Plan
from cascade.providers.base import Provider
from cascade.providers.guard import Guard, Middleware
from cascade.records.link import LATE_S
from cascade.resilience.event_loop import SETTLE_S, STOPPED, Deadline, Halt, in_thread
from cascade.safety import defuse
from cascade.text import counted
from cascade.types import Answer, Completion, Question, Request, Run, Step, TextDelta

if TYPE_CHECKING:  # loaded only if a configuration or a caller needs them: traces, promises, shared caps, spans
    from cascade.budget.caps import Account
    from cascade.policies.live import LivePolicy
    from cascade.records.ledger import SqlLedger
    from cascade.records.recorder import TraceRecorder
    from cascade.records.writer import TraceWriter
    from cascade.serving.certified import CertifiedPolicy, ServingState
    from cascade.serving.monitors import CertificateMonitors
    from cascade.serving.spending import Spending


_Event = TypeVar("_Event")


@dataclass(frozen=True, slots=True)
class AskOptions:
    """How a question is asked, and as what it is recorded.

    Attributes:
        level, deadline_s: as in `Orchestrator.ask`.
        model: the name of one of the configured models: only it is asked, and no policy decides.
        plan: run this plan instead of the policy's.
        trace_id: the id of the episode in the traces.
        later: whether the trace of an answer is written later, with further calls; that of a failure is not.
        audit: whether to run it to the end for an audit that the caller counts.
        key: the name of the server's key: its budget counts (`budget.caps`), and traces name it as the user.
    """

    level: str | None = None
    deadline_s: float | None = None
    model: str | None = None
    plan: RunPlan | None = None
    trace_id: str | None = None
    later: bool = False
    audit: bool = False
    key: str | None = None


@dataclass(frozen=True, slots=True)
class PendingAnswer:
    """A question in progress.

    Attributes:
        runtime: makes its calls.
        walk: its decisions.
        plan: its run plan.
        trace: its record; None if it is not traced.
        deadline: when the best answer so far is returned.
        key: the name of the server's key whose budget counts.
    """

    runtime: Runtime
    walk: Run
    plan: RunPlan
    trace: TraceRecorder | None
    deadline: Deadline
    key: str | None = None

    async def answer(self, complete: Callable[[Request], Awaitable[Completion]] | None = None) -> Answer:
        """Run it to its end, with calls made by `complete`; return the answer after its trace is settled."""
        with self.runtime.halt.covering():
            answer = await drive(self.walk, complete or self.complete, blocks=bool(self.plan.strategy.agents))
        return answer if self.trace is None else await self.settle(answer)

    def drafts(self, *, raw: bool) -> AsyncGenerator[TextDelta | Step | Answer, None]:
        """Run it to its end; yield the models' text as it is written, each step, and the settled answer."""
        from cascade.streaming import drafts

        return self._settled(drafts(self.walk, self.stream, raw=raw, blocks=bool(self.plan.strategy.agents)))

    def served(self) -> AsyncGenerator[TextDelta | Answer, None]:
        """Run it to its end; yield only text that is served, and the settled answer."""
        from cascade.streaming import Flow, served

        strategy = self.plan.strategy
        flow = Flow(0 if strategy.is_joint else strategy.horizon)
        return self._settled(served(self.walk, self.complete, self.stream, flow, blocks=bool(strategy.agents)))

    async def _settled(self, events: AsyncGenerator[_Event, None]) -> AsyncGenerator[_Event | Answer, None]:
        async with aclosing(self.runtime.halt.covered(events)) as covered:
            async for event in covered:
                yield await self.settle(event) if isinstance(event, Answer) else event

    async def settle(self, answer: Answer) -> Answer:
        """Return the answer, after its trace is committed if traces wait for that. Raises as `TraceWriter.settle`."""
        if self.trace is not None:
            await self.trace.writer.settle(self.trace.written, answer, self.deadline.remaining_s() + LATE_S)
        return answer

    def complete(self, request: Request) -> Awaitable[Completion]:
        """Make a call."""
        return self.runtime.guard(request, self.key).complete(request, self.deadline)

    def stream(self, request: Request) -> AsyncGenerator[TextDelta | Completion, None]:
        """Make a call and yield the reply as it is written."""
        return self.runtime.guard(request, self.key).stream(request, self.deadline)


class Runtime:
    """The parts that `Orchestrator`, the gateway and the collector use alike. Threads and tasks may share it.

    Args:
        config: the configuration.
        providers: ready-made providers by kind, used instead of new ones; they are not closed here.

    Attributes:
        config: the configuration, with the policy directory in service.
        service: the policies in service, their certificates and audits; None if nothing is promised.
            `service.monitors.status` counts certified and other answers, `service.alarm` says what was withdrawn.
        configured: the strategy as configured, of which a policy may take a part.
        guards: the guard of each model by its name in the configuration.
        fields: which fields of a request each model is sent.
        traces: the writer of traces; None if there is none.
        halt: the switch that stops all questions.
        links: the links to the stores that a request waits for, by name.
        finishes: whether a call under shared caps goes on when its caller leaves, so that its cost is known.
    """

    def __init__(self, config: CascadeConfig, providers: Mapping[str, Provider]) -> None:
        self.config = config
        self.configured = factory.build_strategy(config)
        promised = config.promises
        self.service = self._in_service(config, self.configured) if promised else None
        self._monitors = None if self.service is None else self.service.monitors
        self._bare = factory.build_policy(config) if self.service is None else self.service.default.policy
        self._plain = RunPlan.of(self.configured, self._bare)
        plans = factory.single_model_plans(config, self.configured.prompts)
        self._single_model = {model: RunPlan(plan, walk=f"{model} only") for model, plan in plans.items()}
        self._prices: Mapping[str, Price | None] = config.prices()
        self._cap = None if config.budget.per_question is None else nano_usd(config.budget.per_question)
        self.spending = self._caps()
        self.links = {} if self.spending is None or self.spending.link is None else {"budget": self.spending.link}
        self._closed = self.finishes = False
        self._idle: Spending | None = None  # the spending under an earlier configuration's caps, while there are none
        self._passed_on = set[str]()  # the parts that another runtime closes
        self.halt = Halt()
        self.guards, self._own = factory.build_guards(config, providers)
        self._spanned = self._with_spans()
        self.fields = factory.build_fields(config, self.guards, self._prices)
        exhausted, fallbacks = config.budget.on_exhausted, factory.build_fallbacks(config)
        self._terms = RunTerms(self._prices, exhausted, fallbacks, self.fields)
        self.traces = self._make_writer()

    @staticmethod
    def _in_service(config: CascadeConfig, strategy: Plan, before: CertificateMonitors | None = None) -> ServingState:
        from cascade.serving.certified import in_service

        return in_service(config, strategy, before)

    def _caps(self) -> Spending | None:
        if not self.config.budget.caps:
            return None
        from cascade.serving.spending import Spending

        return Spending.of(self.config)

    def _make_writer(self) -> TraceWriter | None:
        wanted, url = self.config.traces, self.config.traces_url
        if wanted is None or url is None:
            return None
        from cascade.records.writer import TraceWriter

        keys = {key for guard in self.guards.values() for key in guard.secrets}
        return TraceWriter(url, secrets=keys, **wanted.model_dump(include={"content", "strict"}))

    def _with_spans(self) -> Mapping[str, Guard | Middleware]:
        if not self.config.telemetry.spans:
            return self.guards
        from cascade.telemetry import TracedGuard, tracer

        content = self.config.telemetry.content
        return {name: TracedGuard(guard, tracer(), content=content) for name, guard in self.guards.items()}

    @property
    def strategy(self) -> Plan:
        """The strategy in service, with the prompts that it was built with."""
        return self.configured if self.service is None else self.service.strategy

    @property
    def policy(self) -> LivePolicy:
        """The policy in service; at the default level, if there are levels."""
        return self._bare if self.service is None else self.service.default.policy

    @property
    def levels(self) -> Mapping[str, float]:
        """The risk of each level at which a question can be asked, the cheapest first; empty without levels."""
        return {} if self.service is None else self.service.levels

    @property
    def alarm(self) -> str | None:
        """Why certificates were withdrawn, in words; None if none was."""
        return None if self.service is None else self.service.alarm

    def serves(self, level: str | None) -> CertifiedPolicy | None:
        """Return the policy that serves at a level, or at the default one; None if nothing is promised.

        Raises:
            UsageError: there is no such level.
        """
        if self.service is not None:
            return self.service.at(level)
        if level is not None:
            from cascade.serving.certified import no_level

            raise no_level(level, {})
        return None

    def start(
        self, question: Input, options: AskOptions = AskOptions(), fields: Mapping[str, Any] = {}
    ) -> PendingAnswer:
        """Begin a question.

        Args:
            question: as in `Orchestrator.ask`.
            options: how it is asked.
            fields: other fields of a chat's body, as in `Orchestrator.chat`; for a question, its `segment`.

        Raises:
            UsageError: the orchestrator is closed, the question is empty, or the level or the model does not exist.
        """
        if self._closed:
            raise UsageError("This orchestrator was closed. Make a new one.")
        model, only = options.model, options.plan
        if model is not None and (only := self._single_model.get(model)) is None:
            raise UsageError(f"No model is called {model!r}{did_you_mean(model, self._single_model)}")
        parsed, deadline = question_of(question, fields), self._deadline(options.deadline_s)
        serving = self.serves(options.level) if only is None else None
        plan = only or (self._plain if serving is None else serving.plan(parsed))
        followed = plan._replace(audit=plan.audit or options.audit, warnings=(*plan.warnings, *left_out(parsed)))
        walk = run(parsed, followed, self._terms, budget=Budget(self._cap), deadline=deadline)
        if serving is not None and not options.audit:  # the caller's audits are counted by the modes
            walk = serving.counted(walk)
        trace = None
        if self.traces is not None:
            from cascade.records.recorder import TraceRecorder

            named = plan.walk, options.trace_id, options.key
            trace = TraceRecorder(self.traces, plan.strategy.horizon, self._prices, *named)
            walk = trace.follow(parsed, walk, later=options.later)
        return PendingAnswer(self, walk, plan, trace, deadline, options.key)

    async def complete(self, request: Request) -> Completion:
        """Make one call to one of the models, guarded like any other. Raises as `Orchestrator.ask` does."""
        with self.halt.covering():
            return await self.guard(request).complete(self.fields.sent(request), self._deadline())

    def reload_policy(self, directory: str | Path | None = None) -> None:
        """Serve with the current contents of the policy directory, or with another one, from the next question on.

        The strategy is built again, with the prompts now on disk, since a certificate covers only the prompts that it
        was made with. A question in progress ends with the prompts and the certificate with which it began.

        Raises:
            ConfigError, NotCertifiedError: as when an orchestrator is made.
            UsageError: no directory is known, or one of the certificates has already been withdrawn.
        """
        before = self.config.policy
        configured = before.path if isinstance(before, DirectoryConfig) else None
        if directory is None and configured is None:
            raise UsageError("The configuration names no policy directory: reload_policy(DIR).")
        wanted = DirectoryConfig(kind="directory", path=str(directory or configured))
        config = self.config.model_copy(update={"policy": wanted})
        self.service, self.config = self._in_service(config, factory.build_strategy(config), self._monitors), config
        self._monitors = self.service.monitors

    def take_over(self, before: Runtime) -> None:
        """Continue from the runtime of an earlier configuration, on which questions in progress still end.

        Audit results with their alarms, amounts spent and held, the queue of traces, and loaded models are kept.
        """
        if before._monitors is not None:
            self._monitors = before._monitors
            self.service = self.service and self.service.after(before._monitors)
        earlier, now = before.spending or before._idle, self.spending
        if earlier is not None and now is None:
            self._idle = earlier if earlier.link is None else None
        elif earlier is not None and now is not None and (earlier.link is None) == (now.link is None):
            now.close()
            self.spending = earlier.under(now)
            before._passed_on.add("money")
            self.links |= {} if earlier.link is None else {"budget": earlier.link}
        if self.traces is not None and before.traces is not None:
            self.traces.close()
            before._passed_on.add("traces")
            before.traces.content = self.traces.content
            before.traces.secrets = tuple({*before.traces.secrets, *self.traces.secrets})
            self.traces = before.traces

    def spend_with(self, first: Runtime) -> None:
        """Spend from the accounts of another runtime with the same caps; that runtime books and closes them."""
        if self.spending is not None and first.spending is not None:
            self.spending.ledger.close()
            self.spending = replace(
                first.spending.under(self.spending), link=self.spending.link, caps=first.spending.caps
            )
            self._passed_on.add("money")

    @property
    def bookings(self) -> SqlLedger | None:
        """The database ledger, which counts calls made without it; None if this runtime has none of its own."""
        return None if self.spending is None or "money" in self._passed_on else self.spending.bookings

    @property
    def failing_stores(self) -> tuple[str, ...]:
        """The stores that do not respond."""
        traces = () if self.traces is None or self.traces.problem is None else ("traces",)
        return (*(name for name, link in self.links.items() if link.problem is not None), *traces)

    @property
    def models_state(self) -> str:
        """Return "degraded" if a model or deployment is not called for a while, "failing" if none is, else "ok"."""
        circuits = [circuit for name, guard in self.guards.items() for circuit in guard.circuits(name).values()]
        down = sum(circuit is not None and circuit.rests for circuit in circuits)
        return "ok" if not down else "failing" if down == len(circuits) else "degraded"

    @property
    def unrecorded(self) -> str | None:
        """A sentence about records lost since the start or still waiting; None if everything is recorded."""
        counts, bookings = None if self.traces is None else self.traces.counts, self.bookings
        lost = 0 if counts is None else counts.lost + counts.waiting
        lost_nano_usd = 0 if bookings is None else bookings.lost_nano_usd
        if not lost and not lost_nano_usd:
            return None
        return f"{counted(lost, 'answer')} not traced, and {exact_dollars(lost_nano_usd)} spent and not booked."

    def wrap(self, wrapping: Callable[[Guard | Middleware], Middleware]) -> None:
        """From now on, make each call through the wrapper that `wrapping` returns for a model's guard."""
        self._spanned = {name: wrapping(guard) for name, guard in self._spanned.items()}

    def balances(self) -> Mapping[str, tuple[int, Account]]:
        """Return cap and balance of each account, as `Spending.balances` does. Raises StoreError."""
        return {} if self.spending is None else self.spending.balances()

    def flush_traces(self, timeout_s: float = 10.0) -> bool:
        """Wait until the traces of all answers so far are written; return whether they are. Without traces, True."""
        return self.traces is None or self.traces.flush(timeout_s)

    async def close(self) -> None:
        """Release connections and memory, and write queued traces: see `Orchestrator.close`."""
        self._closed = True
        self.halt.stop()
        await in_thread(partial(self.halt.wait_idle, SETTLE_S))
        for guard in self._own:
            await guard.close()
        if self.spending is not None and "money" not in self._passed_on:
            await in_thread(self.spending.close)
        if self.traces is not None and "traces" not in self._passed_on:
            await in_thread(self.traces.close)

    def guard(self, request: Request, key: str | None = None) -> Guard | Middleware:
        """Return the guard that makes a call for a key of the server: the model's, wrapped in spans and caps."""
        if self.halt.stopped:  # reached by code that could not be cancelled
            raise ClosedError(STOPPED)
        guard = self._spanned[request.model]
        return guard if self.spending is None else self.spending.over(guard, key, self.halt if self.finishes else None)

    def _deadline(self, seconds: float | None = None) -> Deadline:
        limit_s = self.config.timeouts.per_question_s if seconds is None else above_zero(seconds)
        return Deadline() if limit_s is None else Deadline.after(limit_s)


# --- what callers pass ---


def left_out(question: Question) -> list[str]:
    """Return a warning for each text of a question with characters that are not allowed in prompts (`safety`).

    A chat request is sent unchanged.
    """
    texts = {} if question.chat is not None else {"question": question.text, "context": question.context or ""}
    says = "marks or invisible characters in the {} are shown to no model"
    return [says.format(name) for name, text in texts.items() if defuse(text) != text]


Input: TypeAlias = str | Question | Chat
"""A question, or a chat request: messages in OpenAI's form, the body of a request, or a `ChatRequest`."""


def question_of(question: Input, fields: Mapping[str, Any]) -> Question:
    """Return a caller's input as a question.

    Args:
        question: a question, messages in OpenAI's form, the body of a request, or a `ChatRequest`.
        fields: other fields of the body; for a question, its `segment`.

    Raises:
        UsageError: it is empty, too long or none of these, or has a field that does not belong to it.
    """
    if not isinstance(question, str | Question):
        return Question.of_chat(chat_request(question, fields))
    if alien := sorted(set(fields) - {"segment"}):
        raise UsageError(f"A question has no {', '.join(alien)}: these are fields of a chat request.")
    parsed = Question(question) if isinstance(question, str) else question
    if (segment := fields.get("segment")) is not None:
        parsed = replace(parsed, segment=segment)
    given: object = parsed.text
    if not isinstance(given, str) or not given.strip():
        raise UsageError("There is no question: give a text that is not empty, or Question(text, context).")
    if parsed.chat is None and len(parsed.text) + len(parsed.context or "") > MAX_QUESTION_CHARS:
        raise UsageError(f"The question with its context is longer than {MAX_QUESTION_CHARS:,} characters.")
    return parsed


def listed(questions: Iterable[Input], concurrency: object) -> list[Input]:
    """Return the questions of `many` as a list.

    Raises:
        UsageError: it is one question or chat, or `concurrency` is no whole number of at least 1.
    """
    if isinstance(questions, str | Question | Mapping | ChatRequest):
        raise UsageError("many takes a list of questions or of chat requests; for one question use ask or chat.")
    if isinstance(questions, list | tuple) and any(isinstance(turn, Mapping) and "role" in turn for turn in questions):
        raise UsageError("These are messages of one chat: orchestrator.chat(messages), or many([messages, …]).")
    if isinstance(concurrency, bool) or not isinstance(concurrency, SupportsIndex) or concurrency.__index__() < 1:
        raise UsageError(f"concurrency must be a whole number of at least 1, not {concurrency!r}.")
    return list(questions)


def all_or_error(results: Sequence[Answer | Exception | None]) -> list[Answer]:
    """Return the answers of `many`. Raises BatchError, with every answer and every error, if there is an error."""
    failed = [result for result in results if isinstance(result, Exception)]
    if failed:
        raise BatchError(
            f"{len(failed)} of {len(results)} questions failed, first {type(failed[0]).__name__}: {failed[0]}. "
            "`.results` of this error holds every answer and every error, in order.",
            results=tuple(results),
        )
    return [result for result in results if isinstance(result, Answer)]
