"""The state of cascades: in a file, in PostgreSQL; replicas agree, and a restart forgets nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from random import Random
from typing import Any

import pytest
import sqlalchemy as sa
from patience import at_once
from stores import behind, postgres_url

from cascade.config.schema import ModesConfig
from cascade.errors import StoreError, UsageError
from cascade.modes.state import ENDS_S, CascadeState, Counts, Draw, InForce, Look, NextLook, counted, signs_of
from cascade.modes.store import LEASE_S, ModeStore
from cascade.records import database

NAME = "support"
CERTIFICATE = InForce("c1", 1, 0.1, 0.05, 100, "json")
MODES = ModesConfig()
Opened = Callable[[], ModeStore]


@pytest.fixture(params=["sqlite", "postgres"])
def opened(request: Any, tmp_path: Path) -> Iterator[Opened]:
    """Yield what opens the same store again and again, as replicas do."""
    with ExitStack() as stack:
        url = f"sqlite:///{tmp_path}/modes.db"
        if request.param == "postgres":
            url = stack.enter_context(postgres_url())

        def again() -> ModeStore:
            store = ModeStore.shared(url)
            stack.callback(store.close)
            return store

        yield again


@pytest.fixture
def store(opened: Opened) -> ModeStore:
    """Return a store in which a cascade observes."""
    store = opened()
    store.begin(NAME)
    return store


@pytest.fixture
def enforcing(store: ModeStore) -> ModeStore:
    """Return a store in which a certificate is in force."""
    store.change(NAME, promoted)
    return store


def row(number: int, **columns: Any) -> Draw:
    names = {"conversation": f"c{number}", "turn": "1", "role": "certify"}
    return Draw(**{"trace_id": f"t{number}", "cascade": NAME, "drawn_s": float(number), **names, **columns})


audit = partial(row, role="audit", certificate="c1")


def settled(store: ModeStore, *rows: Draw) -> None:
    for drawn in rows:
        store.draw(drawn)
        store.settle(drawn)


def traces(rows: list[Draw]) -> list[str]:
    return [drawn.trace_id for drawn in rows]


def promoted(state: CascadeState) -> CascadeState:
    return state.promoted(CERTIFICATE, 0.1, "now")


@pytest.fixture
def due(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every look begin, however few rows there are."""
    monkeypatch.setattr("cascade.modes.store.next_look", lambda state, *_: NextLook(state.looks + 1, 0, 0, Counts()))


def begin(store: ModeStore, now_s: float = 9.0) -> Look:
    look = store.open_look(NAME, now_s, MODES)
    assert isinstance(look, Look)
    return look


def figures(state: CascadeState) -> tuple[int, int, str]:
    return state.monitor.audits, state.monitor.misses, state.mode


# --- the state ---


def test_replicas_share_secret_and_state_and_a_restart_forgets_nothing(opened):
    first, other = opened(), opened()
    state, secret = first.begin(NAME)
    assert (state.mode, other.begin(NAME)) == ("observe", (state, secret))
    after = first.change(NAME, promoted)
    assert other.state(NAME, state) == after
    assert other.state(NAME, after) is after
    assert (after.mode, after.in_force) == ("enforce", CERTIFICATE)
    assert opened().begin(NAME) == (after, secret)


def test_what_is_refused_changes_nothing(store):
    before = store.state(NAME)
    with pytest.raises(UsageError):
        store.change(NAME, lambda state: state.set_mode("enforce", "me", "because", "now"))
    assert store.state(NAME) == before
    with pytest.raises(UsageError):
        store.state("another")


def test_no_change_is_lost_between_threads(opened):
    stores = [opened(), opened()]
    stores[0].begin(NAME)

    def work(store: ModeStore) -> None:
        for _ in range(10):
            store.change(NAME, lambda state: state.set_mode("observe", "me", "", "now"))

    at_once(*(partial(work, stores[number % 2]) for number in range(4)))
    state = stores[0].state(NAME)
    assert (state.version, len(state.changes)) == (40, 40)


def test_a_state_that_another_transaction_has_locked_is_an_error_in_time(store, opened):
    other = opened()
    vars(other)["_opened"].dispose()
    other._limit_s = 0.1  # of its next connection: a busy machine may take longer to open a store
    other._renew()
    with store.transaction() as connection:
        connection.execute(sa.update(database.cascades).values(version=database.cascades.c.version))
        with pytest.raises(StoreError) as caught:
            other.change(NAME, promoted)
    assert caught.value.retryable
    assert store.change(NAME, promoted).mode == "enforce"


