"""The server promotes by itself: once, whoever races, and also where a process is killed in the middle of a look."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import uvloop

from cascade.api import promoting
from cascade.api.promoting import Promotion, promote
from cascade.config import load, modes_url
from cascade.errors import UsageError
from cascade.records.address import parse
from cascade.server import looks as looks_room
from cascade.server.catalog import Catalog
from cascade.server.errors import GatewayError
from cascade.server.looks import Looks
from cascade.server.modes import Modes

from .observed import Answers, ask, config_of, serving, settings, state_of, store_of, text_of
from .served import CONFIG, orchestrator

_STUCK = """
import json, sys
from cascade.api import promoting

def stuck(*_):
    print("looking", flush=True)
    sys.stdin.read()

promoting.look_at = stuck
promoting.promote(json.loads(sys.argv[1]))
"""


def replica(folder: Path, **modes: Any) -> Modes:
    served = orchestrator(Answers(), **settings(folder, audit=0.1, **modes))
    return Modes(served, Catalog.of(served.runtime.config, served.runtime.levels))


async def stopped(*replicas: Modes) -> None:
    for one in replicas:
        await one.drain(0)


def looks(folder: Path) -> list[tuple[int, str, str]]:
    store = store_of(folder)
    try:
        return [(one.look, one.verdict, one.by) for one in store.looks("cascade")]
    finally:
        store.close()


async def test_of_two_replicas_one_promotes_and_both_serve_the_policy(observing: Path) -> None:
    both = [replica(observing, promote="automatic") for _ in range(2)]
    found = await asyncio.gather(*(Looks(one).turn() for one in both), return_exceptions=True)
    assert looks(observing) == [(1, "promoted", "the server")]
    assert [one.get("promoted") for one in found if isinstance(one, dict)][:1] in ([True], [None])
    assert all(isinstance(one, dict | GatewayError | None) for one in found)  # the other waits, or finds nothing left
    assert {(await one.refreshed()).mode for one in both} == {"enforce"}
    assert await Looks(both[0]).turn() is None  # nothing is left to do
    await stopped(*both)
    async with serving(observing, Answers()) as client:  # after a restart
        assert (await ask(client, "easy, 1")).headers["x-cascade-served-by"] == "small"


async def test_questions_that_many_customers_ask_keep_nobody_from_a_promotion(tmp_path: Path) -> None:
    async with serving(tmp_path, Answers()) as client:
        for number in range(150):  # 25 questions, each asked by six customers
            await ask(client, text_of(number % 25), **{"x-cascade-group": f"customer {number}"})
    found = promote(config_of(tmp_path))
    assert found.promoted, found.page.get("why")
    assert found.page["certifying_conversations"] + found.page["fit_rows"] == 150


async def test_by_default_the_server_does_not_look(observing: Path) -> None:
    one = replica(observing)
    assert await Looks(one).turn() is None
    assert looks(observing) == []
    await stopped(one)


def test_a_plan_says_what_a_look_takes_and_spends_nothing(observing: Path) -> None:
    found = promote(config_of(observing), plan=True)
    assert found.plan.is_ready
    assert found.plan.needed <= found.plan.have
    assert looks(observing) == []


async def test_no_process_is_begun_where_no_look_is_due(
    observing: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = list[tuple[str, ...]]()

    async def noted(_: str, *arguments: str) -> dict[str, Any]:
        begun.append(arguments)
        return {"promoted": False}

    monkeypatch.setattr(looks_room, "run_promote", noted)
    empty, full = replica(tmp_path, promote="automatic"), replica(observing, promote="automatic")
    assert await Looks(empty).turn() is None
    own = Looks(full)
    assert (await own.turn(), await own.turn()) == ({"promoted": False}, None)  # no row came since
    assert begun == [("--cascade", "cascade", "--if-ready", "--by", "the server")]
    await full.changed(lambda state, _: state.leased("another replica", 0.0, 1e12))
    assert await Looks(full).turn() is None
    await full.changed(lambda state, _: state.released("another replica"))
    await full.changed(lambda state, at: state.switched(True, "me", "", at))
    assert await Looks(full).turn() is None  # the kill switch is on
    await stopped(empty, full)


def test_the_process_reads_its_configuration_in_the_loop_of_a_server(tmp_path: Path) -> None:
    config = tmp_path / "cascade.json"
    config.write_text(json.dumps({**CONFIG, **settings(tmp_path)} | {"server": {"name": "x" * 100}}), "utf-8")
    with pytest.raises(GatewayError, match="There is no record of a cascade 'xxx"):
        uvloop.run(looks_room.run_promote(config))  # asyncio's own loop runs it in the tests above


async def test_the_process_finds_the_stores_of_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    served = orchestrator(Answers(), traces={"store": "sqlite:///traces.db"}, modes={"risk": 0.1})
    modes = Modes(served, Catalog.of(served.runtime.config, served.runtime.levels))
    assert parse(modes_url(load(modes.configuration())) or "").path == tmp_path / "traces.db"
    await stopped(modes)


async def test_a_failed_turn_is_made_again(observing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: str) -> dict[str, Any]:
        raise GatewayError(409, "another process is looking")

    one = replica(observing, promote="automatic")
    own = Looks(one)
    with monkeypatch.context() as patched:
        patched.setattr(looks_room, "run_promote", fails)
        for _ in range(2):
            with pytest.raises(GatewayError):
                await own.turn()
    await stopped(one)


def killed_in_the_middle(folder: Path) -> None:
    """Begin a look in a process of its own, and kill it before it has found anything."""
    config = json.dumps({**CONFIG, **settings(folder, audit=0.1)})
    command = [sys.executable, "-c", _STUCK, config]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"looking\n"
        process.kill()


def test_a_look_that_was_killed_is_taken_up_and_spends_once(observing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed_in_the_middle(observing)
    assert (looks(observing)[0][1], state_of(observing).looks) == ("open", 1)
    with pytest.raises(UsageError, match="Another process is looking at cascade"):
        promote(config_of(observing))  # its lease has not ended
    later = promoting._now_s() + promoting.LEASE_S
    monkeypatch.setattr(promoting, "_now_s", lambda: later)
    found = promote(config_of(observing), if_ready=True)  # a plan alone would say that no conversation is left
    assert isinstance(found, Promotion)
    assert (found.promoted, found.page["look"], found.page["spent"]) == (True, 1, 0.05)
    assert (state_of(observing).looks, state_of(observing).mode) == (1, "enforce")


def test_a_look_that_ends_every_process_is_refused(observing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("a mistake of ours")

    with monkeypatch.context() as patched:
        patched.setattr(promoting, "look_at", broken)
        for _ in range(3):
            with pytest.raises(RuntimeError):
                promote(config_of(observing))
    found = promote(config_of(observing))
    assert (found.promoted, state_of(observing).looks, looks(observing)[0][1]) == (False, 1, "refused")
    assert "3 processes began this look" in str(found)


def test_a_look_whose_certificate_was_withdrawn_meanwhile_promotes_nothing(observing: Path) -> None:
    store, config = store_of(observing), load(config_of(observing))
    store.open_look("cascade", "me", promoting._now_s(), 0.1, lambda *_: None)
    store.change("cascade", lambda one: one.withdrawn("another build", "a reply", "now"))
    found = promote(config)
    assert (found.promoted, looks(observing)[0][1], store.state("cascade").mode) == (False, "refused", "fallback")
    store.close()
