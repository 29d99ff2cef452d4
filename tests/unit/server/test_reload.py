"""Another configuration without a restart: what must not be cut, nor forgotten, nor moved."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import httpx
import pytest
from patience import until

from cascade import Orchestrator
from cascade.config import load
from cascade.errors import ConfigError, ProviderUnavailableError
from cascade.server import app, lifecycle
from cascade.server.app import Edge, application
from cascade.server.auth import new_key
from cascade.server.lifecycle import fixed
from cascade.server.metrics import Instruments
from cascade.server.modes import Modes
from cascade.serving.conditions import made_for
from unit.certified import SURE as SURE_ENOUGH
from unit.certified import certificate, directory

from . import observed
from .served import ASK, CONFIG, WAIT_S, Gated, living, orchestrator, started, write
from .test_contract import SURE
from .test_sight import samples

CHAT = "/v1/chat/completions"
BODY = {"model": "small", "messages": ASK}
KEYS = [new_key() for _ in range(2)]
Reload = Callable[[Orchestrator], Awaitable[None]]


def sure(_: Any) -> Any:
    return SURE


@asynccontextmanager
async def reloading(served: Orchestrator) -> AsyncIterator[tuple[httpx.AsyncClient, Reload]]:
    """Yield a client, and what serves another orchestrator from then on."""
    tools = Instruments()
    gateway = application(served, instruments=tools)
    async with living(gateway) as client:
        yield client, lambda now: gateway.swap(Edge([now], tools))


async def test_streams_end_on_the_configuration_that_they_began_with(monkeypatch):
    monkeypatch.setattr(app, "_POLL_S", 0)
    gated = Gated(sure, after_words=1)
    first, second = orchestrator(gated, server={"drain_s": 1e-3}), orchestrator(lambda _: "another")
    async with reloading(first) as (client, reload):
        streams = [asyncio.create_task(client.post(CHAT, json={**BODY, "stream": True})) for _ in range(50)]
        await asyncio.to_thread(until, lambda: len(gated._calls) == 50)
        await reload(second)
        assert all(["another" in (await client.post(CHAT, json=BODY)).text for _ in range(20)])
        assert not first.runtime._closed
        gated.go()
        answers = await asyncio.gather(*streams)
        await asyncio.to_thread(until, lambda: first.runtime._closed)
        assert (await client.get("/readyz")).status_code == 200
        assert samples((await client.get("/metrics")).text)["cascade_in_flight"] == 0
    assert [("[DONE]" in each.text, "error" in each.text) for each in answers] == [(True, False)] * 50
    assert second.runtime._closed


async def test_evidence_against_a_certificate_is_never_forgotten(tmp_path):
    needs, keep = {**made_for(load(CONFIG)), "requests": None}, {"kind": "error", "confidence": 0.9}
    signed = {kappa: certificate(made_for=needs, kappa=kappa, **keep) for kappa in (0.5, 0.4)}
    folders = [directory(tmp_path / str(kappa), each, policy=SURE_ENOUGH) for kappa, each in signed.items()]

    def serving(folder: str, seed: int = 1, **others: Any) -> Orchestrator:
        audits = {"guarantee": {"promise": "error"}, "audits": {"probability": 1, "seed": seed}}
        return orchestrator(sure, policy=folder, traces={"store": f"sqlite:///{tmp_path}/t.db"}, **audits, **others)

    def monitored(served: Orchestrator) -> Any:
        ((issued, _),) = served.runtime.service.holding
        return served.runtime.service.monitors.of(issued).monitor

    async def tell(client: httpx.AsyncClient, answer: httpx.Response, right: bool) -> bool:
        body = {"trace_id": answer.headers["x-cascade-trace-id"], "right": right}
        return bool((await client.post("/v1/feedback", json=body)).json()["counted"])

    second, third = serving(folders[0]), serving(folders[0])
    async with reloading(serving(folders[0])) as (client, reload):
        early, _ = await observed.ask(client, "Which river?"), await reload(second)
        assert await tell(client, early, False)  # it was served before
        assert (monitored(second).audits, monitored(second).misses) == (1, 1)
        for number in range(40):
            if second.runtime.alarm is None:
                await tell(client, await observed.ask(client, f"Which river? {number}"), False)
        assert second.runtime.alarm is not None
        for now, alarm in ((third, True), (serving(folders[1]), False), (orchestrator(sure), False)):
            await reload(now)
            assert (now.runtime.alarm is not None) is alarm
            answer = await observed.ask(client, "Which one?")
            assert (answer.headers["x-cascade-served-by"] == "large") is alarm
        last = serving(folders[0], seed=2)
        await reload(last)  # even after another one, and none, have served
        assert last.runtime.alarm == second.runtime.alarm
        assert monitored(last).misses == monitored(second).misses


@pytest.mark.parametrize("store", [False, True])
async def test_money_held_and_spent_stays_in_its_accounts(tmp_path, store):
    place = {"store": f"sqlite:///{tmp_path}/money.db"} if store else {}
    gated = Gated(sure)
    first, second = (orchestrator(gated, budget={"caps": [{"usd": cap}], "wait_s": 0, **place}) for cap in (1.0, 2.0))
    async with reloading(first) as (client, reload):
        request = asyncio.create_task(client.post(CHAT, json=BODY))
        await asyncio.to_thread(until, lambda: bool(gated._calls))
        before = first.runtime.balances()["all"][1]
        await reload(second)
        assert second.runtime.balances()["all"] == (2 * 10**9, before)
        gated.go()
        assert (await request).status_code == 200
        await asyncio.to_thread(until, lambda: first.runtime._closed)
        assert (await client.post(CHAT, json=BODY)).status_code == 200
        after = second.runtime.balances()["all"][1]
        assert (before.held > 0, after.held, after.spent > 0) == (True, 0, True)
        await reload(orchestrator(sure))  # no caps
        third = orchestrator(sure, budget={"caps": [{"usd": before.held / 10**9}], "wait_s": 0, **place})
        await reload(third)
        await asyncio.to_thread(until, lambda: third.runtime.balances()["all"][1] == after)
        assert (await client.post(CHAT, json=BODY)).status_code == 429


async def test_counts_never_go_back_and_one_task_tends_modes(tmp_path, monkeypatch):
    running, most = list[Modes](), list[int]()

    async def forever(modes: Modes) -> None:
        running.append(modes)
        most.append(len(running))
        try:
            await asyncio.Event().wait()
        finally:
            running.remove(modes)

    class Flaky(observed.Answers):
        async def complete(self, request: Any, timeout_s: float) -> Any:
            if len(self.called) == 1:
                self.called.append("again")
                raise ProviderUnavailableError("gone", billed="no")
            return await super().complete(request, timeout_s)

    monkeypatch.setattr(Modes, "forever", forever)
    settings = observed.settings(tmp_path)
    served = orchestrator(Flaky(), **settings)
    for guard in served.runtime.guards.values():
        guard.sleep = lambda _: asyncio.sleep(0)
    async with reloading(served) as (client, reload):
        for number in range(3):
            await observed.ask(client, observed.text_of(number))
        assert served.runtime.flush_traces(10)
        before = (await client.get("/metrics")).text
        await reload(orchestrator(observed.Answers(), **settings))
        after = samples((await client.get("/metrics")).text)
        assert (len(running), most) == (1, [1, 1])
    counters = {*re.findall(r"^# TYPE (\w+) (?:counter|histogram|summary)$", before, re.MULTILINE)}
    counts = {name: value for name, value in samples(before).items() if value and name.startswith((*counters,))}
    families = {name.partition("{")[0] for name in counts}
    assert {"cascade_traces_written_total", "cascade_retries_total", "cascade_turns_total"} <= families
    assert [name for name, value in counts.items() if after.get(name, 0) < value] == []


async def test_a_reload_is_no_way_to_get_a_fresh_minute_or_another_place():
    gated, key = Gated(sure), {"name": "app", "sha256": KEYS[0].sha256}
    before, now = ({"keys": [{**key, "limits": {"requests_per_minute": many, "at_once": 1}}]} for many in (3, 4))
    async with reloading(orchestrator(gated, server=before)) as (client, reload):
        client.headers["x-api-key"] = KEYS[0].key
        first = asyncio.create_task(client.post(CHAT, json=BODY))
        await asyncio.to_thread(until, lambda: bool(gated._calls))
        await reload(orchestrator(sure, server=now))
        assert (await client.post(CHAT, json=BODY)).status_code == 429  # the first is under way
        gated.go()
        statuses = [(await each).status_code for each in (first, client.post(CHAT, json=BODY))]
        assert [*statuses, (await client.post(CHAT, json=BODY)).status_code] == [200, 200, 429]


def test_what_a_reload_does_not_move(tmp_path, caplog):
    stores = [f"sqlite:///{tmp_path}/{name}.db" for name in "ab"]
    before, now = (
        load(
            {
                **CONFIG,
                "traces": {"store": at},
                "budget": {"caps": [{"usd": cap}], "store": at},
                "server": {"port": cap, "body_s": cap},
            }
        )
        for cap, at in enumerate(stores, 1)
    )
    merged = fixed(before, now)
    assert (merged.server.port, merged.server.body_s) == (1, 1)  # connections have the one, bodies would have another
    assert (merged.traces, merged.budget.store) == (before.traces, stores[0])
    assert (merged.budget.caps[0].usd, len(caplog.records)) == (2, 4)
    plain = load(CONFIG)
    assert (fixed(plain, now).budget, fixed(now, plain).budget) == (now.budget, plain.budget)  # nothing was kept there


def test_a_signal_reads_the_file_again_and_a_closed_terminal_ends_the_server(loopback, tmp_path):
    path, heads = tmp_path / "cascade.yaml", [{"x-api-key": key.key} for key in KEYS]

    def change(price: float, keys: list[Any], **others: Any) -> None:
        named = [{"name": str(n), "sha256": key.sha256, "scopes": ["ask", "metrics"]} for n, key in enumerate(keys)]
        models = {**CONFIG["models"], "base": {"model": "small", "price": {"input": price, "output": 2.0}}}
        provider = {"kind": "openai_http", "api_base": loopback.address}
        write(path, models=models, provider=provider, server={"port": 0, "keys": named, **others})

    change(1.0, KEYS)
    ours, theirs = pty.openpty()
    with started(path, stdin=theirs) as (process, url):
        with httpx.Client(base_url=url, timeout=WAIT_S) as client:

            def reloads(outcome: str) -> float:
                counts = samples(client.get("/metrics", headers=heads[0]).text)
                return counts[f'cascade_reloads_total{{outcome="{outcome}"}}']

            costs = list[str]()
            for count, price, keys, status in ((1, 1.0, KEYS, 200), (2, 50.0, KEYS[:1], 401)):
                change(price, keys)
                process.send_signal(signal.SIGHUP)
                until(lambda count=count: reloads("done") == count)
                costs.append(client.post(CHAT, json=BODY, headers=heads[0]).headers["x-cascade-cost-usd"])
                assert client.post(CHAT, json=BODY, headers=heads[1]).status_code == status
            assert float(costs[1]) > float(costs[0])
            for count, (keys, limits) in enumerate(
                ((KEYS, {"at_once": 0}), (KEYS, {"models": ["nobody"]}), ([], {})), 1
            ):
                change(1.0, keys, limits=limits)
                process.send_signal(signal.SIGHUP)
                until(lambda count=count: reloads("refused") == count)
            assert client.post(CHAT, json=BODY, headers=heads[0]).headers["x-cascade-cost-usd"] == costs[1]
        for end in (ours, theirs):
            os.close(end)
        process.send_signal(signal.SIGHUP)
        assert process.wait(WAIT_S) == 0


def test_a_signal_before_it_serves_is_a_reload_once_it_does():
    code = """