REPLIES = [  # name, build, mode and era under a certificate, era while the guide serves
    ("small-2", "fp_1", "fallback", 1),
    ("small-1", "fp_2", "fallback", 1),
    ("small-1", "fp_1", "enforce", 0),
    (None, None, "enforce", 0),
]


@pytest.mark.parametrize(("echoed", "build", "mode", "era"), REPLIES)
def test_another_name_or_build_of_a_model_ends_what_was_and_an_unknown_one_does_not(echoed, build, mode, era):
    known = CascadeState(NAME).replied("small", "small-1", "fp_1", None, "").replied("large", "large-1", None, None, "")
    certified = replace(
        CERTIFICATE, signs={sign: known.signs[sign] for sign in known.signs if sign.startswith("small")}
    )
    under = replace(promoted(known), in_force=certified).replied("small", echoed, build, None, "now")
    assert (known.era, under.mode, under.era) == (0, mode, era)
    observed = known.replied("small", echoed, build, None, "now")
    assert (observed.mode, observed.era) == ("observe", era)
    assert known.replied("large", None, "fp_9", None, "now").era == 0  # nothing was known of its builds
    assert observed.replied("small", "small-1", "fp_1", None, "now") is observed  # known before
    if era:  # the build of an earlier era was not certified
        latest = replace(
            CERTIFICATE, signs={sign: (value,) for sign, value in signs_of("small", echoed, build).items()}
        )
        back = replace(promoted(observed), in_force=latest).replied("small", "small-1", "fp_1", None, "now")
        assert (back.mode, back.era) == ("fallback", era + 1)


# --- drawn rows and looks ---


def test_a_drawn_row_stays_whatever_becomes_of_it(store):
    assert [store.draw(row(number)) for number in (1, 2, 3)] == [True] * 3
    assert not store.draw(row(9, conversation="c1"))  # the client asked again
    store.settle(row(1))
    store.settle(row(2), missing=True)
    store.settle(row(1), missing=True)  # too late
    assert (store.is_pending("t3"), store.is_pending("t1"), store.draw(row(4))) == (True, False, True)
    assert store.counts(NAME)[2:] == (2, 3.0, 4.0 + LEASE_S)
    store.count(NAME, 4.0 + LEASE_S, ["t4", "t1"])  # of a process that goes on
    assert store.counts(NAME)[2:] == (1, 4.0, 4.0 + 2 * LEASE_S)
    outcomes = [(drawn.trace_id, drawn.outcome) for drawn in store.draws(NAME)]
    assert outcomes == [("t1", "complete"), ("t2", "missing"), ("t3", "missing"), ("t4", "pending")]


def test_a_row_is_missing_by_the_clock_of_the_server_alone():
    with postgres_url() as url, ModeStore.shared(url) as store:
        store.begin(NAME)
        with behind(2 * LEASE_S), ModeStore.shared(url) as late:
            late.draw(row(1)._replace(drawn_s=late.now_s()))
        store.count(NAME, store.now_s())
        assert store.is_pending("t1")


@pytest.mark.usefixtures("due")
def test_a_look_is_counted_first_and_its_rows_never_certify_again(store, opened):
    settled(store, row(1), row(2, conversation="c1", turn="2"), row(3), row(4, role="fit"))
    settled(store, row(0, conversation="group:0"), row(6))  # it is over in a day; it began after one that is pending
    store.draw(row(5))
    first = begin(store)
    assert (first.look, first.level, traces(store.draws(NAME, look=1))) == (1, 0.05, ["t1", "t2", "t3"])
    assert opened().state(NAME).looks == 1
    assert store.close_look(first, {"why": "nothing"}) is False
    second = begin(store)
    assert (second.look, store.draws(NAME, look=2)) == (2, [])  # t2 was looked at with its conversation
    store.close_look(second, {})
    store.settle(row(5), missing=True)
    third = begin(store, ENDS_S)
    assert (third.look, traces(store.draws(NAME, look=3))) == (3, ["t0", "t5", "t6"])
    assert store.close_look(third, {"saving": 5}, {"policy.json": b"{}"}, promoted)
    assert [look.verdict for look in store.looks(NAME)] == ["refused", "refused", "promoted"]
    assert (store.looks(NAME)[-1].page, store.files(NAME, 3)) == ({"saving": 5}, {"policy.json": b"{}"})
    assert store.counts(NAME) == (7, 0, 0, None, None)


