"""`/v1/budgets`: who sees and resets accounts, and who is told when a cap is nearly spent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE_S
from stores import postgres_url

from cascade import Orchestrator
from cascade.config import load
from cascade.errors import ConfigError
from cascade.providers.fake import reply
from cascade.server import budgets
from cascade.server.auth import new_key
from cascade.server.budgets import Budgets
from cascade.server.metrics import Instruments
from cascade.serving.spending import Spending

from .served import ASK, CONFIG, asgi, orchestrator
from .test_sight import samples

CHAT, PATH = "/v1/chat/completions", "/v1/budgets"
BODY = {"model": "small", "messages": ASK, "max_tokens": 5, "user": "ann"}
SURE = reply("The Danube.", input_tokens=100, output_tokens=5)
KEYS = {name: new_key() for name in ("app", "boss")}
SERVER = {
    "keys": [
        {"name": name, "sha256": key.sha256, "scopes": ["ask"] if name == "app" else ["admin"]}
        for name, key in KEYS.items()
    ]
}
HEADERS = {name: {"x-api-key": key.key} for name, key in KEYS.items()}
CAPS = [{"per": "key", "window": "day", "usd": 0.0002}, {"per": "user", "usd": 1}, {"per": "model", "usd": 1}]


def test_alerts_go_to_a_server_that_the_operator_names(monkeypatch):
    config = load({**CONFIG, "budget": {"alerts": {"webhook_env": "HOOK"}}})
    for wrong in ("", "localhost", "ftp://a/b", "http://169.254.169.254/", "http://[::1"):
        monkeypatch.setenv("HOOK", wrong)
        with pytest.raises(ConfigError):
            assert config.alerts_url
    monkeypatch.setenv("HOOK", "https://hooks.example/T1?token=x")
    assert config.alerts_url == "https://hooks.example/T1?token=x"


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: Any, tmp_path: Path) -> Any:
    with ExitStack() as stack:
        if request.param == "postgres":
            yield {"store": stack.enter_context(postgres_url())}
        else:
            yield {} if request.param == "memory" else {"store": f"sqlite:///{tmp_path}/ledger.db"}


async def test_an_admin_sees_all_accounts_and_a_reset_lets_a_key_go_on(store):
    budget = {"caps": CAPS, "wait_s": 0, "time_zone": "Asia/Kolkata", **store}
    async with orchestrator({"small": [SURE] * 3}, server=SERVER, budget=budget) as served, asgi(served) as client:

        async def ask() -> int:
            return (await client.post(CHAT, json=BODY, headers=HEADERS["app"])).status_code

        assert [await ask(), await ask()] == [200, 429]
        assert (await client.get(PATH, headers=HEADERS["app"])).status_code == 403
        assert (await client.post(PATH, json={"reset": "x"}, headers=HEADERS["app"])).status_code == 403
        page = (await client.get(PATH, headers=HEADERS["boss"])).json()
        listed = {entry["account"]: entry for entry in page["data"]}
        of_key = next(iter(listed))
        assert of_key.startswith("key:app day:")
        shares = [float(entry["spent_usd"]) / float(entry["cap_usd"]) for entry in listed.values()]
        assert shares == sorted(shares, reverse=True)
        accounts = {name.partition(" ")[0] for name in listed}
        assert accounts == {"key:app", "key:boss", "user:ann", "model:small", "model:large"}
        of_app = [float(listed[of_key][name]) for name in ("cap_usd", "spent_usd", "held_usd", "resets")]
        assert (of_app, listed[of_key]["ends"][-15:]) == ([0.0002, 0.00011, 0, 0], "T00:00:00+05:30")
        assert listed["user:ann"]["ends"] is None
        for wrong in ("key:app", "key:app day:2020-01-01", "all", "", 1, None):
            response = await client.post(PATH, json={"reset": wrong}, headers=HEADERS["boss"])
            assert (response.status_code, response.json()["error"]["param"]) == (400, "reset")
        now = (await client.post(PATH, json={"reset": of_key}, headers=HEADERS["boss"])).json()["data"]
        after = next(entry for entry in now if entry["account"] == of_key)
        assert (float(after["spent_usd"]), after["resets"], [await ask(), await ask()]) == (0, 1, [200, 429])
        text = samples((await client.get("/metrics", headers=HEADERS["boss"])).text)
        assert text['cascade_budget_booked_usd_total{key="app"}'] == pytest.approx(0.00022)
        assert not [name for name in text if "ann" in name]


class Webhook:
    """A server on loopback that notes what is posted to it and answers as it is told."""

    def __init__(self, *answers: str) -> None:
        self.answers, self.posted = [*answers], list[Any]()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Yield its address."""
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        size = int(head.partition("content-length: ")[2].split()[0])
        self.posted.append(json.loads(await reader.readexactly(size)))
        answer = self.answers.pop(0) if self.answers else "200 OK"
        if answer == "nothing":
            await reader.read()
        elif answer == "endless":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n" + b"x" * 100_000)
        else:
            writer.write(f"HTTP/1.1 {answer}\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n".encode())
        writer.close()


def watching(served: Orchestrator) -> tuple[Budgets, Instruments]:
    tools = Instruments()
    return Budgets(served.runtime, tools), tools


