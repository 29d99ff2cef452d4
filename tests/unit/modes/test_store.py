"""The state of cascades: in memory, in a file, in PostgreSQL; replicas agree, and a restart forgets nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from random import Random
from typing import Any

import pytest
from patience import at_once
from stores import postgres_url

from cascade.conformal.monitor import Monitor
from cascade.errors import StoreError, UsageError
from cascade.modes.state import CascadeState, Draw, InForce, signs_of
from cascade.modes.store import ModeStore
from cascade.records.database import Database

NAME = "support"
HELD = InForce("c1", 1, 0.1, 0.05, 100, "json", {"small answers as": ("small-1",)})


@pytest.fixture(params=["sqlite", "postgres"])
def opened(request: Any, tmp_path: Path) -> Iterator[Callable[[], ModeStore]]:
    """Yield what opens the same store again and again, as replicas do."""
    with ExitStack() as stack:
        url = f"sqlite:///{tmp_path}/modes.db"
        if request.param == "postgres":
            url = stack.enter_context(postgres_url())

        def again() -> ModeStore:
            made = ModeStore.open(url)
            stack.callback(made.close)
            return made

        yield again


def row(number: int, **columns: Any) -> Draw:
    told = {"conversation": f"c{number}", "turn": "1", "role": "certify"}
    return Draw(**{"trace_id": f"t{number}", "cascade": NAME, "drawn_s": float(number), **told, **columns})


def promoted(state: CascadeState) -> CascadeState:
    return state.promoted(HELD, 0.1, "me", "now")


def test_replicas_share_secret_and_state_and_a_restart_forgets_nothing(opened: Callable[[], ModeStore]) -> None:
    one, other = opened(), opened()
    state, secret = one.begin(NAME)
    assert (state.mode, other.begin(NAME)) == ("observe", (state, secret))
    after = one.change(NAME, promoted)
    assert other.state(NAME, state) == after
    assert other.state(NAME, after) is after
    assert (after.mode, after.in_force, after.serves_policy) == ("enforce", HELD, True)
    assert opened().begin(NAME) == (after, secret)


def test_what_is_refused_changes_nothing(opened: Callable[[], ModeStore]) -> None:
    store = opened()
    before, _ = store.begin(NAME)
    with pytest.raises(UsageError, match="no certificate in force"):
        store.change(NAME, lambda one: one.set_mode("enforce", "me", "because", "now"))
    assert store.state(NAME) == before
    with pytest.raises(UsageError, match="There is no record"):
        store.state("another")


def test_no_change_is_lost_between_threads(opened: Callable[[], ModeStore]) -> None:
    stores = [opened(), opened()]
    stores[0].begin(NAME)

    def work(store: ModeStore) -> None:
        for _ in range(10):
            store.change(NAME, lambda one: one.switched(not one.killed, "me", "", "now"))

    at_once(*(partial(work, store) for store in stores))
    state = stores[0].state(NAME)
    assert (state.version, len(state.changes), state.killed) == (20, 20, False)


def test_a_drawn_row_stays_whatever_becomes_of_it(opened: Callable[[], ModeStore]) -> None:
    store = opened()
    store.begin(NAME)
    assert [store.draw(row(number)) for number in (1, 2, 3)] == [True] * 3
    assert not store.draw(row(9, conversation="c1"))  # the client asked again
    store.settle(row(1), None, 70)
    store.settle(row(2), "the client left", None)
    store.settle(row(1), "late", 5)
    assert store.expire(NAME, 100.0) == 1
    found = store.draws(NAME)
    assert [(one.trace_id, one.outcome, one.off_path_nano_usd) for one in found] == [
        ("t1", "complete", 70), ("t2", "missing", None), ("t3", "missing", None),
    ]  # fmt: skip
    assert [one.trace_id for one in store.draws(NAME, newest=1)] == ["t3"]
    counts = store.counts(NAME)
    assert (counts.complete, counts.missing, counts.off_path_nano_usd, counts.priced) == (1, 2, 70, 1)


def test_a_look_is_counted_first_and_its_rows_never_certify_again(opened: Callable[[], ModeStore]) -> None:
    store = opened()
    store.begin(NAME)
    for one in (row(1), row(2, conversation="c1", turn="2"), row(3), row(4, role="fit"), row(5)):
        store.draw(one)
    for name in ("t1", "t2", "t3", "t4"):
        store.settle(row(int(name[1:])), None, 1)
    first = store.open_look(NAME, "me", 9.0, 0.1, never)
    assert (first.look, [one.trace_id for one in store.draws(NAME, look=1)]) == (1, ["t1", "t2", "t3"])
    assert opened().state(NAME).looks == 1
    assert store.close_look(first, {"why": "nothing"}) is False
    second = store.open_look(NAME, "me", 9.0, 0.1, never)
    assert (second.look, store.draws(NAME, look=2)) == (2, [])  # t2 was looked at with its conversation
    store.close_look(second, {})
    store.settle(row(5), "lost", None)
    third = store.open_look(NAME, "me", 9.0, 0.1, never)
    assert (third.look, [one.outcome for one in store.draws(NAME, look=3)]) == (3, ["missing"])
    assert store.close_look(third, {"saving": 5}, {"policy.json": b"{}"}, promoted)
    assert [one.verdict for one in store.looks(NAME)] == ["refused", "refused", "promoted"]
    assert (store.looks(NAME)[-1].page, store.files(NAME, 3)) == ({"saving": 5}, {"policy.json": b"{}"})
    assert store.counts(NAME)[3:6] == (5, 0, 0)


def never(*_: float) -> None:
    return None


def test_a_look_that_broke_off_is_taken_up_with_its_rows_and_spends_once(opened: Callable[[], ModeStore]) -> None:
    store = opened()
    store.begin(NAME)
    for number in (1, 2):
        store.draw(row(number))
        store.settle(row(number), None, 1)
    begun = store.open_look(NAME, "me", 9.0, 0.1, never)
    store.draw(row(3))
    store.settle(row(3), None, 1)
    other = opened()
    again = other.open_look(NAME, "you", 99.0, 0.1, lambda *_: "a look that is open needs no more rows")
    assert again == begun._replace(tries=2)
    assert [one.trace_id for one in other.draws(NAME, look=1)] == ["t1", "t2"]
    assert other.state(NAME).looks == 1
    assert other.close_look(again, {"who": "you"}, {}, promoted)
    assert store.close_look(begun, {"who": "me"}) is None  # it comes late, and changes nothing
    assert (store.state(NAME).mode, store.looks(NAME)[0].page) == ("enforce", {"who": "you"})
    assert store.looks(NAME)[0].verdict == "promoted"


def test_a_look_in_vain_counts_nothing_and_takes_no_row(opened: Callable[[], ModeStore]) -> None:
    store, told = opened(), []
    store.begin(NAME)
    for one in (row(1), row(2, role="fit"), row(3, conversation="c1", turn="2")):
        store.draw(one)
        store.settle(one, None, 1)
    with pytest.raises(UsageError, match="was not looked at: too few"):
        store.open_look(NAME, "me", 9.0, 0.1, lambda *given: told.append(given) or "too few")
    ((look, counts),) = told
    assert (look.look, look.level, counts.fit, counts.conversations) == (1, 0.05, 1, 1)
    assert (store.state(NAME).looks, store.looks(NAME), store.counts(NAME).certify) == (0, [], 2)


def leases(store: ModeStore, owner: str, now_s: float, until_s: float) -> bool:
    try:
        return store.change(NAME, lambda state: state.leased(owner, now_s, until_s)).lease == (owner, until_s)
    except UsageError:
        return False


def test_one_replica_holds_the_lease_until_it_ends_or_is_given_back(opened: Callable[[], ModeStore]) -> None:
    one, other = opened(), opened()
    one.begin(NAME)
    assert leases(one, "one", 10.0, 20.0)
    assert not leases(other, "other", 19.0, 29.0)
    assert leases(one, "one", 19.0, 30.0)
    assert other.state(NAME).lease == ("one", 30.0)
    assert leases(other, "other", 30.0, 40.0)  # the first was killed
    assert one.change(NAME, lambda state: state.released("one")).lease == ("other", 40.0)
    assert other.change(NAME, lambda state: state.released("other")).lease is None
    assert leases(one, "one", 0.0, 1.0)


def test_of_replicas_that_race_one_holds_the_lease(opened: Callable[[], ModeStore]) -> None:
    stores, won = [opened() for _ in range(4)], list[int]()
    stores[0].begin(NAME)
    start = threading.Barrier(len(stores))

    def race(number: int) -> None:
        start.wait()
        if leases(stores[number], str(number), 1.0, 2.0):
            won.append(number)

    at_once(*(partial(race, number) for number in range(len(stores))))
    assert len(won) == 1


def test_rows_from_before_an_alarm_neither_fit_nor_certify(opened: Callable[[], ModeStore]) -> None:
    store = opened()
    store.begin(NAME)
    for number, role in enumerate(("fit", "certify")):
        store.draw(row(number, role=role))
        store.settle(row(number), None, 1)
    store.change(NAME, promoted)
    after = store.change(NAME, lambda one: one.withdrawn("another build", "a reply", "now"))
    assert (after.era, store.counts(NAME)[3:6]) == (1, (0, 0, 0))
    store.draw(row(7, era=after.era))
    store.settle(row(7), None, 1)
    store.open_look(NAME, "me", 9.0, 0.1, never)
    assert [one.trace_id for one in store.draws(NAME, look=1)] == ["t7"]


def test_audits_alarm_once(opened: Callable[[], ModeStore]) -> None:
    store = opened()
    store.begin(NAME)
    store.change(NAME, promoted)
    for number in range(30):
        audit = row(number, role="audit", certificate="c1")
        store.draw(audit)
        state = store.settle(audit, differs=True)
        if state.mode == "fallback":
            break
    assert (state.alarm or "").startswith(f"audits found {number + 1} of {number + 1} requests")
    late = row(99, role="audit", certificate="c1")
    store.draw(late)
    assert store.settle(late, differs=True).monitor == state.monitor
    with pytest.raises(UsageError, match="it was withdrawn"):
        store.change(NAME, lambda one: one.set_mode("enforce", "me", "", "now"))
    assert state.monitor is not None
    assert state.monitor.audits == state.monitor.misses == number + 1
    assert len(store.draws(NAME, counted_for="c1")) == number + 1


def test_an_alarm_after_many_good_audits_says_that_the_latest_raised_it() -> None:
    state = promoted(CascadeState(NAME))
    for number in range(1_000):
        state = state.audited(number >= 500, "now")
        if state.mode == "fallback":
            break
    assert state.monitor is not None
    assert state.monitor.misses <= 0.1 * state.monitor.audits
    assert "but so many of the latest differ that the evidence is" in (state.alarm or "")


def test_what_is_unknown_is_no_evidence_and_what_was_counted_stays_to_be_seen(opened: Callable[[], ModeStore]) -> None:
    store = opened()
    store.begin(NAME)
    store.change(NAME, promoted)
    for number, differs in enumerate((True, None, None, False)):
        audit = row(number, role="audit", certificate="c1")
        store.draw(audit)
        state = store.settle(audit, None if differs is not None else "the guide is down", differs=differs)
    assert state.monitor is not None
    assert (state.monitor.audits, state.monitor.misses) == (2, 1)
    for number in range(10, 15):
        store.draw(row(number))
    seen = store.draws(NAME, newest=3, counted_for="c1")
    assert [(one.trace_id, one.differs) for one in seen] == [("t0", True), ("t3", False)]


def test_a_model_that_changes_begins_a_new_era_and_one_that_was_known_does_not(opened: Callable[[], ModeStore]) -> None:
    store = opened()
    store.begin(NAME)

    def replied(*said: str | None) -> CascadeState:
        return store.change(NAME, lambda one: one.replied(signs_of(*said), "now"))  # type: ignore[arg-type]

    assert replied("small", "small-1", "fp_1").era == replied("large", "large-1", None).era == 0
    assert replied("small", "small-1", None) == replied("small", "small-1", "fp_1")
    after = replied("small", "small-1", "fp_2")
    assert (after.era, after.mode, after.changes[-1].by) == (1, "observe", "a reply")
    assert after.changes[-1].why.startswith("small answers from the build fp_2 now, and before fp_1")
    assert replied("small", "small-1", "fp_1") == replied("small", "small-1", "fp_2") == after
    assert opened().state(NAME) == after
    assert store.change(NAME, promoted).mode == "enforce"
    assert (replied("small", "small-2", "fp_2").mode, replied("small", "small-2", "fp_2").era) == ("fallback", 2)


@pytest.mark.parametrize("failure", [StoreError("disk I/O error"), None])
def test_a_store_that_does_not_answer_says_so(
    failure: Exception | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ModeStore.open(f"sqlite:///{tmp_path}/modes.db")
    state, _ = store.begin(NAME)
    with monkeypatch.context() as away:
        away.setattr(Database, "statements", failing(failure or KeyError("a mistake")))
        with pytest.raises(StoreError if failure else KeyError):
            store.state(NAME)
        with pytest.raises(StoreError if failure else KeyError):
            store.is_pending("a trace")
    assert store.state(NAME, state) is state
    store.close()


def failing(error: Exception) -> Callable[..., Any]:
    @contextmanager
    def transaction(_: Database, *, reading: bool = False) -> Iterator[None]:
        raise error
        yield

    return transaction


@pytest.mark.parametrize(("turns", "counted"), [(1, (1, 0)), (2, (2, 1)), (3, (3, 2))])
def test_turns_of_a_conversation_are_one_bet(
    opened: Callable[[], ModeStore], turns: int, counted: tuple[int, int]
) -> None:
    store, monitor = opened(), Monitor.start(risk=0.1, turns=turns)
    store.begin(NAME)
    store.change(NAME, lambda one: one.promoted(replace(HELD, turns=turns), 0.1, "me", "now"))
    for turn in range(3):
        audit = row(turn, conversation="c", turn=str(turn), role="audit", certificate="c1")
        store.draw(audit)
        state = store.settle(audit, differs=turn > 0)
    assert state.monitor is not None
    assert (state.monitor.audits, state.monitor.misses) == counted
    for turn in range(turns):
        monitor = monitor.update(turn > 0, (turn, max(0, turn - 1)))
    assert state.monitor == monitor


@pytest.mark.parametrize(
    ("other", "settled"),
    [
        ({}, False),
        ({"role": "audit", "certificate": "c1"}, True),
        ({"era": 1}, True),
    ],
    ids=["pending", "audited", "of another era"],
)
def test_a_conversation_certifies_as_a_whole_or_not_at_all(
    opened: Callable[[], ModeStore], other: dict[str, Any], settled: bool
) -> None:
    store = opened()
    store.begin(NAME)
    for one in (row(1), row(2, conversation="c1", turn="2", **other), row(3)):
        store.draw(one)
    for name in ("t1", "t3", "t2")[: 2 + settled]:
        store.settle(row(int(name[1:])), None, 1)
    assert store.counts(NAME)[4:6] == (1, 1)
    store.open_look(NAME, "me", 9.0, 0.1, never)
    assert [one.trace_id for one in store.draws(NAME, look=1)] == ["t3"]


def test_a_store_of_another_format_is_refused(opened: Callable[[], ModeStore], monkeypatch: pytest.MonkeyPatch) -> None:
    opened().begin(NAME)
    monkeypatch.setattr("cascade.modes.state.FORMAT", 2)
    for refused in (opened().begin, opened().state):
        with pytest.raises(UsageError, match="has the format 1"):
            refused(NAME)


def test_audits_count_in_the_order_in_which_they_were_drawn_whoever_settles_first(
    opened: Callable[[], ModeStore],
) -> None:
    store, settled, chance = opened(), dict[int, bool | None](), Random(0)
    store.begin(NAME)
    store.change(NAME, promoted)
    audits = [row(number, role="audit", certificate="c1") for number in range(40)]
    for audit in audits:
        store.draw(audit)
    for number in chance.sample(range(40), 40):
        settled[number] = chance.choice([True, *[False] * 17, None, None])
        state = store.settle(audits[number], differs=settled[number])
        ready = [settled[at] for at in takewhile(settled.__contains__, range(40))]
        expected = promoted(CascadeState(NAME)).monitor
        assert expected is not None
        for differs in ready:
            expected = expected if differs is None else expected.update(differs)
        assert state.monitor == expected
    assert (state.mode, {*settled.values()}) == ("enforce", {True, False, None})


def test_an_audit_whose_process_was_killed_holds_the_others_up_until_it_counts_as_missing(
    opened: Callable[[], ModeStore],
) -> None:
    store = opened()
    store.begin(NAME)
    store.change(NAME, promoted)
    for number in range(30):
        store.draw(row(number, role="audit", certificate="c1"))
    for number in range(1, 30):
        state = store.settle(row(number, role="audit", certificate="c1"), differs=True)
        assert (state.monitor.audits if state.monitor else None, state.mode) == (0, "enforce")
    assert store.expire(NAME, 0.5) == 1
    state = store.count(NAME, 0.0, 0.0, {})
    assert (state.mode, state.alarm is None) == ("fallback", False)


def test_hundreds_of_audits_under_way_raise_no_alarm_where_the_slow_ones_agree(tmp_path: Path) -> None:
    """Exactly the certified rate, a tenth, differs. Counted as they settled, the first half would be a fifth."""
    store = ModeStore.open(f"sqlite:///{tmp_path}/modes.db")
    store.begin(NAME)
    store.change(NAME, promoted)
    for batch in range(4):
        audits = [row(batch * 200 + at, role="audit", certificate="c1") for at in range(200)]
        for audit in audits:
            store.draw(audit)
        for slow in (False, True):
            for at, audit in enumerate(audits):
                if (at % 2 == 1) is slow:
                    state = store.settle(audit, differs=at % 10 == 0)
    assert state.monitor is not None
    assert (state.mode, state.monitor.audits, state.monitor.misses) == ("enforce", 800, 80)


def test_conversations_that_a_cheap_model_has_answered_or_that_are_observed_are_known_to_all(
    opened: Callable[[], ModeStore],
) -> None:
    store = opened()
    store.wrote(["group:a", "group:a"])
    assert [opened().cheaply_written(f"group:{name}") for name in "ab"] == [True, False]
    store.begin(NAME)
    store.draw(row(1))
    store.draw(row(2, role="audit", certificate="c"))
    assert [opened().observes(NAME, name) for name in ("c1", "c2", "c3")] == [True, False, False]


def test_two_that_write_the_same_do_not_wait_for_each_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In PostgreSQL each waits for the other's row: one of two transactions failed with DeadlockDetected."""
    store, asked = ModeStore.open(f"sqlite:///{tmp_path}/modes.db"), list[str]()

    @contextmanager
    def transaction(_: Database, *, reading: bool = False) -> Iterator[Callable[..., None]]:
        yield lambda _statement, digest: asked.append(digest)

    monkeypatch.setattr(Database, "statements", transaction)
    store.wrote(["b", "a", "c"])
    assert asked == ["a", "b", "c"]


def test_threads_share_a_store(tmp_path: Path) -> None:
    store = ModeStore.open(f"sqlite:///{tmp_path}/modes.db")
    store.begin(NAME)
    at_once(*[lambda: store.change(NAME, lambda one: one.switched(True, "", "", ""))] * 4)
    assert store.state(NAME).version == 4
    store.close()


@pytest.mark.parametrize(
    ("reply", "mode"),
    [
        (("small", "small-2", "fp_1"), "fallback"),
        (("small", "small-1", "fp_2"), "fallback"),
        (("small", "small-1", "fp_1"), "enforce"),
        (("small", None, None), "enforce"),
        (("large", "anything", "fp_9"), "enforce"),
    ],
)
def test_another_name_or_build_of_a_model_is_a_sign_and_an_unknown_one_is_not(
    reply: tuple[str, str | None, str | None], mode: str
) -> None:
    held = replace(HELD, signs={"small answers as": ("small-1",), "small answers from the build": ("fp_1",)})
    state = CascadeState(NAME).promoted(held, 0.1, "me", "now")
    assert state.replied(signs_of(*reply), "now").mode == mode