@pytest.mark.usefixtures("due")
def test_a_look_that_broke_off_is_taken_up_with_its_rows_and_spends_once(store, opened):
    settled(store, row(1), row(2))
    begun, other = begin(store), opened()
    settled(store, row(3))
    for _ in range(2):
        with pytest.raises(UsageError, match="Another process is looking"):
            begin(other, 8.0 + LEASE_S)
    again = begin(other, 9.0 + LEASE_S)
    assert again == begun._replace(tries=2, until_s=9.0 + 2 * LEASE_S)
    assert (traces(other.draws(NAME, look=1)), other.state(NAME).looks) == (["t1", "t2"], 1)
    assert other.close_look(again, {"who": "you"}, {}, promoted)
    assert store.close_look(begun, {"who": "me"}) is None  # it comes late, and changes nothing
    (look,) = store.looks(NAME)
    assert (store.state(NAME).mode, look.page, look.verdict) == ("enforce", {"who": "you"}, "promoted")


@pytest.mark.usefixtures("due")
def test_of_those_that_race_one_looks(store, opened):
    won = list[Look]()

    def race() -> None:
        with suppress(UsageError):
            won.append(begin(opened()))

    at_once(*[race] * 4)
    assert (len(won), store.state(NAME).looks) == (1, 1)


def test_a_look_that_is_not_due_counts_nothing_and_takes_no_row(store):
    settled(store, row(1), row(2, role="fit"), row(3, conversation="c1", turn="2"))
    plan = store.open_look(NAME, 9.0, MODES)
    assert isinstance(plan, NextLook)
    assert (plan.look, *plan.counts[:2], plan.is_ready) == (1, 1, 1, False)
    assert (store.state(NAME).looks, store.looks(NAME), store.counts(NAME).conversations) == (0, [], 1)


@pytest.mark.usefixtures("due")
def test_rows_from_before_an_alarm_neither_fit_nor_certify(store):
    settled(store, row(0, role="fit"), row(1))
    store.change(NAME, promoted)
    after = store.change(NAME, lambda state: state.withdrawn("another build", "a reply", "now"))
    assert (after.era, store.counts(NAME)) == (1, (0, 0, 0, None, None))
    settled(store, row(7, era=after.era))
    begin(store)
    assert traces(store.draws(NAME, look=1)) == ["t7"]


@pytest.mark.usefixtures("due")
@pytest.mark.parametrize(
    ("other", "is_settled"),
    [({}, False), ({"role": "audit", "certificate": "c1"}, True), ({"era": 1}, True)],
    ids=["pending", "audited", "of another era"],
)
def test_a_conversation_certifies_as_a_whole_or_not_at_all(store, other, is_settled):
    settled(store, row(0), row(1))
    second = row(2, conversation="c1", turn="2", **other)
    settled(store, second) if is_settled else store.draw(second)
    assert store.counts(NAME).conversations == 1
    begin(store)
    assert traces(store.draws(NAME, look=1)) == ["t0"]


def test_conversations_that_a_cheap_model_answers_or_that_are_observed_are_known_to_all(store, opened):
    assert [opened().claim(f"group:{name}") for name in "aab"] == [True, False, True]
    store.release("group:b")
    assert [store.is_claimed(f"group:{name}") for name in "ab"] == [True, False]
    store.draw(row(1))
    store.draw(audit(2))
    assert [opened().observes(NAME, name) for name in ("c1", "c2", "c3")] == [True, False, False]


# --- audits ---


def test_audits_alarm_once(enforcing):
    for number in range(30):
        enforcing.draw(audit(number))
        state = enforcing.settle(audit(number), differs=True)
        if state.mode == "fallback":
            break
    assert figures(state) == (number + 1, number + 1, "fallback")
    enforcing.draw(audit(99))
    assert enforcing.settle(audit(99), differs=True).monitor == state.monitor
    with pytest.raises(UsageError):
        enforcing.change(NAME, lambda state: state.set_mode("enforce", "me", "", "now"))
    assert [drawn.e_value is not None for drawn in enforcing.draws(NAME)] == [True] * (number + 1) + [False]


def test_what_is_unknown_is_no_evidence(enforcing):
    for number, differs in enumerate((True, None, None, False)):
        enforcing.draw(audit(number))
        enforcing.count(NAME, 1e10)  # in another process, whose clock is years ahead
        state = enforcing.settle(audit(number), missing=differs is None, differs=differs)
    assert figures(state) == (2, 1, "enforce")
    counted_rows = [drawn for drawn in enforcing.draws(NAME) if drawn.e_value is not None]
    assert [(drawn.trace_id, drawn.differs) for drawn in counted_rows] == [("t0", True), ("t3", False)]