async def posted(watch: Budgets) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*watch._posts)


async def test_a_share_of_a_cap_is_told_once_by_all_replicas_and_again_after_a_reset(store, monkeypatch):
    hook = Webhook()
    caps, alerts = [CAPS[0], {"per": "user", "usd": 0.0002}], {"at": [0.3, 0.5, 0.9], "webhook_env": "HOOK"}
    async with hook.listening() as address:
        monkeypatch.setenv("HOOK", address)
        settings: Any = {"server": SERVER, "budget": {"caps": caps, "alerts": alerts, **store}}
        async with orchestrator({"small": [SURE]}, **settings) as served, orchestrator(**settings) as other:
            (watch, tools), (second, more) = watching(served), watching(other)
            await watch.look()
            assert tools.alerts.total() == 0
            async with asgi(served, **HEADERS["app"]) as client:
                assert (await client.post(CHAT, json=BODY)).status_code == 200
            for each in (watch, second, watch):
                if store:
                    await asyncio.to_thread(served.runtime.spending.ledger.turn)  # type: ignore[union-attr]
                await each.look()
                await posted(each)
            assert dict(tools.alerts) == {("key:app day", "0.5"): 1, ("user", "0.5"): 1}
            assert more.alerts.total() == 0
            shares = {alert["account"].partition(" ")[0]: alert["share"] for alert in hook.posted}
            assert shares == {"key:app": 0.5, "user:ann": 0.5}
            assert all(set(alert) > {"text", "cap_usd", "spent_usd", "ends"} for alert in hook.posted)
            await asyncio.to_thread(served.runtime.spending.ledger.reset, "user:ann", "boss")  # type: ignore[union-attr]
            await watch.look()
            async with asgi(served, **HEADERS["app"]) as client:
                await client.post(CHAT, json={**BODY, "user": "bob"})
            await watch.look()
            await posted(watch)
            assert (len(hook.posted), tools.webhook_failures.total()) == (2, 0)
    assert 'account="user",share="0.5"' in watch.metrics()


async def test_a_raised_cap_is_told_again_and_no_account_that_spent_more_hides_another(store, monkeypatch):
    monkeypatch.setattr(budgets, "_MOST", 0)

    def settings(user: float) -> Any:
        caps = [CAPS[0] | {"usd": 1}, {"per": "user", "usd": user}]
        return {"server": SERVER, "budget": {"caps": caps, "alerts": {"at": [0.5]}, **store}}

    async with orchestrator({"small": [SURE]}, **settings(0.0002)) as served, asgi(served, **HEADERS["app"]) as client:
        for user in "ann", "bob":
            await client.post(CHAT, json=BODY | {"user": user})
        watch, tools = watching(served)
        if store:
            await asyncio.to_thread(served.runtime.spending.ledger.turn)  # type: ignore[union-attr]
        for _ in range(3):
            await watch.look()
        assert dict(tools.alerts) == {("user", "0.5"): 2}
        async with orchestrator(**settings(0.00022)) as raised:
            raised.runtime.take_over(served.runtime)
            watch, tools = watching(raised)
            await watch.look()
            assert dict(tools.alerts) == {("user", "0.5"): 2}


@pytest.mark.parametrize("answers", [["500 No", "302 Found"], ["nothing", "nothing"], ["endless"]])
async def test_a_webhook_that_fails_is_tried_again_counted_and_holds_up_nothing(answers, monkeypatch):
    hook = Webhook(*answers)
    monkeypatch.setattr(budgets, "_PAUSES_S", (0.0, 0.0, 0.0))
    monkeypatch.setattr(budgets, "_POST_S", 0.2 if "nothing" in answers else PATIENCE_S)
    async with hook.listening() as address:
        monkeypatch.setenv("HOOK", address)
        budget = {"caps": CAPS, "alerts": {"at": [0.1], "webhook_env": "HOOK"}}
        async with orchestrator({"small": [SURE]}, server=SERVER, budget=budget) as served:
            watch, tools = watching(served)
            async with asgi(served, **HEADERS["app"]) as client:
                await client.post(CHAT, json=BODY)
            await watch.look()
            await posted(watch)
    failures = 0 if answers == ["endless"] else len(answers)
    assert (tools.webhook_failures.total(), len(hook.posted)) == (failures, failures + 1)


async def test_an_expired_hold_is_booked_and_a_past_day_is_forgotten_but_none_by_a_clock_that_is_ahead(monkeypatch):
    async with orchestrator(budget={"caps": [{"usd": 1}]}) as served:
        ledger = served.runtime.spending.ledger
        past, today = " day:1970-01-03", " day:1970-01-10"
        for day, ends_s in ((past, 0.0), (today, 0.0), ("", 1e12), ("", 0.0)):
            ledger.reserve(5, {f"all{day}": 10}, ends_s)
        watch = watching(served)[0]
        for day in (9, 11, 9, 10):
            monkeypatch.setattr(Spending, "now_s", lambda _, day=day: day * 86_400.0)
            await watch.look()
        assert [ledger.account(f"all{name}")[:2] for name in ("", today, past)] == [(5, 5), (5, 0), (0, 0)]
