"""A look over what a server observed: once, whoever races, and also where a process is killed in the middle."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from cascade.api import promoting
from cascade.api.promoting import Promotion, PromotionPlan, promote
from cascade.errors import UsageError
from cascade.records import database

from .observed import Answers, ask, config_of, serving, settings, state_of, store_of, text_of
from .served import CONFIG

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
    store = store_of(folder)
    try:
        return [(one.look, one.verdict) for one in store.looks("cascade")]
    finally:
        store.close()


def ended(folder: Path) -> None:
    """Let the time pass in which the process of the open look may still run."""
    store = store_of(folder)
    with store._database.transaction() as connection:
        connection.execute(sa.update(database.looks).values(until_s=0.0))
    store.close()


async def test_questions_that_many_customers_ask_keep_nobody_from_a_promotion(tmp_path: Path) -> None:
    async with serving(tmp_path, Answers()) as client:
        for number in range(150):  # 25 questions, each asked by six customers
            await ask(client, text_of(number % 25), **{"x-cascade-group": f"customer {number}"})
    found = promote(config_of(tmp_path, risk=0.2))
    assert isinstance(found, Promotion)
    assert found.promoted, str(found)
    assert found.page["certifying_conversations"] + found.page["fit_rows"] == 150


def test_a_plan_says_what_a_look_takes_and_spends_nothing(observing: Path) -> None:
    found = promote(config_of(observing), plan=True)
    assert found.plan.is_ready
    assert found.plan.needed <= found.plan.have
    assert looks(observing) == []


async def test_a_promoted_policy_serves_after_a_restart(observing: Path) -> None:
    found = promote(config_of(observing))
    assert isinstance(found, Promotion)
    assert (found.promoted, looks(observing)) == (True, [(1, "promoted")])
    assert isinstance(promote(config_of(observing)), PromotionPlan)  # too few are left for the next look
    async with serving(observing, Answers()) as client:
        assert (await ask(client, "easy, 1")).headers["x-cascade-served-by"] == "small"


def killed_in_the_middle(folder: Path) -> None:
    """Begin a look in a process of its own, and kill it before it has found anything."""
    config = json.dumps({**CONFIG, **settings(folder, audit=0.1)})
    command = [sys.executable, "-c", _STUCK, config]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"looking\n"
        process.kill()


def test_a_look_that_was_killed_is_taken_up_and_spends_once(observing: Path) -> None:
    killed_in_the_middle(observing)
    assert (looks(observing), state_of(observing).looks) == ([(1, "open")], 1)
    with pytest.raises(UsageError, match="Another process is looking at cascade"):
        promote(config_of(observing))
    ended(observing)
    found = promote(config_of(observing))
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
            ended(observing)
    found = promote(config_of(observing))
    assert isinstance(found, Promotion)
    assert (found.promoted, state_of(observing).looks, looks(observing)) == (False, 1, [(1, "refused")])


def test_a_look_whose_certificate_was_withdrawn_meanwhile_promotes_nothing(
    observing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_at = promoting.look_at

    def withdrawn(*values: Any) -> Any:
        store = store_of(observing)
        store.change("cascade", lambda state: state.withdrawn("another build", "a reply", "now"))
        store.close()
        return look_at(*values)

    monkeypatch.setattr(promoting, "look_at", withdrawn)
    found = promote(config_of(observing))
    assert isinstance(found, Promotion)
    assert (found.promoted, looks(observing), state_of(observing).mode) == (False, [(1, "refused")], "fallback")
