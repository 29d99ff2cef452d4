"""Not executed: pins the types of the public API, checked by `mypy` in strict mode."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, assert_type

import cascade
from cascade import (
    Answer,
    BatchError,
    BudgetExceededError,
    CascadeConfig,
    CascadeError,
    Certificate,
    ConfigError,
    MissingExtraError,
    ModelFileError,
    NotCertifiedError,
    Orchestrator,
    Price,
    PriceTable,
    ProviderError,
    Question,
    Step,
    TextDelta,
    Usage,
    UsageError,
)
from cascade.policies.base import Observation, Scorer, StepScores
from cascade.policies.live import LivePolicy
from cascade.policies.policy import Depth
from cascade.providers.base import Payload, Provider, Streams
from cascade.providers.fake import FakeProvider
from cascade.providers.litellm import LiteLLM
from cascade.providers.local import Local
from cascade.providers.openai_http import OpenAIHTTP
from cascade.providers.replay import Replay
from cascade.types import Call, Request

assert_type(cascade.__version__, str)


def makes(config: CascadeConfig, provider: Provider) -> None:
    assert_type(Orchestrator("small", "large"), Orchestrator)
    assert_type(Orchestrator.from_config(), Orchestrator)
    assert_type(Orchestrator.from_config(Path("cascade.yaml")), Orchestrator)
    assert_type(Orchestrator.from_config({"models": {"base": "small", "guide": "large"}}), Orchestrator)
    assert_type(Orchestrator.from_config(config, providers={"fake": provider}), Orchestrator)
    with Orchestrator("small", "large") as opened:
        assert_type(opened, Orchestrator)
        assert_type(opened.runtime.config, CascadeConfig)
    assert_type(config.prices(), dict[str, Price | None])


def asks(orchestrator: Orchestrator) -> None:
    assert_type(orchestrator.ask("Which river?"), Answer)
    assert_type(orchestrator.ask(Question("Which river?", context=None)), Answer)
    assert_type(orchestrator.stream("Which river?"), Iterator[TextDelta | Step | Answer])
    assert_type(orchestrator.many(["a", Question("b")], concurrency=2), list[Answer])
    assert_type(orchestrator.runtime.levels, Mapping[str, float])


async def asks_without_blocking(orchestrator: Orchestrator) -> None:
    assert_type(await orchestrator.aask("Which river?"), Answer)
    assert_type(orchestrator.astream("Which river?"), AsyncGenerator[TextDelta | Step | Answer, None])
    assert_type(await orchestrator.amany(["a"]), list[Answer])
    async with orchestrator as opened:
        assert_type(opened, Orchestrator)
    await orchestrator.aclose()


def reads(answer: Answer) -> None:
    assert_type(answer.text, str | None)
    assert_type(answer.answers, tuple[str, ...])
    assert_type(answer.cost, Decimal | None)
    assert_type(answer.cost_bound, Decimal | None)
    assert_type(answer.cost_nano_usd, int | None)
    assert_type(answer.cost_by_model, dict[str, Decimal | None])
    assert_type(answer.steps, tuple[Step, ...])
    assert_type(answer.calls, tuple[Call, ...])
    assert_type(answer.certificate, Certificate | None)
    assert_type(answer.stopped, str)
    assert_type(answer.warnings, tuple[str, ...])
    assert_type(answer.explain(), str)
    assert_type(answer.to_dict(), dict[str, Any])


def pays(price: Price, usage: Usage) -> None:
    assert_type(Price.per_million(input=0.15, output="0.6", cached_input=Decimal(0)), Price)
    assert_type(price.cost_nano_usd(usage), int | None)
    assert_type(price.bound_nano_usd(1, 1), int)
    assert_type(PriceTable.bundled(), PriceTable)
    assert_type(PriceTable.bundled().price("a"), Price | None)
    assert_type(usage.input_tokens, int | None)


def fails(batch: BatchError, config: ConfigError, provider: ProviderError, budget: BudgetExceededError) -> None:
    assert_type(batch.exit_code, int)
    assert_type(config.problems, tuple[str, ...])
    assert_type(provider.retry_after_s, float | None)
    assert_type(provider.status, int | None)
    tree: tuple[CascadeError, ...] = (batch, config, provider, budget)
    kinds: tuple[type[CascadeError], ...] = (MissingExtraError, ModelFileError, NotCertifiedError, UsageError)
    assert_type(tree[0].exit_code, int)
    assert_type(kinds[0].exit_code, int)


def keeps_the_protocols() -> None:
    """Every built-in plug-in is what its Protocol asks for."""
    _providers: tuple[Provider, ...] = (FakeProvider(), OpenAIHTTP({}), LiteLLM(), Local(), Replay({}))
    _streams: tuple[Streams, ...] = (FakeProvider(), OpenAIHTTP({}), LiteLLM(), Local())
    _policies: tuple[Scorer, ...] = (LivePolicy(Depth(), ()),)


class MyPolicy(Scorer):
    """A policy of somebody else."""

    kappa = 0.5

    @property
    def reads(self) -> tuple[str, ...]:
        return ()

    def scores(self, observation: Observation) -> StepScores:
        return StepScores((1.0,) * len(observation.steps[-1].candidates), 0.0)


class MyProvider:
    """A provider of somebody else."""

    async def complete(self, request: Request, timeout_s: float) -> Payload:
        return {"choices": [], "model": request.model, "timeout": timeout_s}

    async def close(self) -> None:
        return None


def takes_what_others_make() -> tuple[Scorer, Provider]:
    return MyPolicy(), MyProvider()
