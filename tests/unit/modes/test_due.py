"""What the next look takes, from counts alone."""

from __future__ import annotations

import math
from itertools import groupby
from typing import Any

import numpy as np
import pytest
import scipy  # its parts are imported where they are used: that takes long

from cascade.config.schema import ModesConfig
from cascade.conformal.monitor import is_drawn
from cascade.conformal.path import Scores
from cascade.modes.certify import ConversationTurns, Proof, Stops, grid
from cascade.modes.draws import conversation_of, goes_on, look_level, role_of
from cascade.modes.look import promise_of, stops_of
from cascade.modes.state import CascadeState, Counts, conversations_for, next_look
from cascade.policies.policy import Policy
from unit.fitting.random_logs import random_log

SEEN = Counts(fit=60, conversations=40)
MODES = ModesConfig(share=0.1, certify=0.5)


@pytest.mark.parametrize(
    ("looks", "counts", "needed", "wait"),
    [
        (0, SEEN, 116, 1_520),
        (0, SEEN._replace(conversations=120, fit=20), 116, 600),
        (1, SEEN, 174, 2_680),
        (0, Counts(fit=50, conversations=116), 116, 0),
        (0, Counts(fit=49, conversations=116), 116, 20),
        (0, Counts(fit=50, conversations=115), 116, 20),
    ],
)
def test_a_look_takes_conversations_and_rows_to_fit(looks, counts, needed, wait):
    plan = next_look(CascadeState("cascade", looks=looks), counts, MODES)
    assert (plan.look, plan.needed, plan.wait, plan.is_ready) == (looks + 1, needed, wait, wait == 0)
    assert (str(wait) in plan.describe().split()) == (wait > 0)


@pytest.mark.parametrize(("alpha", "level", "most"), [(0.2, 0.05, 5), (0.1, 0.05, 5), (0.02, 0.01, 7)])
def test_half_of_the_promised_share_may_lose(alpha, level, most):
    from cascade.conformal.binomial import most_losses

    count = conversations_for(alpha, level)
    assert (most_losses(count, alpha, level) or 0) >= alpha * count / 2 >= most - 1


def outcome(rng: np.random.Generator, n: int) -> Stops:
    """Return what a policy does on n requests: it loses only where it stops before the guide."""
    asks = rng.random(n) < 0.6
    return Stops(~asks & (rng.random(n) < 0.5), np.ones(n, dtype=np.int64), asks)


@pytest.mark.parametrize("seed", range(20))
def test_a_replay_stops_each_conversation_at_its_first_kept_or_unrecorded_turn(seed):
    rng = np.random.default_rng(seed)
    of = np.sort(rng.integers(0, 6, 20))
    of = np.unique(of, return_inverse=True)[1]
    row = np.where(rng.random(20) < 0.9, np.arange(20), -1)
    at = outcome(rng, 20)
    replay, lost, since = ConversationTurns(row, of).served(at), [], []
    for _, places in groupby(range(20), key=of.__getitem__):
        turns = list(places)
        stop = next((place for place in turns if row[place] < 0 or not at.asks_last[row[place]]), None)
        lost.append(stop is not None and (row[stop] < 0 or bool(at.lost[row[stop]])))
        since += [place - (20 if stop is None else stop) for place in turns]
    assert replay.lost.tolist() == lost
    assert replay.since.tolist() == since


def test_no_threshold_lies_on_a_level_and_all_are_kept_at_the_last():
    levels = np.append(np.linspace(0, 1, 200), [np.inf, -np.inf])
    thresholds = grid(levels)
    assert len(thresholds) == 51
    assert thresholds == sorted(thresholds)
    assert not np.isin(thresholds[:-1], levels).any()
    assert grid(np.array([np.inf])) == [math.inf]


