"""The modes in a server: who serves, what runs after the response, what stays on record, and what an alarm does."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import threading
from collections import Counter
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from markupsafe import escape
from patience import PATIENCE_S, until

from cascade.api import promoting
from cascade.api.promoting import promote
from cascade.api.study import verify
from cascade.config import load
from cascade.errors import ConfigError, StoreError, UsageError
from cascade.modes.state import Draw
from cascade.modes.store import LEASE_S, ModeStore
from cascade.records import database
from cascade.records.database import Database
from cascade.records.traces import Store
from cascade.server import modes
from cascade.server.auth import new_key
from cascade.server.catalog import Catalog
from cascade.server.modes import Modes

from .observed import (
    Answers,
    Gated,
    ask,
    config_of,
    observed,
    outcomes,
    over,
    serving,
    settings,
    settled,
    state_of,
    store_of,
    text_of,
)
from .served import CONFIG, WAIT_S, orchestrator
from .test_sight import samples


@pytest.fixture(scope="module")
def looked(seen: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which a policy was promoted."""
    folder = Path(shutil.copytree(seen, tmp_path_factory.mktemp("looked") / "own"))
    result = promote(config_of(folder))
    assert result.promoted, str(result)
    assert result.page["losses"] <= result.page["losses_allowed"]
    assert result.page["saving_usd"] > 0
    assert result.page["level"] == result.page["spent"] == 0.05
    return folder


@pytest.fixture
def enforcing(looked: Path, tmp_path: Path) -> Path:
    """Return a folder of the test's own in which a policy was promoted."""
    return Path(shutil.copytree(looked, tmp_path / "own"))


@pytest.mark.parametrize("caps", [[], [{"usd": 1.0}]])
async def test_the_guide_serves_and_the_calls_of_drawn_requests_are_spent(tmp_path, caps):
    provider, key = Answers(), new_key()
    server = {"keys": [{"name": "app", "sha256": key.sha256, "scopes": ["ask", "admin"]}]}
    async with serving(tmp_path, provider, budget={"caps": caps}, server=server) as client:
        client.headers["authorization"] = f"Bearer {key.key}"
        for number in range(3):
            assert (await ask(client, f"hard {number}")).headers["x-cascade-served-by"] == "large"
            await settled(client)
        counts = samples((await client.get("/metrics")).text)
    with closing(Store(f"sqlite:///{tmp_path}/traces.db", read_only=True)) as traces:
        cost = Counter[str]()
        for row in traces.read():
            cost[row["model"]] += row["cost_nano_usd"]
            assert row["user"] == "app"
    assert (provider.called, outcomes(tmp_path)) == (["large", "small"] * 3, [("observe", "complete", None)] * 3)
    assert min(cost["small"], cost["large"]) > 0
    assert counts["cascade_cost_usd_total"] == pytest.approx(cost.total() / 1e9)
    assert counts['cascade_key_cost_usd_total{key="app"}'] == counts["cascade_cost_usd_total"]


async def test_a_row_stays_where_a_call_fails_and_where_nobody_answers(tmp_path, caplog):
    provider, traces = Answers(), {**settings(tmp_path)["traces"], "content": "hash"}
    async with serving(tmp_path, provider, traces=traces) as client:
        provider.down = {"small"}
        first = {"x-cascade-group": "a", "x-cascade-turn": "1"}
        assert (await ask(client, "one", **first)).status_code == 200
        await settled(client)
        provider.down = {"large"}
        assert (await ask(client, "two")).status_code == 503
        provider.down = set()
        assert (await ask(client, "one", **first)).status_code == 200  # asked again: the first row stays as it is
        await settled(client)
        await ask(client, "three", **first)  # another request under the name of that turn: another row
    assert outcomes(tmp_path) == [*[("observe", "missing", None)] * 2, ("observe", "complete", None)]
    assert ("ProviderUnavailableError" in caplog.text, "it is down" in caplog.text) == (True, False)


