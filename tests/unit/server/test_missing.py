"""Drawn requests without an outcome: each is a loss, none hides what the others cost, and late traces make none."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from cascade.api.promoting import promote
from cascade.conformal.binomial import most_losses
from cascade.runtime import Runtime
from cascade.server import feedback, modes

from .observed import Answers, Gated, ask, config_of, outcomes, serving, settled, store_of, text_of


def lose(folder: Path, role: str, count: int) -> None:
    """Let so many rows of a role have no outcome, as where a call failed."""
    with closing(sqlite3.connect(folder / "traces.db")) as database, database:
        database.execute(
            "UPDATE cascade_draws SET outcome = 'missing' WHERE trace_id IN "
            "(SELECT trace_id FROM cascade_draws WHERE role = ? ORDER BY conversation LIMIT ?)",
            (role, count),
        )


def test_one_missing_row_is_one_loss_and_leaves_the_costs_known(observing):
    folders = {role: Path(shutil.copytree(observing, observing.parent / role)) for role in ("fit", "certify")}
    before = promote(config_of(observing))
    for role, folder in folders.items():
        lose(folder, role, 1)
        assert promote(config_of(folder), plan=True).plan.is_ready
        result = promote(config_of(folder))
        assert result.promoted, str(result)
        lost = int(role == "certify")
        assert result.page["missing"] == lost <= result.page["losses"] <= result.page["losses_allowed"]
        assert result.page["guide_usd"] == pytest.approx(before.page["guide_usd"], rel=0.02)
        assert result.page["saving_usd"] == pytest.approx(before.page["saving_usd"], rel=0.1)


def test_each_missing_row_is_a_loss_and_one_more_than_is_allowed_ends_the_look(observing):
    allowed = most_losses(drawn(observing, "certify"), 0.1, 0.05)
    assert allowed is not None
    lose(observing, "certify", allowed + 1)
    result = promote(config_of(observing))
    assert (result.promoted, result.page["missing"], result.page["losses_allowed"]) == (False, allowed + 1, allowed)
    assert "no certificate" in result.page["why"]


def drawn(folder: Path, role: str) -> int:
    with store_of(folder) as store:
        return sum(draw.role == role for draw in store.draws("cascade"))


async def test_traces_that_are_late_make_no_row_missing(tmp_path, monkeypatch):
    flush, waits = Runtime.flush_traces, [0]

    def late(self: Runtime, timeout_s: float = 10.0) -> bool:
        """Say of the first waits that the store has not answered in time."""
        waits[0] += 1
        return waits[0] > 2 and flush(self, timeout_s)

    monkeypatch.setattr(Runtime, "flush_traces", late)
    async with serving(tmp_path, Answers()) as client:
        responses = await asyncio.gather(*(ask(client, text_of(number)) for number in range(24)))
        await settled(client)
    assert {response.status_code for response in responses} == {200}
    assert outcomes(tmp_path) == [("observe", "complete", None)] * 24
    assert waits[0] > 2


async def test_a_server_that_stops_leaves_no_row_pending(tmp_path, monkeypatch):
    """One row is in the middle of its call, and two wait for their turn."""
    monkeypatch.setattr(modes, "_AT_ONCE", 1)
    provider = Gated("small")
    async with serving(tmp_path, provider, server={"drain_s": 0.001}) as client:
        for number in range(3):
            await ask(client, text_of(number))
        await provider.asks.wait()
        assert outcomes(tmp_path) == [("observe", "pending", None)] * 3
    assert outcomes(tmp_path) == [("observe", "missing", None)] * 3


async def test_feedback_on_a_drawn_request_waits_for_its_other_calls_or_is_told_to_come_again(tmp_path, monkeypatch):
    provider = Gated("small")
    async with serving(tmp_path, provider) as client:
        body = {"trace_id": (await ask(client, "easy")).headers["x-cascade-trace-id"], "right": True}
        with monkeypatch.context() as patched:
            patched.setattr(feedback, "_FLUSH_S", 0.001)
            early = await client.post("/v1/feedback", json=body)
        assert (early.status_code, early.json()["error"]["code"]) == (503, "trace_pending")
        assert early.headers["retry-after"] == "1"
        waits = asyncio.create_task(client.post("/v1/feedback", json=body))
        await provider.asks.wait()
        assert not waits.done()
        provider.free.set()
        assert (await waits).status_code == 200
