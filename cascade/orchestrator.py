"""`Orchestrator`: answers questions and chats with a cheap model, a guide and a policy. `runtime` has its parts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from cascade import config as configuration
from cascade.chat import Chat
from cascade.config import CascadeConfig
from cascade.errors import UsageError
from cascade.files import Closed
from cascade.providers.base import Provider
from cascade.resilience.event_loop import iterate, run, running_loop
from cascade.runtime import AskOptions, Input, Runtime, all_or_error, listed
from cascade.types import Answer, Step, TextDelta

if TYPE_CHECKING:  # loaded only if a policy promises something
    from cascade.serving.monitors import AuditOutcome

_STUCK_S = 60.0
"""How long after its deadline a blocking caller waits for an answer and its trace, in case the loop is stuck."""


class Orchestrator(Closed):
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

    Attributes:
        runtime: what it runs on: the configuration, the strategy and policy in service with the audits of its
            certificates (`runtime.service`), guards and traces. `runtime.reload_policy` serves another directory.
    """

    def __init__(self, base: str | None = None, guide: str | None = None, **settings: Any) -> None:
        if base is None or guide is None:
            raise UsageError(
                'Orchestrator needs two models: Orchestrator(base="…", guide="…"), or from_config("file").'
            )
        others = settings.pop("models", {})
        models = {**(others if isinstance(others, Mapping) else {}), "base": base, "guide": guide}
        self.runtime = Runtime(configuration.load({"models": models, **settings}), {})

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
        orchestrator = cls.__new__(cls)
        orchestrator.runtime = Runtime(configuration.load(source), providers or {})
        return orchestrator

    def ask(
        self, question: Input, *, level: str | None = None, deadline_s: float | None = None, **fields: Any
    ) -> Answer:
        """Answer one question, or one chat request as `chat` does.

        Args:
            question: the question, or what `chat` takes.
            level: the level to ask at, by its name ("low" is the cheapest), if the policy has levels.
            deadline_s: seconds after which the best answer so far is returned; overrides `timeouts.per_question_s`.
            **fields: for a question, its `segment` (a tenant, a task, a language), if the policy has a certificate for
                each; it overrides the question's own. For a chat, as in `chat`.

        Raises:
            ProviderError: every model that could have answered failed, or the deadline came before any answer.
            BudgetExceededError: the cap would have been exceeded.
            UsageError: the orchestrator is closed, the question is empty, or the level does not exist.
        """
        pending = self.runtime.start(question, AskOptions(level, deadline_s), fields)
        return run(pending.answer(), pending.deadline.at_s + _STUCK_S)

    async def aask(
        self, question: Input, *, level: str | None = None, deadline_s: float | None = None, **fields: Any
    ) -> Answer:
        """Answer one question without blocking the event loop. Raises as `ask` does."""
        return await self.runtime.start(question, AskOptions(level, deadline_s), fields).answer()

    def chat(
        self, messages: Chat, *, level: str | None = None, deadline_s: float | None = None, **fields: Any
    ) -> Answer:
        """Answer one chat request: send it to the models unchanged, and serve one model's whole message.

        Args:
            messages: the conversation in OpenAI's form, the body of a chat completion request, or a `ChatRequest`.
            level: as in `ask`.
            deadline_s: as in `ask`.
            **fields: other fields of the request's body (`tools`, `response_format`, `temperature`, …), and `group`
                and `segment`.

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
        return self.ask(messages, level=level, deadline_s=deadline_s, **fields)

    async def achat(
        self, messages: Chat, *, level: str | None = None, deadline_s: float | None = None, **fields: Any
    ) -> Answer:
        """Answer one chat request without blocking the event loop. Raises as `chat` does."""
        return await self.aask(messages, level=level, deadline_s=deadline_s, **fields)

    def stream(
        self,
        question: Input,
        *,
        level: str | None = None,
        deadline_s: float | None = None,
        raw: bool = False,
        **fields: Any,
    ) -> Iterator[TextDelta | Step | Answer]:
        """Answer a question or a chat request; yield text as it is written, each finished step, and finally the answer.

        The text is that of the models' answers. It is a draft until the answer comes: a later model's answer may be
        served instead.

        Args:
            question: as in `ask` or in `chat`.
            level: as in `ask`.
            deadline_s: as in `ask`.
            raw: yield everything that the models write, also the reasoning before an answer, verdicts and decisions.
            **fields: as in `chat`; for a question, its `segment`.
        """
        pending = self.runtime.start(question, AskOptions(level, deadline_s), fields)
        return iterate(pending.drafts(raw=raw))

    async def astream(
        self,
        question: Input,
        *,
        level: str | None = None,
        deadline_s: float | None = None,
        raw: bool = False,
        **fields: Any,
    ) -> AsyncGenerator[TextDelta | Step | Answer, None]:
        """Answer and yield as `stream` does, without blocking the event loop."""
        pending = self.runtime.start(question, AskOptions(level, deadline_s), fields)
        async with aclosing(pending.drafts(raw=raw)) as events:
            async for event in events:
                yield event

    def many(self, questions: Iterable[Input], *, concurrency: int = 8, level: str | None = None) -> list[Answer]:
        """Answer questions and chat requests at one level, at most `concurrency` at a time; return answers in order.

        Ctrl-C stops at once: running calls are cancelled and no other is made. Finished answers are in the traces.

        Raises:
            BatchError: some failed; `results` has every answer and every error.
            UsageError: an argument is not valid.
        """
        return run(self.amany(listed(questions, concurrency), concurrency=concurrency, level=level))

    async def amany(
        self, questions: Iterable[Input], *, concurrency: int = 32, level: str | None = None
    ) -> list[Answer]:
        """Answer as `many` does, without blocking the event loop. Raises as `many` does."""
        self.runtime.serves(level)
        every = listed(questions, concurrency)
        results: list[Answer | Exception | None] = [None] * len(every)
        waiting = iter(enumerate(every))

        async def answer() -> None:
            for number, question in waiting:
                try:
                    results[number] = await self.aask(question, level=level)
                except Exception as error:  # noqa: BLE001 - a user's provider may raise any; other answers are paid for
                    results[number] = error

        loop = running_loop()
        tasks = [loop.create_task(answer()) for _ in range(min(concurrency, len(every)))]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return all_or_error(results)

    def record_outcome(
        self,
        answer: Answer,
        right: Callable[[str], bool | None] | str | Sequence[str],
        *,
        matcher: str = "exact",
        reference_right: bool | None = None,
    ) -> AuditOutcome:
        """Record whether an answer was right. Call it once for each answer of which that becomes known.

        Monitors use audited answers, in the order of these calls. The alarm's level holds if neither whether nor when
        an outcome becomes known depends on the answer being right: judging wrong ones sooner raises false alarms. If
        that cannot be avoided, use `cascade evaluate --audits` on the log instead, which counts in the order of asking.

        Args:
            answer: the returned answer, `audited` or not, at any later time.
            right: a function that returns whether a text is right (None if unknown), or the accepted answers.
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

        if (service := self.runtime.service) is None:
            return AuditOutcome(reason="nothing is guaranteed, so nothing is counted")
        return service.of(answer).record(answer, judge(right, matcher), reference_right)

    def close(self) -> None:
        """Release connections and memory, and write queued traces. May be called twice.

        Questions in other threads end at once with `ClosedError`; no further call is made. Inside an event loop use
        `aclose`, which also waits for the questions of that loop to end.
        """
        run(self.runtime.close())

    async def aclose(self) -> None:
        """Close as `close` does, without blocking the event loop."""
        await self.runtime.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        runtime = self.runtime
        return f"Orchestrator({', '.join(runtime.strategy.models)}, provider={runtime.config.provider.kind!r})"