async def test_a_drawn_request_is_pending_for_as_long_as_its_process_lives(tmp_path):
    store = store_of(tmp_path)
    async with serving(tmp_path, Gated("small"), server={"drain_s": 0.001}) as client:
        await ask(client, "easy")
        (row,) = store.draws("cascade")
        served, later_s = vars(client)["_transport"].app, row.drawn_s + 3 * LEASE_S
        await served.edge.cascades[0].modes.count(later_s)
        store.count("cascade", later_s)  # by another process, as below
        plan = promote(config_of(tmp_path), plan=True).plan
        assert plan.counts[2:] == (1, row.drawn_s, later_s + LEASE_S)
        assert plan.counts.hindrance in (await client.get("/ui")).text
        store.count("cascade", later_s + 2 * LEASE_S)
        assert outcomes(tmp_path) == [("observe", "missing", None)]
    store.close()


@pytest.mark.parametrize("bound", ["_MOST_WAITING", "_MOST_CHARS"])
async def test_of_drawn_requests_beyond_a_bound_nothing_is_known_but_their_trace(tmp_path, monkeypatch, bound):
    """The others waited without a limit while the base did not answer, each with its request in memory."""
    provider = Gated("small")
    async with serving(tmp_path, provider) as client:
        monkeypatch.setattr(modes, bound, 2 if bound == "_MOST_WAITING" else 100)
        answers = [await ask(client, "easy" * 10) for _ in range(5)]
        assert [each.headers["x-cascade-served-by"] for each in answers] == ["large"] * 5
        pending = (await client.get("/v1/cascades")).json()["data"][0]["rows"]["pending"]
        provider.free.set()
        await settled(client)
    assert pending == 2
    assert sorted(outcomes(tmp_path)) == 2 * [("observe", "complete", None)] + 3 * [("observe", "missing", None)]
    with closing(Store(f"sqlite:///{tmp_path}/traces.db", read_only=True)) as traces:
        assert {row["episode_id"] for row in traces.read()} == {each.headers["x-cascade-trace-id"] for each in answers}


async def test_a_drift_is_found_and_a_restart_forgets_nothing(enforcing):
    provider, tmp_path = Answers(), enforcing
    async with serving(tmp_path, provider) as client:
        easy, hard = await ask(client, text_of(1001)), await ask(client, text_of(1000))  # as in what was observed
        assert (easy.headers["x-cascade-served-by"], hard.headers["x-cascade-served-by"]) == ("small", "large")
        assert easy.headers["x-cascade-mode"] == "enforce"
        assert "x-cascade-certificate" in easy.headers
        named = {"x-cascade-group": "one"}
        assert (await ask(client, text_of(1003), **named)).headers["x-cascade-served-by"] == "small"
        mixed = await ask(client, text_of(1005), **named)
        assert mixed.headers["x-cascade-served-by"] == "large"  # after a cheap turn the guide answers the rest
        assert ["x-cascade-uncovered" in each.headers for each in (easy, hard, mixed)] == [False, False, True]
        later = [{"role": "user", "content": text_of(1001)}, easy.json()["choices"][0]["message"]]
        for nameless in ({}, {"x-cascade-group": ""}):
            unnamed = await ask(client, "easy, and then?", *later, **nameless)
            assert unnamed.headers["x-cascade-served-by"] == "large"  # whose conversation is it?
        provider.worse = True
        for number in range(60):
            answer = await ask(client, text_of(4 * number + 2001))
            await settled(client)
            if state_of(tmp_path).mode == "fallback":
                break
        answer = await ask(client, "easy, at last")
        assert (answer.headers["x-cascade-served-by"], answer.headers["x-cascade-mode"]) == ("large", "fallback")
        shown = (await client.get("/v1/cascades")).json()["data"][0]
        counts = samples((await client.get("/metrics")).text)
        assert (counts['cascade_mode{mode="fallback"}'], counts["cascade_alarm"]) == (1, 1)
    with Store(f"sqlite:///{tmp_path}/traces.db", read_only=True) as traces:
        assert traces.models_of(mixed.headers["x-cascade-trace-id"]) == ["large"]
    assert shown["mode"] == "fallback"
    assert shown["monitor"]["alarmed_after"] <= 20
    assert shown["alarm"]
    async with serving(tmp_path, provider) as client:
        assert (await ask(client, "easy, again")).headers["x-cascade-mode"] == "fallback"


