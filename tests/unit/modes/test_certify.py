"""The replay of whole conversations, and the tests that a share of their requests differs at most."""

from __future__ import annotations

import math
from itertools import groupby

import numpy as np
import pytest
from scipy.stats import binom

from cascade.modes.certify import ConversationTurns, Proof, Stops, grid


def outcome(rng: np.random.Generator, n: int) -> Stops:
    """Return what a policy does on n requests: it loses only where it stops before the guide."""
    asks = rng.random(n) < 0.6
    return Stops(~asks & (rng.random(n) < 0.5), np.ones(n, dtype=np.int64), asks)


@pytest.mark.parametrize("seed", range(20))
def test_a_replay_stops_each_conversation_at_its_first_kept_or_unrecorded_turn(seed: int) -> None:
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


def test_no_threshold_lies_on_a_level_and_all_are_kept_at_the_last() -> None:
    levels = np.append(np.linspace(0, 1, 200), [np.inf, -np.inf])
    found = grid(levels)
    assert len(found) == 51
    assert found == sorted(found)
    assert not np.isin(found[:-1], levels).any()
    assert grid(np.array([np.inf])) == [math.inf]


def test_for_single_turns_the_exact_test_is_taken() -> None:
    proof = Proof.best(0.1, 0.05, 116, [1] * 50)
    assert proof.stake is None
    most = proof.allowed(np.ones(116))
    assert binom.cdf(most, 116, 0.1) <= 0.05 < binom.cdf(most + 1, 116, 0.1)
    for lost in (most, most + 1):
        assert proof.passes(np.arange(116) < lost, np.ones(116)) is (lost == most)
    assert Proof.best(0.1, 0.05, 10, [1]).allowed(np.ones(10)) == -1


def test_for_long_conversations_a_bet_on_their_turns_is_taken() -> None:
    proof, lengths = Proof.best(0.05, 0.05, 100, [8] * 50), np.full(100, 8)
    assert proof.stake is not None
    most = proof.allowed(lengths)
    assert most > 2 * Proof(0.05, 0.05).allowed(lengths)
    for lost in (most, most + 1):
        assert proof.passes(np.arange(100) < lost, lengths) is (lost == most)


@pytest.mark.parametrize("stake", [0.02, 0.5, 1.05])
@pytest.mark.parametrize(("short", "long"), [(0.25, 0.0), (0.0, 0.25), (0.05, 0.2)])
def test_a_bet_wins_nothing_on_average_where_the_promise_is_just_kept(stake: float, short: float, long: float) -> None:
    """Half of the conversations have one turn, half four: at 5 % of all turns, whoever loses them, the mean is 1."""
    capital = [
        0.5 * share * (1 + stake * (0.05 * turns - lost))
        for turns, lose in ((1, short), (4, long))
        for lost, share in ((0, 1 - lose), (1, lose))
    ]
    assert sum(capital) == pytest.approx(1 + stake * (0.05 * 2.5 - (short + long) / 2))
    assert (sum(capital) <= 1 + 1e-12) is ((short + long) / 2 >= 0.05 * 2.5 - 1e-12)
