"""What people say decides a promotion for regret, and reaches the certificate in force through feedback."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest

from cascade.api.judging import reviews_of
from cascade.api.promoting import promote
from cascade.config import CascadeConfig, load
from cascade.errors import UsageError
from cascade.modes.store import ModeStore
from cascade.records.traces import Store
from cascade.review.pairs import compare
from cascade.review.reviews import Judgement, ReviewStore, Terms
from cascade.server.auth import new_key

from .observed import Answers, ask, observed, serving, settings, settled, state_of, store_of, text_of
from .served import CONFIG

REVIEW = {"server": {"review": {"ask": "regret"}}}


class Worse(Answers):
    """The base always says no and is sure; the guide says yes to half of the requests, and nothing tells which."""

    async def complete(self, request: Any, timeout_s: float) -> Any:
        asked = str(request.chat.messages[-1]["content"]).encode()
        answer = "yes" if request.model == "large" and differs(asked) else "no"
        return await self._said(request, answer, -0.01, timeout_s)


def differs(asked: bytes) -> bool:
    return bool(hashlib.sha256(asked).digest()[0] % 2)


def regret(folder: Path) -> CascadeConfig:
    return load({**CONFIG, **settings(folder, audit=0.1, promise="regret"), **REVIEW})


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with what was observed: the two differ on many requests of which the base is sure."""
    folder = tmp_path_factory.mktemp("seen")
    asyncio.run(observed(folder, Worse(), 260))
    return folder


def judge_all(config: CascadeConfig, folder: Path, output_right: bool, reference_right: bool) -> int:
    """Judge each pair of answers that differ, as a reviewer does on the page or at the terminal."""
    traces = f"sqlite:///{folder}/traces.db"
    with Store.open(traces, read_only=True) as store:
        rows = list(store.read({"split": "audit"}))
    found = compare(lambda: iter(rows))
    with ReviewStore(traces, Terms("regret", found.comparator)) as file:
        for pair in found.pairs:
            said = (output_right, reference_right, "ann", "2026-11-23T10:00:00+00:00")
            file.add(Judgement(*pair.id, "output", "equal", *said))
    held = reviews_of(config)
    return 0 if held is None else len(held.judgements)


def test_judgements_that_find_no_loss_promote(observing: Path) -> None:
    config = regret(observing)
    plan = promote(config, plan=True).plan
    assert not plan.is_ready  # nobody has judged, so each difference counts as a loss
    assert plan.labels > plan.most_labels
    assert judge_all(config, observing, True, True) > 20
    plan = promote(config, plan=True).plan
    assert plan.is_ready
    assert plan.labels == 0
    found = promote(config)
    assert (found.promoted, found.page["promise"], found.page["losses"]) == (True, "regret", 0)
    assert "answered wrongly where the guide is right" in str(found)
    held = state_of(observing).in_force
    assert held is not None
    assert held.by_people
    assert found.page["served_by_cheaper"] > 0.5


def test_reviews_of_another_kind_are_refused_before_a_look_is_counted(observing: Path) -> None:
    with ReviewStore(f"sqlite:///{observing}/traces.db", Terms("preference", "exact", 0.5)):
        pass
    with pytest.raises(UsageError, match=r"only which answer is better.*drawn share of 0\.5"):
        promote(regret(observing))
    assert state_of(observing).looks == 0


def test_without_judgements_or_with_losses_nothing_is_promoted(observing: Path) -> None:
    config = regret(observing)
    assert judge_all(config, observing, False, True) > 20
    assert not promote(config).promoted


async def test_feedback_on_drawn_requests_promotes_and_is_watched(observing: Path) -> None:
    provider, others = Worse(), {**settings(observing, promise="regret"), **REVIEW}
    store = store_of(observing)
    drawn = [one.trace_id for one in store.draws("cascade")]
    async with serving(observing, provider, **others) as client:

        async def tell(trace: str, **said: Any) -> dict[str, Any]:
            told = await client.post("/v1/feedback", json={"trace_id": trace, **said})
            assert told.status_code == 200, told.text
            return dict(told.json())

        assert (await tell(drawn[0], right=True))["counted"] is False  # of the guide: the other may be right, too
        assert [(await tell(trace, right=False))["counted"] for trace in drawn] == [True] * len(drawn)
        bypassed = await ask(client, "easy 2", **{"x-cascade-bypass": "1"})
        told = await tell(bypassed.headers["x-cascade-trace-id"], right=False)
        assert (told["counted"], told["reason"]) == (False, "the request was not drawn, or was counted before")
        assert (await asyncio.to_thread(promote, regret(observing))).promoted

        asked = [text for number in range(1_000, 1_020) if differs((text := text_of(number)).encode())]
        wrong = [await ask(client, text) for text in asked]
        small = [one for one in wrong if one.headers["x-cascade-served-by"] == "small"]
        assert len(small) > 3
        await settled(client)
        assert audits(store)[1] == 0  # those that differ wait for people
        for one in wrong:
            await tell(one.headers["x-cascade-trace-id"], right=one in small)
        assert audits(store) == (len(wrong), 0, "enforce")
    store.close()


async def test_feedback_of_a_key_that_only_asks_settles_nothing(observing: Path) -> None:
    """An application that says of each of its requests that nothing was lost would certify a model that is always wrong."""
    asks, judges = new_key(), new_key()
    keys = [{"name": "app", "sha256": asks.sha256}, {"name": "me", "sha256": judges.sha256, "scopes": ["feedback"]}]
    others = {**settings(observing, promise="regret"), "server": {"keys": keys, **REVIEW["server"]}}
    store = store_of(observing)
    trace = store.draws("cascade")[0].trace_id
    store.close()
    async with serving(observing, Worse(), **others) as client:
        body = {"trace_id": trace, "right": False}
        told = [
            await client.post("/v1/feedback", json=body, headers={"authorization": f"Bearer {key}"})
            for key in (asks.key, judges.key)
        ]
    assert [(each.status_code, each.json()["counted"]) for each in told] == [(200, False), (200, True)]


def audits(store: ModeStore) -> tuple[int, int, str]:
    state = store.state("cascade")
    assert state.monitor is not None
    return state.monitor.audits, state.monitor.misses, state.mode