async def test_a_cheaper_model_answers_one_turn_of_a_conversation_at_most(enforcing):
    async with serving(enforcing, Answers()) as client:
        named = {"x-cascade-group": "one"}
        at_once = await asyncio.gather(*(ask(client, text_of(4 * number + 1), **named) for number in range(9)))
        assert Counter(turn.headers["x-cascade-served-by"] for turn in at_once) == {"small": 1, "large": 8}
        for first, then in ((text_of(1000), "small"), (text_of(1001), "large")):  # the guide answers the hard one
            turns = [await ask(client, text, **{"x-cascade-group": first}) for text in (first, text_of(1005))]
            assert turns[1].headers["x-cascade-served-by"] == then
        by_name, named = {"model": "small", "messages": [{"role": "user", "content": "Hi"}]}, {"x-cascade-group": "two"}
        await client.post("/v1/chat/completions", json=by_name, headers=named)
        assert (await ask(client, text_of(1009), **named)).headers["x-cascade-served-by"] == "large"


async def test_where_no_folder_takes_a_file_the_guide_serves(enforcing, monkeypatch):
    monkeypatch.setattr(modes.tempfile, "TemporaryDirectory", lambda **_: Path("/no/such/folder").read_bytes())
    async with serving(enforcing, Answers()) as client:
        assert (await ask(client, text_of(1001))).headers["x-cascade-mode"] == "void"
    monkeypatch.setattr(Modes, "_load", lambda *_: asyncio.Event().wait())  # a policy that is never loaded
    async with serving(enforcing, Answers(), timeouts={"per_store_s": 0.05}) as client:
        assert (await client.get("/v1/cascades")).status_code == 503


async def test_where_prices_are_others_the_guide_serves_and_is_observed_and_elsewhere_the_policy_serves(enforcing):
    before = len(outcomes(enforcing))
    async with serving(enforcing, Answers()) as elsewhere, serving(enforcing, Answers(), models=DEARER) as here:
        for client, expected in ((here, ("large", "void")), (elsewhere, ("small", "enforce"))) * 2:
            answer = await ask(client, text_of(1001))
            assert (answer.headers["x-cascade-served-by"], answer.headers["x-cascade-mode"]) == expected
            assert ("x-cascade-uncovered" in answer.headers) is (client is here)
        assert 'cascade_mode{mode="void"} 1' in (await here.get("/metrics")).text
        why = (await here.get("/v1/cascades")).json()["data"][0]["void_here"]
        assert why is not None
        shown, others = [(await client.get("/ui")).text for client in (here, elsewhere)]
        assert ('<p class="figure bad">void</p>' in shown, 'badge bad"' in shown, escape(why) in shown) == (True,) * 3
        assert shown.count('<p class="bad">') == 2  # both prices
        assert ('<p class="figure">enforce</p>' in others, 'badge good"' in others) == (True, True)
    assert (state_of(enforcing).mode, state_of(enforcing).alarm) == ("enforce", None)
    assert outcomes(enforcing)[before:].count(("observe", "complete", None)) == 2  # for another certificate


DEARER = {role: {**model, "price": {"input": 3.0, "output": 2.0}} for role, model in CONFIG["models"].items()}


async def test_requests_that_another_configuration_answered_neither_fit_nor_certify(observing):
    other = load({**CONFIG, **settings(observing, audit=0.1), "models": DEARER})
    with pytest.raises(UsageError):
        promote(other)
    async with serving(observing, Answers()) as before, serving(observing, Answers(), models=DEARER) as client:
        assert state_of(observing).era == 1
        count = len(outcomes(observing))
        for each in (before, client):  # only the later one is observed
            assert (await ask(each, text_of(1001))).headers["x-cascade-served-by"] == "large"
    assert len(outcomes(observing)) == count + 1
    plan = promote(other).plan
    assert plan.counts.conversations + plan.counts.fit == 1
    assert looks(observing) == []


async def test_a_drawn_request_that_the_store_records_too_late_has_no_outcome(tmp_path, monkeypatch):
    draw, began, goes_on = ModeStore.draw, threading.Event(), threading.Event()

    def slow(store: ModeStore, row: Draw) -> bool:
        began.set()
        assert goes_on.wait(PATIENCE_S)
        return draw(store, row)

    monkeypatch.setattr(ModeStore, "draw", slow)
    monkeypatch.setattr("cascade.records.link.AGAIN_S", 0.0)
    async with serving(tmp_path, Answers(), timeouts={"per_store_s": 0.2}) as client:
        while not began.is_set():  # on a busy machine it may be late before
            assert (await ask(client, "easy")).headers["x-cascade-mode"] == "unknown"
        goes_on.set()
        while not outcomes(tmp_path) or {outcome for _, outcome, _ in outcomes(tmp_path)} != {"missing"}:
            await client.get("/v1/models")


