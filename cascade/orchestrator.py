"""`Orchestrator`: the configuration wired together. It makes no decision itself; `engine` does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cascade import config as configuration
from cascade.budget.ledger import QuestionBudget
from cascade.building import build_policy, build_strategy
from cascade.config import CascadeConfig
from cascade.engine import Run, adrive, drive, paid_call, run
from cascade.episodes.follow import Trace
from cascade.episodes.traces import TraceWriter
from cascade.errors import BatchError, CascadeError, ProviderError, UsageError
from cascade.money import Price, nano_usd
from cascade.providers import registry
from cascade.providers.base import Provider
from cascade.providers.guard import Guard
from cascade.providers.openai_http import OPENAI_BASE, Endpoint
from cascade.providers.registry import ProviderSettings
from cascade.resilience.deadline import Deadline
from cascade.sections import ModelConfig
from cascade.types import Answer, Completion, Question, Request, Step, TextDelta

MAX_QUESTION_CHARS = 1_000_000


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
        settings: anything else that a configuration may hold (`provider`, `policy`, `strategy`, `budget`, `timeouts`,
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
        self.strategy = build_strategy(config)
        self.policy = build_policy(config)
        self._prices: Mapping[str, Price | None] = config.prices()
        self._cap = None if config.budget.per_question is None else nano_usd(config.budget.per_question)
        self._closed = False
        self._own: list[Guard] = []
        self._guards = self._make_guards(providers)
        self._traces = self._make_writer()

    def _make_writer(self) -> TraceWriter | None:
        wanted, url = self.config.traces, configuration.traces_url(self.config.traces)
        if wanted is None or url is None:
            return None
        keys = {key for guard in self._guards.values() for key in guard.secrets}
        kept: dict[str, Any] = wanted.model_dump(include={"content", "durability", "strict"})
        return TraceWriter(url, secrets=keys, **kept)

    def _trace(self) -> Trace:
        return Trace(
            self._traces,
            self.strategy.horizon,
            lambda request, completion: paid_call(request, completion, self._prices.get(request.model)),
        )

    def _make_guards(self, providers: Mapping[str, Provider]) -> dict[str, Guard]:
        """Return the guard of each model: one provider per kind, its endpoints those of the models it serves."""
        config = self.config
        by_kind: dict[str, list[ModelConfig]] = {}
        guards: dict[str, Guard] = {}
        for entry in config.models.values():
            by_kind.setdefault(entry.provider or config.provider.kind, []).append(entry)
        for kind, entries in by_kind.items():
            options = config.provider.options if kind == config.provider.kind else {}
            settings = ProviderSettings(options, endpoints(config, kind, entries))
            own = kind not in providers
            provider = registry.create(kind, settings) if own else providers[kind]
            keys = tuple({e.api_key for e in settings.endpoints.values() if e.api_key})
            guard = Guard(provider, per_call_s=config.timeouts.per_call_s, secrets=keys)
            if own:
                self._own.append(guard)
            guards |= {entry.model: guard for entry in entries}
        return guards

    def ask(self, question: str | Question) -> Answer:
        """Answer one question.

        Raises:
            ProviderError: every model that could have answered failed.
            BudgetExceededError: the cap would have been passed.
            UsageError: closed, called inside a running event loop (use `aask`), or nothing was asked.
        """
        self._no_event_loop("ask", "aask")
        deadline, trace = self._deadline(), self._trace()
        walk = self._run(question, trace)
        return trace.settle(drive(walk, lambda request: self._guard(request).complete(request, deadline)))

    async def aask(self, question: str | Question) -> Answer:
        """Answer one question without blocking the event loop. Raises as `ask` does."""
        deadline, trace = self._deadline(), self._trace()
        walk = self._run(question, trace)
        answer = await adrive(walk, lambda request: self._guard(request).acomplete(request, deadline))
        return await trace.asettle(answer)

    def stream(self, question: str | Question) -> Iterator[TextDelta | Step | Answer]:
        """Answer one question and yield text as it is written, each finished step, and at last the answer."""
        self._no_event_loop("stream", "astream")
        deadline, trace = self._deadline(), self._trace()
        walk = self._run(question, trace)
        return _stream(walk, lambda request: self._guard(request).stream(request, deadline), trace)

    async def astream(self, question: str | Question) -> AsyncGenerator[TextDelta | Step | Answer, None]:
        """Do as `stream` without blocking the event loop."""
        deadline, trace = self._deadline(), self._trace()
        walk = self._run(question, trace)
        pieces = _astream(walk, lambda request: self._guard(request).astream(request, deadline), trace)
        async with aclosing(pieces) as events:
            async for event in events:
                yield event

    def ask_many(self, questions: Iterable[str | Question], *, concurrency: int = 8) -> list[Answer]:
        """Answer questions, at most `concurrency` at a time, in the order they were asked.

        Raises:
            BatchError: some failed; `results` holds every answer and every error.
        """
        self._no_event_loop("ask_many", "aask_many")
        _check_many(questions, concurrency)

        def one(question: str | Question) -> Answer | CascadeError:
            try:
                return self.ask(question)
            except CascadeError as error:
                return error

        with ThreadPoolExecutor(concurrency, thread_name_prefix="cascade-ask") as threads:
            return _all_or_batch_error(list(threads.map(one, questions)))

    async def aask_many(self, questions: Iterable[str | Question], *, concurrency: int = 32) -> list[Answer]:
        """Answer questions without blocking, at most `concurrency` at a time. Raises as `ask_many` does."""
        _check_many(questions, concurrency)
        places = asyncio.Semaphore(concurrency)

        async def one(question: str | Question) -> Answer | CascadeError:
            async with places:
                try:
                    return await self.aask(question)
                except CascadeError as error:
                    return error

        return _all_or_batch_error(await asyncio.gather(*(one(question) for question in questions)))

    def complete(self, request: Request) -> Completion:
        """Make one call to one of the models, guarded as any other. Raises as `ask` does."""
        return self._guard(request).complete(request, self._deadline())

    def close(self) -> None:
        """Give back connections and memory, and write what traces wait. May be called twice."""
        self._closed = True
        for guard in self._own:
            guard.close()
        if self._traces is not None:
            self._traces.close()

    async def aclose(self) -> None:
        """Give back connections and memory, those of the running event loop too."""
        self._closed = True
        for guard in self._own:
            await guard.aclose()
        if self._traces is not None:
            await asyncio.to_thread(self._traces.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"Orchestrator({', '.join(self.strategy.models)}, provider={self.config.provider.kind!r})"

    def _run(self, question: str | Question, trace: Trace) -> Run:
        if self._closed:
            raise UsageError("This orchestrator was closed. Make a new one.")
        asked = checked_question(question)
        walk = run(
            asked,
            strategy=self.strategy,
            policy=self.policy,
            prices=self._prices,
            budget=QuestionBudget(self._cap),
            on_exhausted=self.config.budget.on_exhausted,
        )
        return trace.follow(asked, walk)

    def _guard(self, request: Request) -> Guard:
        return self._guards[request.model]

    def _deadline(self) -> Deadline:
        return Deadline.after(self.config.timeouts.per_question_s)

    @staticmethod
    def _no_event_loop(name: str, instead: str) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        raise UsageError(
            f"{name}() blocks, and it was called inside a running event loop, which would stand still. "
            f"Use: await orchestrator.{instead}(…)"
        )


def checked_question(question: str | Question) -> Question:
    """Return the question, or raise `UsageError` for one that asks nothing or is too long."""
    asked = Question(question) if isinstance(question, str) else question
    given: object = getattr(asked, "text", None)
    if not isinstance(given, str) or not given.strip():
        raise UsageError("There is no question: give a text that is not empty, or Question(text, context).")
    if len(asked.text) + len(asked.context or "") > MAX_QUESTION_CHARS:
        raise UsageError(f"The question is longer than {MAX_QUESTION_CHARS} characters.")
    return asked


def endpoints(config: CascadeConfig, kind: str, entries: Iterable[ModelConfig]) -> dict[str, Endpoint]:
    """Return where each model is served and with which key, as far as the configuration says.

    `openai_http` always needs an address: the provider's, else OPENAI_BASE_URL, else OpenAI's own. `litellm` finds its
    own where none is configured.
    """
    shared = config.provider
    own_kind = kind == shared.kind
    found: dict[str, Endpoint] = {}
    for entry in entries:
        base = entry.api_base or (shared.api_base if own_kind else None)
        key_env = entry.api_key_env or (shared.api_key_env if own_kind else None)
        if kind == "openai_http":
            base = base or configuration.environment(configuration.DEFAULT_BASE_VARIABLE) or OPENAI_BASE
        if base is None and key_env is None:
            continue
        # The default key goes to the default address only: another server must be given its key by name.
        default = configuration.DEFAULT_KEY_VARIABLE if base == OPENAI_BASE else None
        found[entry.model] = Endpoint(base, configuration.environment(key_env or default))
    return found


def _stream(
    walk: Run, answer: Callable[[Request], Iterator[TextDelta | Completion]], trace: Trace
) -> Iterator[TextDelta | Step | Answer]:
    try:
        item = next(walk)
        while True:
            if not isinstance(item, Request):
                yield item
                item = next(walk)
                continue
            try:
                completion = None
                for event in answer(item):
                    if isinstance(event, Completion):
                        completion = event
                    else:
                        yield event
            except ProviderError as error:
                item = walk.throw(error)
            else:
                item = walk.send(completion)
    except StopIteration as end:
        yield trace.settle(end.value)
    finally:
        walk.close()


async def _astream(
    walk: Run, answer: Callable[[Request], AsyncGenerator[TextDelta | Completion, None]], trace: Trace
) -> AsyncGenerator[TextDelta | Step | Answer, None]:
    try:
        item = next(walk)
        while True:
            if not isinstance(item, Request):
                yield item
                item = next(walk)
                continue
            try:
                completion = None
                async with aclosing(answer(item)) as events:
                    async for event in events:
                        if isinstance(event, Completion):
                            completion = event
                        else:
                            yield event
            except ProviderError as error:
                item = walk.throw(error)
            else:
                item = walk.send(completion)
    except StopIteration as end:
        yield await trace.asettle(end.value)
    finally:
        walk.close()


def _check_many(questions: object, concurrency: int) -> None:
    if isinstance(questions, str | Question):
        raise UsageError("ask_many takes a list of questions; for one question use ask.")
    if concurrency < 1:
        raise UsageError("concurrency must be at least 1.")


def _all_or_batch_error(results: list[Answer | CascadeError]) -> list[Answer]:
    failed = [result for result in results if isinstance(result, CascadeError)]
    if failed:
        raise BatchError(
            f"{len(failed)} of {len(results)} questions failed, first {type(failed[0]).__name__}: {failed[0]}. "
            "`.results` of this error holds every answer and every error, in order.",
            results=tuple(results),
        )
    return [result for result in results if isinstance(result, Answer)]
