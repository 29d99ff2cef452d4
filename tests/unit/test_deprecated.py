"""Old names work for one release, and each use of one says the new name."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from cascade import Orchestrator
from cascade._names import GONE_WITH
from cascade.episodes.schema import Dropped
from cascade.errors import UsageError
from cascade.serving.audits import Outcome

HELLO = [{"role": "user", "content": "Hi"}]


def models() -> Orchestrator:
    return Orchestrator("small", "large", provider="fake")


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("cascade.episodes.matching", "cascade.matching", "get_matcher"),
        ("cascade.evaluation.report.card", "cascade.evaluation.card", "card_files"),
        ("cascade.guarantees.audit", "cascade.guarantees.base", "Audit"),
        ("cascade.conformal.guarantee", "cascade.guarantees.base", "Guarantee"),
        ("cascade.building", "cascade.factory", "read_policy"),
        ("cascade.sections", "cascade.config.schema", "BudgetConfig"),
        ("cascade.sections", "cascade.strategies.ladder", "LadderConfig"),
        ("cascade.sections", "cascade.policies.fixed", "RandomConfig"),
        ("cascade.sections", "cascade.policies.config", "DirectoryConfig"),
    ],
)
def test_a_module_that_has_moved_is_found_under_its_old_name(old: str, new: str, name: str) -> None:
    module = importlib.import_module(old)  # no warning yet: nothing of it is used
    with pytest.warns(DeprecationWarning, match=f"{old}.{name} is {new}.{name} now.* {GONE_WITH}") as said:
        assert getattr(module, name) is getattr(importlib.import_module(new), name)
    assert said[0].filename == __file__
    with pytest.raises(AttributeError, match="nothing"):
        module.nothing  # noqa: B018


async def first(events: AsyncIterator[Any]) -> Any:
    return [event async for event in events][-1]


@pytest.mark.parametrize(
    "ask",
    [
        lambda one: one.ask("Why?", budget="low"),
        lambda one: one.ask_many(["Why?"], budget="low"),
        lambda one: one.stream("Why?", budget="low"),
        lambda one: asyncio.run(one.aask("Why?", budget="low")),
        lambda one: asyncio.run(one.aask_many(["Why?"], budget="low")),
        lambda one: asyncio.run(first(one.astream("Why?", budget="low"))),
    ],
)
def test_a_level_can_be_asked_for_by_its_old_keyword(ask: Callable[[Orchestrator], Any]) -> None:
    with (
        models() as one,
        pytest.warns(DeprecationWarning, match=r"ask\(budget=…\) is ask\(level=…\) now"),
        pytest.raises(UsageError, match="the level 'low' was asked for"),
    ):
        ask(one)


@pytest.mark.parametrize(
    "ask",
    [
        lambda one: one.ask("Why?", level="low"),
        lambda one: one.chat(HELLO, level="low"),
        lambda one: one.stream_chat(HELLO, level="low"),
        lambda one: one.chat_many([HELLO], level="low"),
        lambda one: asyncio.run(one.achat(HELLO, level="low")),
        lambda one: asyncio.run(one.achat_many([HELLO], level="low")),
        lambda one: asyncio.run(first(one.astream_chat(HELLO, level="low"))),
    ],
)
def test_the_new_keyword_warns_of_nothing(ask: Callable[[Orchestrator], Any]) -> None:
    with models() as one, pytest.raises(UsageError, match="the level 'low' was asked for"):
        ask(one)


def test_a_level_is_asked_for_once() -> None:
    with (
        models() as one,
        pytest.warns(DeprecationWarning, match="level"),
        pytest.raises(UsageError, match="budget is its old name"),
    ):
        one.ask("Why?", level="low", budget="low")


def test_methods_work_under_their_old_names() -> None:
    with models() as one:
        with pytest.warns(DeprecationWarning, match="record_truth is record_outcome now") as said:
            assert not one.record_truth(one.ask("Why?"), "because").counted
        assert said[0].filename == __file__
        with pytest.warns(DeprecationWarning, match="recalibrated is reload_policy now"), pytest.raises(UsageError):
            one.recalibrated()
    with pytest.warns(DeprecationWarning, match="says is reason now"):
        assert Outcome(None, counted=False, reason="why").says == "why"
    dropped = Dropped()
    dropped.drop("torn", "log:1")
    with pytest.warns(DeprecationWarning, match=r"says\(\) is describe\(\) now"):
        assert dropped.says() == dropped.describe()