class Wavering(Answers):
    """The base is sure of each answer, and differs from the guide in every second turn."""

    async def complete(self, request: Any, timeout_s: float) -> Any:
        wrong = request.model == "small" and len(request.chat.messages) > 1
        return await self._reply(request, "no" if wrong else "yes", -0.01, timeout_s)


async def test_whole_conversations_certify_and_are_served_as_they_were_replayed(tmp_path):
    """The base is sure of each first turn and right: it answers that one, and the guide the second one."""
    async with serving(tmp_path, Wavering()) as client:
        for number in range(140):
            names = [{"x-cascade-group": f"{number}", "x-cascade-turn": turn} for turn in "12"]
            first = {"role": "user", "content": "Hello!" if number % 2 else text_of(number)}  # half begin alike
            opening = await ask(client, first["content"], **names[0])
            await ask(client, text_of(number + 100), first, opening.json()["choices"][0]["message"], **names[1])
    over(tmp_path)
    result = promote(config_of(tmp_path, risk=0.2))  # fewer conversations are needed
    assert result.promoted, str(result)
    assert result.page["requests"] == 2 * result.page["certifying_conversations"]
    assert (result.page["losses"], result.page["served_by_cheaper"]) == (0, 0.5)
    assert state_of(tmp_path).in_force.turns == 2
    policy = tmp_path / "policy"
    policy.mkdir()
    with store_of(tmp_path) as store:
        for name, data in store.files("cascade", 1).items():
            (policy / name).write_bytes(data)
    checks = verify(policy, f"sqlite:///{tmp_path}/traces.db").checks
    assert [check.name for check in checks if not check.ok] == ["threshold"]  # no log has whole conversations
    async with serving(tmp_path, Wavering()) as client:
        name, first = {"x-cascade-group": "new"}, {"role": "user", "content": text_of(1)}
        opening = await ask(client, text_of(1), **name)
        later = await ask(client, text_of(2), first, opening.json()["choices"][0]["message"], **name)
    assert [response.headers["x-cascade-served-by"] for response in (opening, later)] == ["small", "large"]


async def test_of_a_drawn_conversation_all_turns_are_drawn_and_asked_twice_and_of_another_none(tmp_path):
    provider, modes = Answers(), {**settings(tmp_path)["modes"], "share": 0.3}
    history = [{"role": "user", "content": "easy"}, {"role": "assistant", "content": "yes"}]
    async with serving(tmp_path, provider, modes=modes) as client:
        for number in range(60):
            for turn in range(3):
                names = {"x-cascade-group": str(number), "x-cascade-turn": str(turn)}
                await ask(client, "easy", *history[: 2 * min(turn, 1)], **names)
        await settled(client)
        with store_of(tmp_path) as store:
            drawn = Counter(draw.conversation for draw in store.draws("cascade"))
        assert set(drawn.values()) == {3}
        assert 5 < len(drawn) < 35
        for name in ("group:new", "request:new"):  # begun before the server, or without a name
            await ask(client, "easy", *history, **({"x-cascade-group": "new"} if name == "group:new" else {}))
        await settled(client)
    assert len(outcomes(tmp_path)) == drawn.total()
    assert (provider.called.count("large"), provider.called.count("small")) == (182, drawn.total())


async def test_a_look_that_finds_nothing_is_counted_and_its_rows_never_certify_again(tmp_path):
    provider = Answers()
    provider.worse = True  # the base is as sure as before, and always differs
    await observed(tmp_path, provider, 260)
    result = promote(config_of(tmp_path))
    assert not result.promoted
    assert "no certificate" in result.page["why"]
    assert (state_of(tmp_path).looks, state_of(tmp_path).mode) == (1, "observe")
    again = promote(config_of(tmp_path))
    assert (again.plan.look, *again.plan.counts) == (2, 260, 0, 0, None, None)
    assert state_of(tmp_path).looks == 1


