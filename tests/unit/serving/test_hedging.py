"""The reference's call is begun early: it changes time and money, and no answer."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cascade.budget.charges import QuestionBudget, most_nano_usd
from cascade.budget.sql_ledger import SqlLedger
from cascade.chat import ChatRequest
from cascade.engine import run
from cascade.episodes.files import read_rows
from cascade.episodes.schema import EARLY
from cascade.episodes.tabulate import tables_from_rows
from cascade.errors import BudgetExceededError, ProviderError, ProviderUnavailableError
from cascade.orchestrator import Orchestrator
from cascade.policies.base import Policy, Scores
from cascade.providers.fake import FakeProvider
from cascade.serving.hedging import Purse
from cascade.strategies.base import ModelUse, Strategy
from cascade.strategies.ladder import Ladder
from cascade.strategies.offers import Offer, Offers
from cascade.strategies.prompts import load
from cascade.strategies.verified import Local, Verified
from cascade.types import Answer, Call, Question, Request, TextDelta
from unit.made import CHEAP, completion, request
from unit.serving.hedged import GUIDE, SURE, UNSURE, InOrder, alike, hedge, in_order, wired

QUESTION = "Which river runs through Vienna?"


def ask(orchestrator: Orchestrator) -> Answer:
    with orchestrator:
        return orchestrator.ask(QUESTION)


def aask(orchestrator: Orchestrator) -> Answer:
    async def asked() -> Answer:
        async with orchestrator:
            return await orchestrator.aask(QUESTION)

    return asyncio.run(asked())


def stream(orchestrator: Orchestrator) -> Answer:
    with orchestrator:
        events = list(orchestrator.stream(QUESTION))
    assert isinstance(events[-1], Answer)
    return events[-1]


def astream(orchestrator: Orchestrator) -> Answer:
    async def asked() -> Answer:
        async with orchestrator:
            events = [event async for event in orchestrator.astream(QUESTION)]
        assert isinstance(events[-1], Answer)
        return events[-1]

    return asyncio.run(asked())


WAYS = pytest.mark.parametrize("way", [ask, aask, stream, astream], ids=lambda one: one.__name__)
Way = Callable[[Orchestrator], Answer]


def plain(folder: Path, **replies: Any) -> Answer:
    """Return the answer without a hedge."""
    return ask(wired(folder, in_order("small", "large", "large", least=1, **replies), None))


def begun(answer: Answer) -> list[Call]:
    return [call for call in answer.calls if call.begun is not None]


@WAYS
@pytest.mark.parametrize("ends", [("large", "small"), ("small", "large")], ids=["before", "after"])
def test_the_reference_that_was_begun_early_is_used_at_its_step(
    way: Way, ends: tuple[str, ...], tmp_path: Path
) -> None:
    provider = in_order(*ends)
    answer = way(wired(tmp_path, provider, hedge()))
    assert alike(answer, plain(tmp_path))
    assert sorted(one.model for one in provider.requests) == ["large", "small"]
    (call,) = begun(answer)
    assert (call.request.model, call.begun, call in answer.steps[1].calls) == ("large", 1, True)
    assert (answer.loose_calls, answer.cost_nano_usd) == ((), sum(one.cost_nano_usd or 0 for one in answer.calls))
    assert "note: large was begun early, together with step 1" in answer.explain()


@WAYS
def test_a_call_that_is_not_needed_is_cancelled_and_its_cost_unknown(way: Way, tmp_path: Path) -> None:
    provider = in_order("small", base=SURE)
    answer = way(wired(tmp_path, provider, hedge()))
    assert alike(answer, plain(tmp_path, base=SURE))
    (call,) = answer.loose_calls
    assert (call.begun, call.completion, call.cost_nano_usd, call.billed) == (1, None, None, "maybe")
    assert answer.cost is None
    assert answer.cost_bound is not None
    assert call.cost_bound_nano_usd is not None
    assert call.cost_bound_nano_usd > 0
    assert (
        "large was begun early, together with step 1; Cancelled: it was not needed; its cost is unknown, at most $"
        in (answer.explain())
    )
    assert provider.cancelled == ["large"]
    assert not [one for one in threading.enumerate() if one.name == "cascade-early"]


@WAYS
def test_a_call_that_ended_and_is_not_needed_costs_what_it_cost(way: Way, tmp_path: Path) -> None:
    answer = way(wired(tmp_path, in_order("large", "small", base=SURE), hedge()))
    assert alike(answer, plain(tmp_path, base=SURE))
    (call,) = answer.loose_calls
    assert call.completion is not None
    assert call.cost_nano_usd == 44_000
    assert answer.cost_nano_usd == 44_000 + (answer.steps[0].cost_nano_usd or 0)
    assert "it was not used; it cost $0.000044" in answer.explain()


@WAYS
@pytest.mark.parametrize("ends", [("large", "small", "large"), ("small", "large", "large")], ids=["before", "after"])
def test_a_call_begun_early_that_fails_is_made_again(way: Way, ends: tuple[str, ...], tmp_path: Path) -> None:
    failing = ProviderError("odd")
    failing.billed = "maybe"
    provider = in_order(*ends, guide=(failing, GUIDE))
    answer = way(wired(tmp_path, provider, hedge()))
    assert alike(answer, plain(tmp_path))
    (failed,) = answer.loose_calls
    assert (failed.begun, failed.error, failed.cost_nano_usd) == (1, "ProviderError: odd", None)
    assert [call.begun for call in answer.steps[1].calls] == [None]
    assert answer.cost is None, "the call that failed may be billed"


@WAYS
def test_a_failed_call_that_is_not_needed_fails_nothing(way: Way, tmp_path: Path) -> None:
    answer = way(wired(tmp_path, in_order("large", "small", base=SURE, guide=ProviderError("odd")), hedge()))
    assert alike(answer, plain(tmp_path, base=SURE))
    assert [call.error for call in answer.loose_calls] == ["ProviderError: odd"]
    assert answer.cost_nano_usd == answer.steps[0].cost_nano_usd


@WAYS
@pytest.mark.parametrize("worth", [0.0, -1.0])
def test_a_call_is_begun_only_for_a_worth_above_0(way: Way, worth: float, tmp_path: Path) -> None:
    answer = way(wired(tmp_path, in_order("small", "large", least=1), hedge(worth=worth)))
    assert not begun(answer)


@WAYS
def test_it_can_be_turned_off(way: Way, tmp_path: Path) -> None:
    off = {"kind": "directory", "path": str(tmp_path / "policy"), "hedge": False}
    assert not begun(way(wired(tmp_path, in_order("small", "large", least=1), hedge(), policy=off)))


@WAYS
@pytest.mark.parametrize(("cap", "begins"), [(0.0024, False), (0.01, True)])
def test_a_cap_without_room_for_both_begins_nothing(way: Way, cap: float, begins: bool, tmp_path: Path) -> None:
    provider = in_order("small", "large", least=2 if begins else 1)
    answer = way(wired(tmp_path, provider, hedge(), budget={"per_question": cap}))
    assert bool(begun(answer)) == begins
    without = ask(wired(tmp_path, in_order("small", "large", least=1), None, budget={"per_question": cap}))
    assert alike(answer, without)
    assert answer.text == "the Danube"


def test_a_deadline_nearer_than_a_call_begins_nothing(tmp_path: Path) -> None:
    with wired(tmp_path, in_order("small", "large", least=1), hedge()) as orchestrator:
        assert not begun(orchestrator.ask(QUESTION, deadline_s=60.0))
    with wired(tmp_path, in_order("large", "small"), hedge()) as orchestrator:
        assert begun(orchestrator.ask(QUESTION, deadline_s=600.0))


@pytest.mark.parametrize("way", [stream, astream], ids=lambda one: one.__name__)
def test_text_of_a_call_begun_early_is_shown_at_its_step(way: Way, tmp_path: Path) -> None:
    def events(orchestrator: Orchestrator) -> list[Any]:
        with orchestrator:
            return list(orchestrator.stream(QUESTION))

    async def aevents(orchestrator: Orchestrator) -> list[Any]:
        async with orchestrator:
            return [event async for event in orchestrator.astream(QUESTION)]

    def shown(orchestrator: Orchestrator) -> list[Any]:
        found = events(orchestrator) if way is stream else asyncio.run(aevents(orchestrator))
        return [(one.role, one.text) if isinstance(one, TextDelta) else type(one).__name__ for one in found]

    early = shown(wired(tmp_path, in_order("large", "small"), hedge()))
    assert early == shown(wired(tmp_path, in_order("small", "large", least=1), None))
    unneeded = shown(wired(tmp_path, in_order("large", "small", base=SURE), hedge()))
    assert not [one for one in unneeded if one[0] == "large"]


async def test_a_cancelled_ask_cancels_both_calls(tmp_path: Path) -> None:
    provider = in_order()
    async with wired(tmp_path, provider, hedge()) as orchestrator:
        asking = asyncio.create_task(orchestrator.aask(QUESTION))
        while len(provider.requests) < 2:  # noqa: ASYNC110 - it is what is waited for
            await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    assert sorted(provider.cancelled) == ["large", "small"]


async def test_a_stream_that_is_left_cancels_the_call_begun_early(tmp_path: Path) -> None:
    provider = in_order("small")
    async with wired(tmp_path, provider, hedge()) as orchestrator:
        events = orchestrator.astream(QUESTION)
        await anext(events)
        await events.aclose()  # type: ignore[attr-defined]
    assert provider.cancelled == ["large"]


def test_an_interrupt_stops_the_call_begun_early(tmp_path: Path) -> None:
    provider = in_order("small", base=KeyboardInterrupt())  # type: ignore[arg-type]
    with wired(tmp_path, provider, hedge()) as orchestrator, pytest.raises(KeyboardInterrupt):
        orchestrator.ask(QUESTION)
    assert provider.cancelled == ["large"]


def test_closing_ends_both_calls(tmp_path: Path) -> None:
    provider = in_order()
    orchestrator = wired(tmp_path, provider, hedge())
    failed: list[BaseException] = []

    def asked() -> None:
        try:
            orchestrator.ask(QUESTION)
        except BaseException as error:
            failed.append(error)

    asking = threading.Thread(target=asked)
    asking.start()
    with provider._changed:
        assert provider._changed.wait_for(lambda: len(provider.requests) == 2, 10.0)
    orchestrator.close()
    asking.join(10.0)
    assert sorted(provider.cancelled) == ["large", "small"]
    assert [type(error).__name__ for error in failed] == ["ClosedError"]


@WAYS
@pytest.mark.parametrize(
    ("base", "ends"), [(SURE, ("small",)), (SURE, ("large", "small")), (UNSURE, ("small", "large"))]
)
def test_no_hold_stays_on_the_ledger(way: Way, base: Any, ends: tuple[str, ...], tmp_path: Path) -> None:
    store = tmp_path / "ledger.db"
    for budget in ({"total": 1.0}, {"total": 1.0, "store": f"sqlite:///{store}"}):
        orchestrator = wired(tmp_path, in_order(*ends, base=base), hedge(), budget=budget)
        answer = way(orchestrator)
        ledger = SqlLedger.sqlite(store) if "store" in budget else orchestrator._spending.ledger  # type: ignore[union-attr]
        stands = ledger.account("total")
        ledger.close()
        assert stands.held == 0
        bound = sum(call.cost_bound_nano_usd or 0 for call in answer.calls)
        if "store" not in budget:  # booked in a thread, so a call that has ended may be cancelled while it is booked
            assert stands.spent == bound, "a cancelled call is booked in full"
        assert stands.spent <= bound


@WAYS
def test_a_shared_cap_without_room_for_both_begins_nothing(way: Way, tmp_path: Path) -> None:
    budget = {"total": 0.0022, "wait_s": 0}
    answer = way(wired(tmp_path, in_order("small", "large", least=1), hedge(), budget=budget))
    assert answer.text == "the Danube"
    assert [call.cost_nano_usd for call in answer.loose_calls] == [0]
    assert answer.cost_nano_usd is not None


def test_an_error_has_the_call_begun_early_among_its_calls(tmp_path: Path) -> None:
    provider = InOrder(lambda one: ProviderUnavailableError(one.model), ends=["large", "small", "large"], least=2)
    provider.ends = ["large"] * 3 + ["small"] * 3 + ["large"] * 3
    orchestrator = wired(tmp_path, provider, hedge())
    for guard in orchestrator._guards.values():
        guard.sleep = lambda _: None
    with orchestrator, pytest.raises(ProviderError) as caught:
        orchestrator.ask(QUESTION)
    assert [(call.request.model, call.begun) for call in caught.value.calls] == [
        ("small", None),
        ("large", None),
        ("large", 1),
    ]


@pytest.mark.parametrize("ends", [("small",), ("large", "small")], ids=["cancelled", "ended"])
def test_a_trace_has_the_call_that_was_not_used_and_no_step_of_it(ends: tuple[str, ...], tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/traces.db"
    with wired(tmp_path, in_order(*ends, base=SURE), hedge(), traces=store) as orchestrator:
        answer = orchestrator.ask(QUESTION)
    rows = list(read_rows(store))
    assert [(row["walk"], row["source"], row["step"]) for row in rows] == [(None, "small", 1), (EARLY, "large", 2)]
    unused = rows[1]
    assert unused["cost_nano_usd"] == answer.loose_calls[0].cost_nano_usd
    assert (unused["text"] is None) == (ends == ("small",))
    replay = unused["signals"]["replay"]
    assert replay["begun"] == 1
    if unused["cost_nano_usd"] is None:
        assert replay["cost_bound_nano_usd"] == answer.loose_calls[0].cost_bound_nano_usd
    (table,) = tables_from_rows([{**row, "correct": True if row["candidate"] == 0 else None} for row in rows])
    assert (table.arrays.steps.tolist(), EARLY in table.walks) == ([1], False)


@pytest.mark.parametrize("shown", [True, False])
async def test_a_server_streams_the_reply_that_was_begun_early(shown: bool, tmp_path: Path) -> None:
    async def served(orchestrator: Orchestrator) -> list[Any]:
        asked = ChatRequest([{"role": "user", "content": QUESTION}])
        async with orchestrator:
            return [event async for event in orchestrator.aserve(asked, stream=shown)]

    early = await served(wired(tmp_path, in_order("large", "small"), hedge()))
    later = await served(wired(tmp_path, in_order("small", "large", least=1), None))
    assert [one.text for one in early if isinstance(one, TextDelta)] == [
        one.text for one in later if isinstance(one, TextDelta)
    ]
    assert alike(early[-1], later[-1])
    assert [call.begun for call in early[-1].calls] == [None, 1]
    assert bool([one for one in early if isinstance(one, TextDelta)]) == shown


class _Onward(Policy):
    """Goes on always."""

    kappa = 0.0

    def scores(self, observation: Any) -> Scores:
        return Scores((-1.0,) * len(observation.step.candidates), 1.0)


SMALL, LARGE = ModelUse("small", seed=3, temperature=0.5), ModelUse("large")
CANNOT = ModelUse("blind", images=False)
LADDER = Ladder((SMALL, LARGE), load())
STRATEGIES: dict[str, Strategy] = {
    "ladder": LADDER,
    "of one": Ladder((LARGE,), load()),
    "verified": Verified(LADDER, Local("verifier"), "verifier", (True, False)),
    "offers": Offers(
        (
            Offer("one", SMALL, "sample"),
            Offer("two", SMALL, "sample"),
            Offer("judge", LARGE, "judge", (1,)),
            Offer("again", SMALL, "answer", (1, 3)),
            Offer("last", LARGE, "outright"),
        )
    ),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_what_can_be_begun_early_is_what_the_walk_asks(name: str) -> None:
    strategy, asked = STRATEGIES[name], dict[int, Request]()
    walk = run(Question(QUESTION, "a text"), strategy=strategy, policy=_Onward(), prices={}, budget=QuestionBudget())
    item = next(walk)
    with pytest.raises(StopIteration):
        while True:
            if isinstance(item, Request):
                asked[item.step] = item
                item = walk.send(completion("Reasoning: so.\nAnswer: Danube"))
            else:
                item = next(walk)
    ahead = strategy.ahead(Question(QUESTION, "a text"))
    assert len(ahead) == strategy.horizon
    assert [one for one in ahead if one is not None] == [asked[one.step] for one in ahead if one is not None]
    assert ahead[-1] == asked[strategy.horizon]


def test_a_model_that_cannot_be_asked_is_not_begun() -> None:
    image = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}]
    asked = Question.of_chat(ChatRequest([{"role": "user", "content": image}]))
    assert [one.purpose for one in Ladder((SMALL, CANNOT)).ahead(asked)] == ["answer", "skip"]


@pytest.mark.parametrize("seed", range(12))
def test_answers_decisions_and_reasons_are_the_same_with_and_without_a_hedge(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    script = {name: [draw.choice([SURE, UNSURE, GUIDE, ProviderError("odd")])] for name in ("small", "middle")}
    script["large"] = [draw.choice([SURE, UNSURE, GUIDE, GUIDE])]
    price = {"input": 1.0, "output": 4.0}
    settings: dict[str, Any] = {
        "models": {name: {"model": name, "price": price} for name in ("small", "middle", "large")},
        "strategy": {"kind": "ladder", "models": ["small", "middle", "large"]},
        "budget": {"per_question": draw.choice([None, 0.002, 0.0035, 0.005, 0.01]), "on_exhausted": "answer"},
    }
    states = draw.choice([[()], [(1,)], [(), (1,)]])

    def asked(made: Any, way: Way) -> Any:
        try:
            return way(wired(tmp_path, FakeProvider(script), made, **settings))
        except (BudgetExceededError, ProviderError) as error:
            return type(error), str(error)

    plain = asked(None, ask)
    for way in (ask, aask, stream, astream):
        found = asked(hedge(*states, horizon=3), way)
        if isinstance(plain, Answer):
            assert isinstance(found, Answer)
            assert alike(found, plain)
            known = [call.cost_nano_usd for call in found.calls]
            assert found.cost_nano_usd == (None if None in known else sum(cost or 0 for cost in known))
        else:
            assert found == plain


def test_a_purse_gives_the_money_of_an_early_call_to_its_own_step() -> None:
    price, early = CHEAP, request(model="large", step=2)
    most = most_nano_usd(early, price).nano_usd or 0
    purse = Purse(most + 10)
    purse.begin(early, most)
    with pytest.raises(BudgetExceededError):
        purse.hold(request(), price)
    assert purse.hold(early._replace(at_most_once=True), price) == most
    assert (purse.spent_nano_usd, purse.held_nano_usd) == (0, 0)
