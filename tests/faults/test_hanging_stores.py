"""G4 and G7: a store that hangs holds up no request beyond its time; what happens then is said, counted and made good.

The stores hang on an event that is set only after the response: what waited for them would never end.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from patience import PATIENCE_S, until
from stores import own_cluster
from unit.server.served import ASK, WAIT_S, living, orchestrator
from unit.server.test_contract import SURE

from cascade.budget.caps import Account
from cascade.records import link
from cascade.records.database import Database


class Hang:
    """Makes the stores of these names hang, by the threads that ask them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: tuple[str, ...] = ()
        self.go = threading.Event()
        transaction = Database.transaction

        @contextmanager
        def hanging(database: Database, *, reading: bool = False) -> Iterator[Any]:
            if threading.current_thread().name.startswith(self.names or "none"):
                assert self.go.wait(PATIENCE_S)
            with transaction(database, reading=reading) as connection:
                yield connection

        monkeypatch.setattr(Database, "transaction", hanging)


@pytest.fixture
def hang(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hang]:
    monkeypatch.setattr(link, "AGAIN_S", 0.0)
    made = Hang(monkeypatch)
    yield made
    made.go.set()


def settings(folder: Path, parts: dict[str, Any]) -> dict[str, Any]:
    url = f"sqlite:///{folder}/records.db"
    return {name: {"store": url, **more} if name != "timeouts" else more for name, more in parts.items()}


async def ask(client: httpx.AsyncClient, deadline_s: float = PATIENCE_S) -> httpx.Response:
    headers = {"x-cascade-deadline-s": str(deadline_s)}
    return await client.post("/v1/chat/completions", json={"model": "cascade", "messages": ASK}, headers=headers)


ALLOWS = {"caps": [{"usd": 1}], "on_unreachable": "allow_and_record"}
ROWS = [  # what hangs, the configuration, the status, the mode, and counts
    ("modes", {"modes": {}}, 200, "unknown", ['store_failures_total{store="modes"} 1']),
    ("budget", {"budget": {"caps": [{"usd": 1}]}}, 503, None, ['store_failures_total{store="budget"} 1']),
    (
        "budget",
        {"budget": ALLOWS},
        200,
        None,
        ["budget_unasked_total 1", "budget_waiting 1", "budget_lost_usd_total 0"],
    ),
    ("traces", {"traces": {}}, 200, None, ["traces_waiting 2", "traces_lost_total 0"]),
]


@pytest.mark.parametrize(("name", "parts", "status", "mode", "counted"), ROWS)
async def test_a_store_that_hangs_is_waited_for_in_its_time_and_what_happened_is_said_counted_and_made_good(tmp_path, monkeypatch, hang, name, parts, status, mode, counted):  # fmt: skip
    served = orchestrator({"small": [SURE] * 3, "large": [SURE] * 3}, **settings(tmp_path, parts))
    async with living(served) as client:
        for way in served.runtime.links.values():
            way.limit_s = 0.05
        hang.names = (f"cascade-{name}", "cascade-bookings")
        with monkeypatch.context() as patch:
            patch.setattr(link, "LIMIT_S", -1.0)
            if name == "traces":  # an answer is there before its trace
                await ask(client)
                until(lambda: served.runtime.failing_stores == ("traces",))
            response = await ask(client)
            metrics = (await client.get("/metrics")).text
        assert (response.status_code, response.headers.get("x-cascade-mode")) == (status, mode)
        assert response.headers.get("x-cascade-stores-failing") == (name if status == 200 else None)
        assert all(f"cascade_{line}" in metrics for line in [*counted, f'store_failing{{store="{name}"}} 1'])
        for way in served.runtime.links.values():
            way.limit_s = WAIT_S
        hang.go.set()
        after = await ask(client)
        assert await asyncio.to_thread(served.runtime.flush_traces, WAIT_S)
        assert (after.status_code, after.headers.get("x-cascade-mode")) == (200, None if mode is None else "observe")
        if served.runtime.spending is not None:
            cost, calls = round(1e9 * float(after.headers["x-cascade-cost-usd"])), 1 if status == 503 else 2
            account = served.runtime.spending.ledger.account
            until(lambda: account("all") == Account(spent=calls * cost, held=0))
        assert "x-cascade-stores-failing" not in (await ask(client)).headers
    assert served.runtime.unrecorded is None


@pytest.mark.parametrize("parts", [{"modes": {}}, {"budget": {"caps": [{"usd": 1}]}}, {"traces": {"strict": True}}])
async def test_a_deadline_holds_whatever_hangs_and_a_client_in_a_hurry_makes_no_store_fail(tmp_path, hang, parts):
    served = orchestrator({"small": [SURE] * 2, "large": [SURE] * 2}, **settings(tmp_path, parts))
    async with living(served) as client:
        hang.names = tuple(f"cascade-{name}" for name in parts)
        assert (await ask(client, 0.3)).status_code in {200, 503, 504}
        assert all(way.problem is None for way in served.runtime.links.values())
        hang.go.set()
        assert (await ask(client)).status_code == 200


async def test_what_was_spent_and_never_booked_is_an_error_of_the_process(tmp_path, hang, monkeypatch):
    parts = {"budget": ALLOWS}
    served = orchestrator({"small": [SURE]}, **settings(tmp_path, parts))
    async with living(served) as client:
        served.runtime.links["budget"].limit_s = 0.05
        hang.names = ("cascade-bookings", "cascade-budget")
        cost = (await ask(client)).headers["x-cascade-cost-usd"]
        monkeypatch.setattr(link, "LIMIT_S", 0.0)  # it waits no longer for what hangs
    assert served.runtime.bookings is not None
    assert served.runtime.bookings.lost_nano_usd == round(1e9 * float(cost))
    assert served.runtime.unrecorded is not None


async def test_g4_a_server_that_is_stopped_in_the_middle_holds_up_nobody_and_is_found_again():
    with own_cluster() as (url, send):
        parts = {"modes": {}, "budget": {"caps": [{"usd": 1}]}, "traces": {}}
        config = {name: {"store": url, **more} for name, more in parts.items()}
        served = orchestrator({"large": [SURE] * 1000}, **config)
        async with living(served) as client:
            for way in served.runtime.links.values():
                way.limit_s = 0.5

            async def answers() -> bool:
                response = await ask(client)
                return response.status_code == 200 and "x-cascade-stores-failing" not in response.headers

            while not await answers():
                pass
            try:
                send(signal.SIGSTOP)
                frozen = await asyncio.gather(*(ask(client) for _ in range(32)))
                ready = await client.get("/readyz")
            finally:
                send(signal.SIGCONT)
            assert {response.status_code for response in frozen} == {503}
            assert (ready.status_code, ready.json()["budget"]) == (503, "failing")
            while not await answers():
                pass
            assert await asyncio.to_thread(served.runtime.flush_traces, WAIT_S)
        assert served.runtime.unrecorded is None