async def test_a_silent_update_of_a_model_voids_the_certificate(enforcing):
    provider, tmp_path = Answers(), enforcing
    async with serving(tmp_path, provider) as client:
        assert (await ask(client, "easy, 1")).headers["x-cascade-mode"] == "enforce"
        provider.build = "fp_2"
        await ask(client, "easy, 2")
        assert (await ask(client, "easy, 3")).headers["x-cascade-mode"] == "fallback"
    assert "from the build fp_2" in (state_of(tmp_path).alarm or "")


async def test_a_model_that_changes_while_it_is_observed_makes_no_certificate_with_what_it_was(tmp_path):
    provider = Answers()
    await observed(tmp_path, provider, 20)
    provider.build, provider.worse = "fp_2", True
    await observed(tmp_path, provider, 10, first=20)
    state = state_of(tmp_path)
    assert (state.mode, state.era, len(state.changes)) == ("observe", 2, 2)  # of both models
    assert all("from the build fp_2" in change.why for change in state.changes)
    plan = promote(config_of(tmp_path)).plan
    assert plan.counts.conversations + plan.counts.fit <= 10


async def test_a_guide_that_is_down_is_no_evidence_against_the_answers_that_were_served(enforcing):
    async with serving(enforcing, provider := Answers()) as client:
        provider.down = {"large"}
        responses = [await ask(client, f"{'hard' if number % 3 == 0 else 'easy'}, {number}") for number in range(30)]
        provider.down.add("small")
        assert (await ask(client, "easy, 30")).status_code == 503
        await settled(client)
        shown = (await client.get("/v1/cascades")).json()["data"][0]
    assert {response.headers["x-cascade-mode"] for response in responses} == {"enforce"}
    assert {response.headers["x-cascade-served-by"] for response in responses} == {"small"}
    assert (shown["mode"], shown["monitor"]["audits"]) == ("enforce", 0)
    assert set(outcomes(enforcing)[-31:]) == {("audit", "missing", None)}


@pytest.mark.parametrize(("text", "differs"), [("easy 1", None), ("hard 1", False)])
async def test_an_audit_that_is_cut_off_counts_where_nothing_was_served(enforcing, text, differs):
    """A stopping server is no evidence. A client that leaves is: else those that the guide kept waiting do not count."""
    provider = Gated("large")
    async with serving(enforcing, provider, server={"drain_s": 0.001}) as client:
        asking = asyncio.create_task(ask(client, text))
        await provider.asks.wait()
        asking.cancel()
        await asyncio.wait([asking])
        if differs is not None:  # else the server stops before the guide has answered
            await asyncio.to_thread(until, lambda: outcomes(enforcing)[-1][1] == "missing")
    assert outcomes(enforcing)[-1] == ("audit", "missing", differs)
    assert state_of(enforcing).monitor.audits == (differs is False)
    with store_of(enforcing) as store, Store(f"sqlite:///{enforcing}/traces.db", read_only=True) as traces:
        assert traces.models_of(store.draws("cascade")[-1].trace_id) == ["small", "large"]  # which are paid


async def test_an_audit_whose_deadline_ended_before_the_guide_answered_counts_as_no_difference(enforcing):
    provider, limit_s, mode = Gated("large"), 0.1, None
    async with serving(enforcing, provider) as client:
        while mode != "enforce":  # on a busy machine the store may be too late for a short deadline
            limit_s *= 2
            mode = (await ask(client, "hard 1", **{"x-cascade-deadline-s": f"{limit_s}"})).headers.get("x-cascade-mode")
    assert (outcomes(enforcing)[-1], state_of(enforcing).monitor.audits) == (("audit", "missing", False), 1)


async def test_what_answers_in_the_place_of_the_guide_is_not_its_answer(enforcing):
    provider = Answers()
    provider.down = {"large"}
    base, guide = CONFIG["models"].values()
    models = {"base": base, "guide": {**guide, "fallbacks": ["base"]}}
    async with serving(enforcing, provider, models=models) as client:
        assert (await ask(client, "easy, 1")).headers["x-cascade-served-by"] == "small"
    assert outcomes(enforcing)[-1] == ("audit", "missing", None)