def test_audits_count_in_the_order_in_which_they_were_drawn_whoever_settles_first(enforcing):
    results, chance = dict[int, bool | None](), Random(0)
    for number in range(40):
        enforcing.draw(audit(number))
    for number in chance.sample(range(40), 40):
        results[number] = chance.choice([True, *[False] * 17, None, None])
        state = enforcing.settle(audit(number), differs=results[number])
        expected = promoted(CascadeState(NAME)).monitor
        assert expected is not None
        for at in takewhile(results.__contains__, range(40)):
            expected = expected if results[at] is None else expected.update(bool(results[at]))
        assert state.monitor == expected
    assert (state.mode, {*results.values()}) == ("enforce", {True, False, None})


def test_an_audit_whose_process_was_killed_holds_the_others_up_but_not_the_alarm(enforcing):
    for number in range(30):
        enforcing.draw(audit(number))
    for number in range(1, 4):
        state = enforcing.settle(audit(number), differs=False)
        assert figures(state) == (0, 0, "enforce")
    for number in range(4, 30):
        state = enforcing.settle(audit(number), differs=True)
        if state.mode == "fallback":
            break
    assert state.alarm is not None
    assert number < 29
    assert figures(state) == (number, number - 3, "fallback")  # the alarm leaves out the first, which is pending


def test_hundreds_of_audits_under_way_raise_no_alarm_where_the_slow_ones_agree(enforcing):
    """Exactly the certified rate, a tenth, differs. Counted as they settled, the first half would be a fifth."""
    for batch in range(3):
        audits = [audit(batch * 100 + at) for at in range(100)]
        for drawn in audits:
            enforcing.draw(drawn)
        for slow in (False, True):
            for at, drawn in enumerate(audits):
                if (at % 2 == 1) is slow:
                    state = enforcing.settle(drawn, differs=at % 10 == 0)
    assert figures(state) == (300, 30, "enforce")


def turns_of(conversations: int, turn: int, at_s: float, *, of_five: int = 2) -> list[Draw]:
    """Return an audit of a turn of each conversation. The first turn of some (of five) is missed, and no later one."""
    return [
        audit(turn * 10_000 + n, conversation=f"c{n}", turn=str(turn), drawn_s=at_s, outcome="complete")._replace(
            differs=turn == 0 and n % 5 < of_five
        )
        for n in range(conversations)
    ]


def of_conversations(waiting: list[Draw], now_s: float) -> CascadeState:
    state = CascadeState(NAME).promoted(replace(CERTIFICATE, turns=4), 0.1, "now")
    return counted(state, waiting, now_s, "now")[0]


def test_conversations_under_way_at_once_raise_no_alarm_before_their_bets_end():
    """A tenth of 1,600 audits is missed: 160 first ones of 400. Counted as they came, the first 400 alarmed."""
    waiting = turns_of(400, 0, 1.0)
    assert figures(of_conversations(waiting, 2.0)) == (0, 0, "enforce")
    for turn in (1, 2):
        waiting += turns_of(400, turn, 2.0 + turn)
        assert figures(of_conversations(waiting, 2.0 + turn)) == (0, 0, "enforce")
    waiting += turns_of(400, 3, 9.0)
    assert figures(of_conversations(waiting, 9.0)) == (1_600, 160, "enforce")


def test_conversations_under_way_raise_the_alarm_when_nothing_could_end_it():
    audits, misses, mode = figures(of_conversations(turns_of(400, 0, 1.0, of_five=5), 2.0))
    assert (mode, 0 < misses == audits < 400) == ("fallback", True)


def test_a_conversation_ends_with_its_last_audit_or_a_day_of_silence():
    waiting = turns_of(1, 0, 0.0) + turns_of(1, 1, 10.0)
    assert figures(of_conversations(waiting, 9.0 + ENDS_S)) == (0, 0, "enforce")
    assert figures(of_conversations(waiting, 10.0 + ENDS_S)) == (2, 1, "enforce")
    for turn in (2, 3, 4):  # a fifth audit was drawn: one too many
        waiting += turns_of(1, turn, 20.0)
    assert figures(of_conversations(waiting, 21.0)) == (4, 1, "enforce")


def test_a_conversation_that_has_counted_counts_once(enforcing):
    for turn, differs in enumerate((True, False)):
        drawn = audit(turn, conversation="c", turn=str(turn))
        enforcing.draw(drawn)
        assert figures(enforcing.settle(drawn, differs=differs)) == (1, 1, "enforce")
