"""People's judgements in the e-process of a regret certificate: in order, in time, and only of what was drawn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from cascade.errors import ConfigError
from cascade.modes.state import CascadeState, Draw, InForce, harmless
from cascade.modes.store import ModeStore

NAME, DAY_S = "support", 86_400.0
HELD = InForce("c1", 1, 0.1, 0.05, 100, "json", promise="regret")


@pytest.fixture
def store(store_url: str) -> Iterator[ModeStore]:
    """Yield a store in which a certificate of regret is in force."""
    opened = begun(ModeStore.open(store_url))
    yield opened
    opened.close()


def begun(made: ModeStore) -> ModeStore:
    made.begin(NAME)
    made.change(NAME, lambda one: one.promoted(HELD, 0.1, "me", "now"))
    return made


def audited(store: ModeStore, number: int, differs: bool | None = True) -> None:
    one = Draw(f"t{number}", NAME, f"c{number}", str(number), "audit", float(number), certificate="c1")
    store.draw(one)
    store.settle(one, differs=differs, pair=f"q{number}/a/b")


def counted(store: ModeStore, now_s: float = 10.0, losses: dict[str, bool] | None = None) -> tuple[int, int, str]:
    state = store.count(NAME, now_s, DAY_S, losses or {})
    assert state.monitor is not None
    return state.monitor.audits, state.monitor.misses, state.mode


def test_an_audit_waits_for_its_judgement_and_the_later_ones_wait_for_it(store: ModeStore) -> None:
    audited(store, 1, differs=False)
    audited(store, 2)
    audited(store, 3, differs=False)
    audited(store, 4)
    assert counted(store) == (1, 0, "enforce")
    assert store.judge(NAME, {"t4": False}) == 1  # whoever is judged first is not counted first
    assert counted(store) == (1, 0, "enforce")
    assert counted(store, losses={"q2/a/b": True}) == (4, 1, "enforce")
    assert store.judge(NAME, {"t4": True}) == 0  # it was counted
    assert [one.lost for one in store.draws(NAME)] == [False, True, False, False]


def test_whoever_calls_it_a_loss_is_believed_and_what_was_not_drawn_counts_nowhere(store: ModeStore) -> None:
    audited(store, 1)
    assert store.judge(NAME, {"t1": True, "a request that was not drawn": True}) == 1
    store.judge(NAME, {"t1": False})
    assert counted(store, losses={"q1/a/b": False}) == (1, 1, "enforce")
    audited(store, 2)
    assert counted(store, losses={"q2/a/b": False}) == (2, 1, "enforce")


def test_what_nobody_judges_in_time_is_a_loss_and_raises_the_alarm(store: ModeStore) -> None:
    for number in range(30):
        audited(store, number)
    assert counted(store, DAY_S - 1.0) == (0, 0, "enforce")
    audits, misses, mode = counted(store, DAY_S + 30.0)
    assert mode == "fallback"
    assert 0 < audits == misses < 30
    assert "answered wrongly where the guide is right" in (store.state(NAME).alarm or "")


def test_an_audit_that_cannot_be_judged_is_skipped_without_delaying_others(store: ModeStore) -> None:
    audited(store, 1, differs=None)  # the guide was down
    store.draw(Draw("t2", NAME, "c2", "2", "audit", 2.0, certificate="c1"))
    audited(store, 3, differs=False)
    assert counted(store) == (0, 0, "enforce")  # the second one is pending
    assert store.expire(NAME, 2.5) == 1  # its process was killed
    assert counted(store) == (1, 0, "enforce")
    assert store.counts(NAME).unknown == 2  # neither kept nor missed


def test_feedback_settles_that_nothing_was_lost_and_never_a_loss() -> None:
    assert harmless(True, None, by_guide=False) is False
    assert harmless(False, None, by_guide=True) is False
    assert harmless(None, "neither", by_guide=False) is False
    assert harmless(False, None, by_guide=False) is None  # the guide may be wrong, too
    assert harmless(True, None, by_guide=True) is None  # the other answer may be right, too
    assert harmless(None, "large", by_guide=False) is None


def test_a_certificate_keeps_its_kind_in_the_store() -> None:
    state = replace(CascadeState(NAME), in_force=HELD)
    assert CascadeState.loads(state.dumps(), 0).in_force == HELD


def test_a_configuration_for_regret_says_all_that_is_missing() -> None:
    from cascade.config import load
    from unit.server.served import CONFIG

    with pytest.raises(ConfigError) as caught:
        load({**CONFIG, "traces": {"content": "hash"}, "modes": {"promise": "regret"}})
    assert [one.partition(":")[0] for one in caught.value.problems] == ["server.review.ask", "traces.content"]