async def test_while_their_store_is_away_the_guide_serves_and_no_outcome_is_lost(enforcing, monkeypatch):
    provider, away, pauses = Answers(), asyncio.Event(), list[float]()
    nap = asyncio.sleep

    def transaction(store: ModeStore, *, reading: bool = False) -> Any:
        if away.is_set():
            raise StoreError("unable to open database file", retryable=True)
        return Database.transaction(store, reading=reading)

    async def paused(pause_s: float) -> None:
        pauses.append(pause_s)
        await nap(0)

    monkeypatch.setattr(ModeStore, "transaction", transaction)
    monkeypatch.setattr("cascade.records.link.AGAIN_S", 0.0)
    async with serving(enforcing, provider) as client:
        assert (await ask(client, "easy, 1")).headers["x-cascade-served-by"] == "small"
        await settled(client)
        monkeypatch.setattr("cascade.server.modes.asyncio.sleep", paused)
        provider.then = away.set  # it goes away while the base answers
        named = {"x-cascade-group": "one"}
        cheap = await ask(client, "easy, 2", **named)
        assert (cheap.status_code, cheap.headers["x-cascade-served-by"]) == (200, "small")
        third = await ask(client, "easy, 3")
        assert (third.status_code, third.headers["x-cascade-served-by"]) == (200, "large")
        assert third.headers["x-cascade-mode"] == "unknown"
        assert (third.headers["x-cascade-stores-failing"], "x-cascade-uncovered" in third.headers) == ("modes", True)
        assert 'cascade_mode{mode="unknown"} 1' in (await client.get("/metrics")).text
        refused = await client.post("/v1/cascades", json={"mode": "observe"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_unavailable")
        while len(pauses) < 3:  # what came of the second request waits
            await nap(0)
        away.clear()
        mixed = await ask(client, "easy, and then?", **named)  # who answered there is not forgotten
        assert (mixed.headers["x-cascade-mode"], mixed.headers["x-cascade-served-by"]) == ("enforce", "large")
        assert (await ask(client, "easy, 4")).headers["x-cascade-served-by"] == "small"
        monkeypatch.setattr("cascade.server.modes.asyncio.sleep", nap)
        await settled(client)
        assert set(outcomes(enforcing)[-4:]) == {("audit", "complete", False)}
        with store_of(enforcing) as store, store.transaction() as connection:  # the database was made anew
            connection.execute(sa.delete(database.cascades))
        assert {"unknown", "modes"} <= {*(await ask(client, "easy, 5")).headers.values()}  # the mode, the failing store
    assert pauses[:3] == [1.0, 2.0, 4.0]


async def test_a_server_stops_though_the_store_of_its_modes_is_away(enforcing, monkeypatch):
    def away(database: Database, *, reading: bool = False) -> Any:
        raise StoreError("the disk is full", retryable=True)

    async with asyncio.timeout(WAIT_S):
        with monkeypatch.context() as patched:
            async with serving(enforcing, Gated("large"), server={"drain_s": 0.001}) as client:
                await ask(client, "easy, 1")
                patched.setattr(Database, "transaction", away)
    assert outcomes(enforcing)[-1] == ("audit", "pending", None)


async def test_a_person_sends_everything_to_the_guide_at_once_and_back(enforcing):
    async with serving(enforcing, Answers()) as client:
        changed = await client.post("/v1/cascades", json={"mode": "observe", "why": "to be sure"})
        assert changed.json()["data"][0]["changes"][-1][1:] == ["the admin page", "observe", "to be sure"]
        answer = await ask(client, "easy")
        assert (answer.headers["x-cascade-served-by"], answer.headers["x-cascade-mode"]) == ("large", "observe")
        await client.post("/v1/cascades", json={"mode": "fallback"})
        page = (await client.get("/ui")).text
        assert ('<p class="figure">fallback</p>' in page, 'badge good"' in page) == (True, False)
        assert "alarm" not in page[page.index("<h1>") : page.index("</h1>")]
        await client.post("/v1/cascades", json={"mode": "enforce"})
        assert (await ask(client, "easy, 2")).headers["x-cascade-served-by"] == "small"
        bad = await client.post("/v1/cascades", json={"mode": "fast"})
        form = await client.post("/v1/cascades", content=b"mode=observe")
        assert [response.status_code for response in (bad, form)] == [400, 415]


def test_a_policy_with_levels_and_modes_are_refused(tmp_path):
    served: Any = orchestrator(Answers(), **settings(tmp_path)).runtime
    levelled: Any = SimpleNamespace(config=served.config, strategy=served.strategy, levels={"low": 0.2, "high": 0.05})
    with pytest.raises(ConfigError, match="the policy has levels"):
        Modes(SimpleNamespace(runtime=levelled), Catalog.of(served.config, ()))  # type: ignore[arg-type]


def test_modes_need_the_answers_of_drawn_requests(tmp_path):
    options = settings(tmp_path)
    off = {"traces": "off", "modes": options["modes"] | options["traces"]}
    for more in ({"traces": {**options["traces"], "content": "none"}}, off):
        with pytest.raises(ConfigError):
            promote(load({**CONFIG, **options, **more}))


_STUCK = """
import json, sys
from cascade.api import promoting

def stuck(*_):
    print("looking", flush=True)
    sys.stdin.read()

promoting.look_at = stuck
promoting.promote(json.loads(sys.argv[1]))
"""


def looks(folder: Path) -> list[tuple[int, str]]:
    with store_of(folder) as store:
        return [(look.look, look.verdict) for look in store.looks("cascade")]


def ended(folder: Path) -> None:
    """Let the time pass in which the process of the open look may still run."""
    with store_of(folder) as store, store.transaction() as connection:
        connection.execute(sa.update(database.looks).values(until_s=0.0))


async def test_questions_that_many_customers_ask_keep_nobody_from_a_promotion(tmp_path):
    async with serving(tmp_path, Answers()) as client:
        for number in range(150):  # 25 questions, each asked by six customers
            await ask(client, text_of(number % 25), **{"x-cascade-group": f"customer {number}"})
    over(tmp_path)
    result = promote(config_of(tmp_path, risk=0.2))
    assert result.promoted, str(result)
    assert result.page["certifying_conversations"] + result.page["fit_rows"] == 150


def test_a_plan_says_what_a_look_takes_and_spends_nothing(observing):
    plan = promote(config_of(observing), plan=True).plan
    assert (plan.is_ready, plan.needed <= plan.counts.conversations, looks(observing)) == (True, True, [])


async def test_a_promoted_policy_serves_after_a_restart(observing):
    result = promote(config_of(observing))
    assert (result.promoted, looks(observing)) == (True, [(1, "promoted")])
    assert promote(config_of(observing)).plan is not None  # too few are left for the next look
    async with serving(observing, Answers()) as client:
        assert (await ask(client, "easy, 1")).headers["x-cascade-served-by"] == "small"


def killed_in_the_middle(folder: Path) -> None:
    """Begin a look in a process of its own, and kill it before it has found anything."""
    config = json.dumps({**CONFIG, **settings(folder, audit=0.1)})
    command = [sys.executable, "-c", _STUCK, config]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"looking\n"
        process.kill()


def test_a_look_that_was_killed_is_taken_up_and_spends_once(observing):
    killed_in_the_middle(observing)
    assert (looks(observing), state_of(observing).looks) == ([(1, "open")], 1)
    with pytest.raises(UsageError, match="Another process is looking at cascade"):
        promote(config_of(observing))
    ended(observing)
    result = promote(config_of(observing))
    assert (result.promoted, result.page["look"], result.page["spent"]) == (True, 1, 0.05)
    assert (state_of(observing).looks, state_of(observing).mode) == (1, "enforce")


def test_a_look_that_ends_every_process_is_refused(observing, monkeypatch):
    def broken(*_: Any) -> None:
        raise RuntimeError("a mistake of ours")

    with monkeypatch.context() as patched:
        patched.setattr(promoting, "look_at", broken)
        for _ in range(3):
            with pytest.raises(RuntimeError):
                promote(config_of(observing))
            ended(observing)
    result = promote(config_of(observing))
    assert (result.promoted, state_of(observing).looks, looks(observing)) == (False, 1, [(1, "refused")])


def test_a_look_whose_certificate_was_withdrawn_meanwhile_promotes_nothing(observing, monkeypatch):
    look_at = promoting.look_at

    def withdrawn(*values: Any) -> Any:
        with store_of(observing) as store:
            store.change("cascade", lambda state: state.withdrawn("another build", "a reply", "now"))
        return look_at(*values)

    monkeypatch.setattr(promoting, "look_at", withdrawn)
    result = promote(config_of(observing))
    assert (result.promoted, looks(observing), state_of(observing).mode) == (False, [(1, "refused")], "fallback")