def test_for_single_turns_the_exact_test_is_taken():
    proof = Proof.best(0.1, 0.05, 116, [1] * 50)
    assert proof.stake is None
    most = proof.allowed(np.ones(116))
    binom = scipy.stats.binom
    assert binom.cdf(most, 116, 0.1) <= 0.05 < binom.cdf(most + 1, 116, 0.1)
    for lost in (most, most + 1):
        assert proof.passes(np.arange(116) < lost, np.ones(116)) is (lost == most)
    assert Proof.best(0.1, 0.05, 10, [1]).allowed(np.ones(10)) == -1


def test_for_long_conversations_a_bet_on_their_turns_is_taken():
    proof, lengths = Proof.best(0.05, 0.05, 100, [8] * 50), np.full(100, 8)
    assert proof.stake is not None
    most = proof.allowed(lengths)
    assert most > 2 * Proof(0.05, 0.05).allowed(lengths)
    for lost in (most, most + 1):
        assert proof.passes(np.arange(100) < lost, lengths) is (lost == most)


@pytest.mark.parametrize("stake", [0.02, 0.5, 1.05])
@pytest.mark.parametrize(("short", "long"), [(0.25, 0.0), (0.0, 0.25), (0.05, 0.2)])
def test_a_bet_wins_nothing_on_average_where_the_promise_is_just_kept(stake, short, long):
    """Half of the conversations have one turn, half four: at 5 % of all turns, whoever loses them, the mean is 1."""
    capital = [
        0.5 * share * (1 + stake * (0.05 * turns - lost))
        for turns, lose in ((1, short), (4, long))
        for lost, share in ((0, 1 - lose), (1, lose))
    ]
    assert sum(capital) == pytest.approx(1 + stake * (0.05 * 2.5 - (short + long) / 2))
    assert (sum(capital) <= 1 + 1e-12) is ((short + long) / 2 >= 0.05 * 2.5 - 1e-12)


SECRET = b"of the server"
NAMES = [f"conversation {number}" for number in range(4_000)]


def test_roles_are_drawn_apart_from_the_draw():
    drawn = [name for name in NAMES if is_drawn(SECRET, 0.5, name)]
    assert abs(sum(role_of(SECRET, name, 0.5) == "certify" for name in drawn) / len(drawn) - 0.5) < 0.05


def test_all_looks_together_spend_a_level_once():
    assert [look_level(0.1, look) for look in (1, 2, 3)] == pytest.approx([0.05, 0.1 / 6, 0.1 / 12])
    assert sum(look_level(0.1, look) for look in range(1, 8)) == pytest.approx(0.0875)
    with pytest.raises(ValueError, match="from 1"):
        look_level(0.1, 0)


def test_each_look_spends_by_the_delta_of_its_time():
    state = CascadeState("cascade").looked(0.2).looked(0.1)
    assert (state.looks, state.spent) == (2, pytest.approx(0.2 / 2 + 0.1 / 6))
    assert CascadeState.loads(state.dumps(), 0).spent == state.spent


class Peeking(Policy):
    kind = "peeking"

    def scores(self, log: Any) -> Scores:
        assert np.isnan(log.right).all()
        return Scores(np.zeros(log.answer.shape))


def test_a_look_shows_no_policy_what_is_right():
    stops_of(Peeking(), random_log(0), promise_of(MODES))


def message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


HEAD = [message("system", "Route."), message("user", "Where is it?"), message("assistant", "delivery")]


def test_a_conversation_has_the_clients_name_and_requests_without_one_are_apart():
    assert conversation_of("7", "a") == conversation_of("7", "b") == "group:7"
    assert conversation_of(None, "a") != conversation_of(None, "b")  # two clients may ask the same
    long = {conversation_of(letter * 10_000, "a") for letter in "ab"}  # PostgreSQL's keys have 2,700 bytes at most
    assert len(long) == 2
    assert max(map(len, long)) < 100


def test_examples_of_the_application_are_no_earlier_reply():
    assert not goes_on([*HEAD, message("user", "a")], len(HEAD))
    assert goes_on([*HEAD, message("user", "a")])
    assert goes_on([*HEAD, message("user", "a"), message("assistant", "b"), message("user", "c")], len(HEAD))