import signal
from cascade.config import load
from cascade.server import lifecycle
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # as in served.py
config, built, calls = load(CONFIG), lifecycle._built, []

def slowly(*parts):
    calls.append(parts)
    if len(calls) == 1:
        signal.raise_signal(signal.SIGHUP)
    return built(*parts)

lifecycle._built = slowly
end = lambda _: signal.raise_signal(signal.SIGTERM)
lifecycle.run([config], lambda: lifecycle.bound(config.server), lambda: {'': config}, lambda port: None, end)
print(len(calls))
"""
    settings = {**CONFIG, "provider": "fake", "traces": "off", "server": {"port": 0}}
    command = [sys.executable, "-c", f"CONFIG = {settings!r}{code}"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert (ended.stdout, ended.returncode, ended.stderr.count("\n")) == ("2\n", 0, 1)  # the log says so


def test_a_server_that_cannot_start_leaves_no_signal_blocked(monkeypatch):
    def refuses(*_: object) -> NoReturn:
        raise ConfigError(["no"])

    config, before = load({**CONFIG, "provider": "fake"}), signal.pthread_sigmask(signal.SIG_BLOCK, [])
    monkeypatch.setattr(lifecycle, "_built", refuses)
    with pytest.raises(ConfigError):
        lifecycle.run([config], lambda: lifecycle.bound(config.server), lambda: {"": config}, lambda _: None)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
