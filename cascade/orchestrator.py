"""`Orchestrator`: the configuration wired together. `engine` decides; `record_outcome` takes the truth of audits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from cascade import config as configuration
from cascade.budget.charges import QuestionBudget
from cascade.chat import Chat, ChatRequest
from cascade.checks import (
    above_zero,
    chat_question,
    checked_question,
    fitted_question,
    in_event_loop,
    refuse_in_event_loop,
    timed_chat,
)
from cascade.config import CascadeConfig
from cascade.engine import Run, adrive, drive, run
from cascade.episodes.trace import Trace
from cascade.errors import UsageError
from cascade.factory import alone, build_fields, build_guards, build_policy, build_standins, build_strategy
from cascade.money import Price, nano_usd
from cascade.policies.base import Policy
from cascade.policies.config import DirectoryConfig
from cascade.providers.base import Provider
from cascade.providers.guard import Guard
from cascade.resilience.halting import SETTLE_S, Halt
from cascade.resilience.retry import Deadline
from cascade.serving import at_level, caps_of, service_of
from cascade.serving.plan import Calls, RunPlan, outright
from cascade.strategies.base import Strategy
from cascade.types import Answer, Completion, Question, Request, Step, TextDelta

if TYPE_CHECKING:  # loaded only if a configuration or a caller needs them: promises, shared caps, spans, streams
    from cascade.episodes.traces import TraceWriter
    from cascade.policies.levels import Level
    from cascade.serving.certified import CertifiedPolicy
    from cascade.serving.levels import ServingState
    from cascade.serving.monitors import AuditOutcome, ServiceStatus
    from cascade.serving.spending import SpendingGuard
    from cascade.telemetry import TracedGuard

    Guards = Guard | TracedGuard | SpendingGuard


class Orchestrator:
    """Answers questions with a cheap model, a guide and a policy.

    Made from a configuration (`Orchestrator.from_config("cascade.yaml")`) or from two model names:

        >>> from cascade import Orchestrator
        >>> with Orchestrator("small", "large", provider="fake") as orchestrator:
        ...     orchestrator.ask("Which river runs through Vienna?").text
        'you asked: Which river runs through Vienna?'

    It is safe to share between threads and tasks. Close it, or use it in a `with` block.

    Args:
        base, guide: model names, as LiteLLM spells them ("openai/gpt-4o-mini").
        settings: any other section of a configuration (`provider`, `policy`, `strategy`, `budget`, `timeouts`,
            `traces`).
    """

    def __init__(self, base: str | None = None, guide: str | None = None, **settings: Any) -> None:
        if base is None or guide is None:
            raise UsageError(
                'Orchestrator needs two models: Orchestrator(base="…", guide="…"), or from_config("file").'
            )
        others = settings.pop("models", {})
        models = {**(others if isinstance(others, Mapping) else {}), "base": base, "guide": guide}
        self._wire(configuration.load({"models": models, **settings}), {})

    @classmethod
    def from_config(
        cls,
        source: CascadeConfig | Mapping[str, Any] | str | Path = "cascade.yaml",
        *,
        providers: Mapping[str, Provider] | None = None,
    ) -> Orchestrator:
        """Make an orchestrator from a file, a dict or a `CascadeConfig`.

        Args:
            source: the configuration.
            providers: ready-made providers by kind, used instead of making new ones: to share loaded models between
                orchestrators, or to pass a `FakeProvider`. They are not closed with this orchestrator.

        Raises:
            ConfigError: everything that is wrong with it, at once.
        """
        made = cls.__new__(cls)
        made._wire(configuration.load(source), providers or {})  # noqa: SLF001 - its own
        return made

    def _wire(self, config: CascadeConfig, providers: Mapping[str, Provider]) -> None:
        self.config = config
        self._plain = build_strategy(config)
        self._service = service_of(config, self._plain)
        self._bare = build_policy(config) if self._service is None else self._service.default.policy
        self._prices: Mapping[str, Price | None] = config.prices()
        self._cap = None if config.budget.per_question is None else nano_usd(config.budget.per_question)
        self._spending = caps_of(config)
        self._standins = build_standins(config)
        self._closed = False
        self._halt = Halt()
        self._guards, self._own = build_guards(config, providers)
        self.fields = build_fields(config, self._guards, self._prices)
        self._traces = self._make_writer()

    def _make_writer(self) -> TraceWriter | None:
        wanted, url = self.config.traces, configuration.traces_url(self.config.traces)
        if wanted is None or url is None:
            return None
        from cascade.episodes.traces import TraceWriter

        keys = {key for guard in self._guards.values() for key in guard.secrets}
        return TraceWriter(url, secrets=keys, **wanted.model_dump(include={"content", "durability", "strict"}))

    def ask(
        self,
        question: str | Question,
        *,
        level: str | None = None,
        alpha: float | None = None,
        segment: str | None = None,
        deadline_s: float | None = None,
    ) -> Answer:
        """Answer one question.

        Args:
            question: the question.
            level: the level to ask at, by its name ("low" is the cheapest), if the policy has levels (`levels`).
            alpha: the level by the share of questions that may be missed: the cheapest level that promises this.
            segment: the question's segment (a tenant, a task, a language), if the policy has a certificate for each;
                overrides the question's own.
            deadline_s: seconds after which the best answer so far is returned; overrides `timeouts.per_question_s`.

        Raises:
            ProviderError: every model that could have answered failed, or the deadline came before any answer.
            BudgetExceededError: the cap would have been passed.
            UsageError: the orchestrator is closed, it is called inside a running event loop (use `aask`), the question
            is empty, or the level does not exist.
        """
        refuse_in_event_loop("ask", "aask")
        return self._ask(question, level, alpha, segment, self._halt, deadline_s)

    def _ask(
        self,
        question: str | Question,
        level: str | None,
        alpha: float | None,
        segment: str | None,
        halt: Halt,
        deadline_s: float | None = None,
    ) -> Answer:
        calls, walk, trace, _ = self._begin(question, level, alpha, segment, deadline_s, halt=halt)
        with halt.working():
            answer = drive(walk, calls.complete)
        return trace.settle(answer)

    async def aask(
        self,
        question: str | Question,
        *,
        level: str | None = None,
        alpha: float | None = None,
        segment: str | None = None,
        deadline_s: float | None = None,
    ) -> Answer:
        """Answer one question without blocking the event loop. Raises as `ask` does."""
        calls, walk, trace, _ = self._begin(question, level, alpha, segment, deadline_s)
        with self._halt.working():
            answer = await adrive(walk, calls.acomplete)
        return await trace.asettle(answer)

    def stream(
        self,
        question: str | Question,
        *,
        level: str | None = None,
        alpha: float | None = None,
        segment: str | None = None,
        raw: bool = False,
        deadline_s: float | None = None,
    ) -> Iterator[TextDelta | Step | Answer]:
        """Answer one question and yield text as it is written, each finished step, and at last the answer.

        The text is that of the models' answers. With `raw` it is everything that the models write, including the
        reasoning before an answer, verdicts and decisions.
        """
        refuse_in_event_loop("stream", "astream")
        calls, walk, trace, _ = self._begin(question, level, alpha, segment, deadline_s)
        from cascade.streaming import stream

        return stream(walk, calls.stream, trace, raw=raw)

    async def astream(
        self,
        question: str | Question,
        *,
        level: str | None = None,
        alpha: float | None = None,
        segment: str | None = None,
        raw: bool = False,
        deadline_s: float | None = None,
    ) -> AsyncGenerator[TextDelta | Step | Answer, None]:
        """Do as `stream` without blocking the event loop."""
        calls, walk, trace, _ = self._begin(question, level, alpha, segment, deadline_s)
        from cascade.streaming import astream

        async with aclosing(astream(walk, calls.astream, trace, raw=raw)) as events:
            async for event in events:
                yield event

    def ask_many(
        self,
        questions: Iterable[str | Question],
        *,
        concurrency: int = 8,
        level: str | None = None,
        alpha: float | None = None,
        segment: str | None = None,
    ) -> list[Answer]:
        """Answer questions, at most `concurrency` at a time, in the order they were asked, all at one level.

        Ctrl-C stops at once: running calls are cancelled and no other is made. Finished answers are in the traces.

        Raises:
            BatchError: some failed; `results` has every answer and every error.
            UsageError: an argument is not valid.
        """
        refuse_in_event_loop("ask_many", "aask_many")
        from cascade import batches

        self._serves(level, alpha)
        return batches.in_threads(
            lambda question, halt: self._ask(question, level, alpha, segment, halt), questions, concurrency, self._halt
        )

    async def aask_many(
        self,
        questions: Iterable[str | Question],
        *,
        concurrency: int = 32,
        level: str | None = None,
        alpha: float | None = None,
        segment: str | None = None,
    ) -> list[Answer]:
        """Answer questions without blocking, at most `concurrency` at a time. Raises as `ask_many` does."""
        from cascade import batches

        self._serves(level, alpha)
        return await batches.in_tasks(
            lambda question: self.aask(question, level=level, alpha=alpha, segment=segment), questions, concurrency
        )

    def chat(self, messages: Chat, *, level: str | None = None, alpha: float | None = None, **fields: Any) -> Answer:
        """Answer one chat request: send it to the models unchanged, and serve one model's whole message.

        Args:
            messages: the conversation in OpenAI's form, the body of a chat completion request, or a `ChatRequest`.
            level: the level to ask at, by its name, if the policy has levels (`levels`).
            alpha: the level by the share of questions that may be missed.
            **fields: other fields of the request's body (`tools`, `response_format`, `temperature`, …), and `group`,
                `segment` and `deadline_s`.

        Returns:
            The answer: `message`, `tool_calls`, `parsed` and `to_openai()` have the served message.

        Raises:
            UsageError: the request cannot be sent, or the strategy does not answer chat requests.
            ProviderError, BudgetExceededError: as `ask` does.

        >>> ladder = {"kind": "ladder", "models": ["base", "guide"]}
        >>> with Orchestrator("small", "large", provider="fake", strategy=ladder) as orchestrator:
        ...     orchestrator.chat([{"role": "user", "content": "Hi"}]).message
        {'role': 'assistant', 'content': 'you asked: Hi'}
        """
        refuse_in_event_loop("chat", "achat")
        asked, deadline_s = timed_chat(messages, fields)
        return self.ask(asked, level=level, alpha=alpha, deadline_s=deadline_s)

    async def achat(
        self, messages: Chat, *, level: str | None = None, alpha: float | None = None, **fields: Any
    ) -> Answer:
        """Answer one chat request without blocking the event loop. Raises as `chat` does."""
        asked, deadline_s = timed_chat(messages, fields)
        return await self.aask(asked, level=level, alpha=alpha, deadline_s=deadline_s)

    def stream_chat(
        self, messages: Chat, *, level: str | None = None, alpha: float | None = None, **fields: Any
    ) -> Iterator[TextDelta | Step | Answer]:
        """Answer one chat request and yield text as it is written, each finished step, and at last the answer.

        The text of a step is a draft until the answer comes: a later model may be served in its place.
        """
        refuse_in_event_loop("stream_chat", "astream_chat")
        asked, deadline_s = timed_chat(messages, fields)
        return self.stream(asked, level=level, alpha=alpha, deadline_s=deadline_s)

    async def astream_chat(
        self, messages: Chat, *, level: str | None = None, alpha: float | None = None, **fields: Any
    ) -> AsyncGenerator[TextDelta | Step | Answer, None]:
        """Do as `stream_chat` without blocking the event loop."""
        asked, deadline_s = timed_chat(messages, fields)
        async with aclosing(self.astream(asked, level=level, alpha=alpha, deadline_s=deadline_s)) as events:
            async for event in events:
                yield event

    async def aserve(
        self,
        request: ChatRequest,
        *,
        stream: bool,
        level: str | None = None,
        model: str | None = None,
        trace_id: str | None = None,
        key: str | None = None,
        deadline_s: float | None = None,
        traced: bool = True,
    ) -> AsyncGenerator[TextDelta | Answer, None]:
        """Answer one chat request as a server does: yield only text that is served, then the answer.

        Args:
            request: the chat request.
            stream: whether to yield the last model's text as it is written, once nothing else can be served instead;
                otherwise only the answer is yielded.
            level: the level to ask at, by its name, if the policy has levels.
            model: the name of one of the configured models: only it is asked, and no policy decides.
            trace_id: the id of the episode in the traces.
            traced: whether to write a trace.
            key: the name of the server's key: its budget counts (`budget.per_key`), and traces name it as the user.
            deadline_s: as in `ask`.

        Raises:
            ProviderError, BudgetExceededError, UsageError: as `achat` does.
        """
        only = None
        if model is not None:
            only = outright(alone(self.config, model, self._plain.prompts), f"{model} only")
        asked = Question.of_chat(request)
        calls, walk, trace, plan = self._begin(asked, level, None, None, deadline_s, only, trace_id, traced, key=key)
        last = plan.strategy.horizon if stream and plan.strategy.ends_with_reference else 0
        from cascade.streaming import Flow, aserve

        flow = Flow(last, may_abstain=plan.abstain_below is not None)
        calls.shows = flow.may_show
        pieces = aserve(walk, calls.acomplete, calls.astream, flow, trace)
        with self._halt.working():
            async with aclosing(pieces) as events:
                async for event in events:
                    yield event

    def chat_many(
        self, requests: Iterable[Chat], *, concurrency: int = 8, level: str | None = None, alpha: float | None = None
    ) -> list[Answer]:
        """Answer chat requests, at most `concurrency` at a time, in their order. Raises as `ask_many` does."""
        refuse_in_event_loop("chat_many", "achat_many")
        questions = [chat_question(request, {}) for request in requests]
        return self.ask_many(questions, concurrency=concurrency, level=level, alpha=alpha)

    async def achat_many(
        self, requests: Iterable[Chat], *, concurrency: int = 32, level: str | None = None, alpha: float | None = None
    ) -> list[Answer]:
        """Answer chat requests without blocking, at most `concurrency` at a time. Raises as `ask_many` does."""
        questions = [chat_question(request, {}) for request in requests]
        return await self.aask_many(questions, concurrency=concurrency, level=level, alpha=alpha)

    @property
    def strategy(self) -> Strategy:
        """The strategy in service, with the prompts that it was built with."""
        service = self._service
        return self._plain if service is None else service.strategy

    @property
    def status(self) -> ServiceStatus | None:
        """How many answers had a certificate, and why the others had none; None if nothing is promised."""
        return None if self._service is None else self._service.status

    @property
    def policy(self) -> Policy:
        """The policy in service; at the default level, if there are levels."""
        return self._bare if self._service is None else self._service.default.policy

    @property
    def alarm(self) -> str | None:
        """A sentence about the audits that withdrew a certificate; None without an alarm."""
        return None if self._service is None else self._service.alarm

    @property
    def service(self) -> ServingState | None:
        """The policies in service, their certificates and the audits of these; None if nothing is promised."""
        return self._service

    @property
    def levels(self) -> Mapping[str, Level]:
        """The levels at which a question can be asked, the cheapest first; empty if the policy has none."""
        return {} if self._service is None or self._service.levels is None else self._service.levels.by_name

    def record_outcome(
        self,
        answer: Answer,
        right: Callable[[str], bool | None] | str | Sequence[str],
        *,
        matcher: str = "exact",
        reference_right: bool | None = None,
    ) -> AuditOutcome:
        """Record whether an answer was right, once for each answer whose truth becomes known.

        Monitors use audited answers, in the order of these calls. The alarm's level holds if neither whether nor when
        a truth becomes known depends on whether the answer was right: judging wrong ones sooner raises false alarms. If
        that cannot be avoided, use `cascade monitor` on the log instead, which counts in the order of asking.

        Args:
            answer: the returned answer, `audited` or not; any time later.
            right: whether a text is right (None: unknown), or the accepted answers.
            matcher: the rule by which an answer is one of the accepted ones.
            reference_right: whether the reference alone would have been right; a certificate on regret needs it, except
                for a ladder, whose last model is the reference.

        Returns:
            Whether the question was missed, and whether that was counted; an answer without an audit or a certificate
            is not counted.

        Raises:
            UsageError: `reference_right` is needed.
        """
        from cascade.serving.monitors import AuditOutcome, judge

        if self._service is None:
            return AuditOutcome(None, counted=False, reason="nothing is guaranteed, so nothing is counted")
        return self._service.of(answer).record(answer, judge(right, matcher), reference_right)

    def reload_policy(self, directory: str | Path | None = None) -> None:
        """Serve with the current contents of the policy directory, or with another one, from the next question on.

        The strategy is built again, with the prompts now on the disk, since a certificate covers only the prompts that
        it was made with. A question in progress ends with the prompts and the certificate that it began with.

        Raises:
            ConfigError, NotCertifiedError: as when an orchestrator is made.
            UsageError: no directory is known, or audits once raised an alarm about one of the certificates.
        """
        before = self.config.policy
        configured = before.path if isinstance(before, DirectoryConfig) else None
        if directory is None and configured is None:
            raise UsageError("The configuration names no policy directory: reload_policy(DIR).")
        wanted = DirectoryConfig(kind="directory", path=str(directory or configured))
        config = self.config.model_copy(update={"policy": wanted})
        self._service, self.config = service_of(config, build_strategy(config), self._service), config

    def complete(self, request: Request) -> Completion:
        """Make one call to one of the models, guarded like any other. Raises as `ask` does."""
        return self._guard(request).complete(self.fields.sent(request), self._deadline(), self._halt)

    def break_circuits(self) -> None:
        """From now on, fail calls to a model at once while it keeps failing, and delay calls to an overloaded one."""
        for guard in self._guards.values():
            guard.breakers, guard.turns = guard.breakers or {}, guard.turns or {}

    def flush_traces(self, timeout_s: float = 10.0) -> bool:
        """Wait until the traces of all answers so far are written; return whether they are. Without traces, True."""
        return self._traces is None or self._traces.flush(timeout_s)

    def close(self) -> None:
        """Release connections and memory, and write queued traces. May be called twice.

        Questions in other threads end at once with `ClosedError`; no further call is made. Inside an event loop use
        `aclose`, which also waits for the questions of that loop to end.
        """
        self._closed = True
        self._halt.stop()
        if not in_event_loop():
            self._halt.wait_idle(SETTLE_S)
        for guard in self._own:
            guard.close()
        self._close_ledger()
        if self._traces is not None:
            self._traces.close()

    async def aclose(self) -> None:
        """Do as `close` without blocking the event loop."""
        self._closed = True
        self._halt.stop()
        await asyncio.to_thread(self._halt.wait_idle, SETTLE_S)
        for guard in self._own:
            await guard.aclose()
        self._close_ledger()
        if self._traces is not None:
            await asyncio.to_thread(self._traces.close)

    def _close_ledger(self) -> None:
        if self._spending is not None:
            self._spending.ledger.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"Orchestrator({', '.join(self.strategy.models)}, provider={self.config.provider.kind!r})"

    def _begin(
        self,
        question: str | Question,
        level: str | None,
        alpha: float | None,
        segment: str | None,
        deadline_s: float | None,
        only: RunPlan | None = None,
        trace_id: str | None = None,
        traced: bool = True,
        audit: bool = False,
        key: str | None = None,
        halt: Halt | None = None,
    ) -> tuple[Calls, Run, Trace, RunPlan]:
        if self._closed:
            raise UsageError("This orchestrator was closed. Make a new one.")
        deadline = self._deadline(deadline_s)
        asked, said = fitted_question(checked_question(question, segment), self.config.limits.context_chars)
        serving = self._serves(level, alpha) if only is None else None
        plan = only or (RunPlan(self._plain, self._bare) if serving is None else serving.plan(asked))
        trace = Trace(self._traces if traced else None, plan.strategy.horizon, self._prices, plan.walk, trace_id, key)
        calls = Calls(self._guard, deadline, halt or self._halt, key)
        walk = run(
            asked,
            strategy=plan.strategy,
            policy=plan.policy,
            prices=self._prices,
            budget=QuestionBudget(self._cap),
            on_exhausted=self.config.budget.on_exhausted,
            certificate=plan.certificate,
            abstain_below=plan.abstain_below,
            audit=plan.audit or audit,
            warnings=(*plan.warnings, *said),
            level=plan.level,
            scope=plan.scope,
            deadline=deadline,
            standins=self._standins,
            fields=self.fields,
        )
        if serving is not None and not audit:  # later audits are counted by the modes
            walk = serving.counted(walk, odd=plan.scope is not None)
        return calls, trace.follow(asked, walk), trace, plan

    def _serves(self, level: str | None, alpha: float | None) -> CertifiedPolicy | None:
        """Return the policy that serves at a level, by default at the default level."""
        if level is not None or alpha is not None:
            return at_level(self._service, level, alpha)
        return None if self._service is None else self._service.default

    def _guard(self, request: Request, key: str | None = None) -> Guards:
        guard: Guard | TracedGuard = self._guards[request.model]
        if self.config.telemetry.spans:
            from cascade.telemetry import TracedGuard, tracer

            guard = TracedGuard(self._guards[request.model], tracer(), content=self.config.telemetry.content)
        return guard if self._spending is None else self._spending.over(guard, key)

    def _deadline(self, seconds: float | None = None) -> Deadline:
        return Deadline.after(self.config.timeouts.per_question_s if above_zero(seconds) is None else seconds)
