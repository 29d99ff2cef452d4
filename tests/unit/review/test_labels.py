"""Judgements as a log's truth."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from cases import each
from scipy import stats

from cascade.conformal.monitor import is_drawn
from cascade.conformal.promise import Promise
from cascade.episodes.reading import reviewed
from cascade.episodes.rows import joined
from cascade.errors import UsageError
from cascade.fitting.attempts import FIRST
from cascade.fitting.fit import Fit, FitSettings, fit
from cascade.identity import identity
from cascade.logs.schema import Dropped
from cascade.policies.policy import Threshold
from cascade.review.labels import judgements
from cascade.review.pairs import Compared, Output, Pair, PairId, compare
from cascade.review.reviews import Judgement, Reviews, Terms
from cascade.table import Log
from unit.review.booking import call, episode

N, LEVEL = 400, FIRST * 0.1
POLICY = Threshold("doubt", 1.0, tie=None)
_draw = random.Random(4)
DOUBT = [(number + 0.5) / N for number in _draw.sample(range(N), N)]  # no two so near that a threshold parts them not
DIFFERS = [_draw.random() < 0.5 * doubt**2 for doubt in DOUBT]
HARMS = [_draw.random() < 0.5 for _ in range(N)]
ROWS: list[dict[str, Any]] = []
for _number in range(N):
    for _row in episode(_number, call(_number + 5_000 if DIFFERS[_number] else _number), call(_number)):
        ROWS.append({**_row, "signals": {**_row["signals"], "doubt": DOUBT[_number]}})
COMPARED: Compared = compare(lambda: ROWS)
ASKED = {identity(row["question"], row["context"]): at // 3 for at, row in enumerate(ROWS)}
NUMBER = {pair.id: ASKED[pair.question] for pair in COMPARED.pairs}


def judged(pair: PairId, ask: str = "regret", reviewer: str = "ann") -> Judgement:
    """Return what a reviewer says who sees whether the cheap model's output harms."""
    harms = HARMS[NUMBER[pair]]
    rights = (None, None) if ask == "preference" else (not harms, True)
    return Judgement(*pair, "output", "reference" if harms else "equal", *rights, reviewer, "")


def reviews(pairs: list[PairId], rate: float = 1.0, ask: Any = "regret", key: str = "key") -> Reviews:
    return Reviews(Terms(ask, COMPARED.comparator, rate, key), tuple([judged(pair, ask) for pair in pairs]))


def read(given: Reviews, kind: str = "regret") -> Log:
    return joined(reviewed(COMPARED.labelled, judgements(COMPARED, [given], kind), Dropped())).log


def fitted(given: Reviews, kind: str, risk: float = 0.05) -> Fit:
    promise = Promise(kind, risk, 0.9, given.terms.rate)
    return fit(read(given, kind), promise, FitSettings(policy=POLICY))


def served(done: Fit) -> int:
    """Return how many requests the cheap model answers at the proven threshold."""
    walks = done.policy.walks(done.log)
    return int(np.count_nonzero(walks.stop(done.certified[""].kappa) == 0)) if done.certified else 0


def by_hand(risk: float, rate: float, *, labelled: set[int]) -> int:
    """Return the same by a plain loop over thresholds."""
    most = max(k for k in range(N) if stats.binom.cdf(k, N, risk * rate) <= LEVEL)
    name = {number: name for name, number in ASKED.items()}
    answered = lost = 0
    for number in sorted(range(N), key=DOUBT.__getitem__):
        drawn = is_drawn("key", rate, name[number])
        lost += DIFFERS[number] and drawn and (HARMS[number] or number not in labelled)
        if lost > most:
            break
        answered += 1
    return answered


@each("kind, rate", [(kind, rate) for kind in ("regret", "preference") for rate in (1.0, 0.5)])
def test_what_is_proven_is_what_a_plain_loop_proves_with_all_judgements_or_half(kind, rate):
    full = fitted(reviews(list(NUMBER), rate), kind)
    assert served(full) == by_hand(0.05, rate, labelled=set(range(N)))
    odd = {number for number in range(N) if number % 2}
    half = fitted(reviews([pair for pair in NUMBER if NUMBER[pair] in odd], rate), kind)
    assert served(half) == by_hand(0.05, rate, labelled=odd)


def test_an_output_that_nobody_judged_is_unknown():
    log = read(reviews([pair for pair in NUMBER if NUMBER[pair] % 2], 0.5))
    number = np.array([ASKED[name] for name in log.ids])
    differs, harms = np.array(DIFFERS)[number], np.array(HARMS)[number]
    expected = np.where(~differs, 1.0, np.where(number % 2, 1.0 - harms, np.nan))
    np.testing.assert_array_equal(log.right[:, 0], expected)
    assert (log.right[:, 1] == 1).all()
    assert log.drawn is not None
    assert log.drawn.tolist() == [is_drawn("key", 0.5, name) for name in log.ids]


def test_too_few_requests_at_a_rate_prove_nothing():
    assert not fitted(reviews(list(NUMBER), 0.01), "regret").certified


@each(
    "given, kind",
    [
        ([reviews([], ask="preference")], "regret"),
        ([Reviews(Terms("regret", "json", 1.0, "key"), ())], "regret"),
        ([reviews([])], "coverage"),
        ([reviews([], 0.5), reviews([], 0.5, key="other")], "regret"),
    ],
)
def test_reviews_that_do_not_say_it_are_refused(given, kind):
    with pytest.raises(UsageError):
        judgements(COMPARED, given, kind)


def test_where_reviewers_differ_it_is_a_loss_and_equal_outputs_share_a_judgement():
    pair = next(pair for pair in NUMBER if HARMS[NUMBER[pair]])
    kinder = judged(pair)._replace(verdict="equal", output_right=True, reviewer="bob")
    other = reviews([pair])._replace(judgements=(judged(pair), kinder))
    row = next(row for row in COMPARED.labelled.rows(Dropped()) if COMPARED.pair_of(row) is not None)
    assert judgements(COMPARED, [other], "regret").loses({**row, "correct": True})
    assert other.losses("regret")[pair]
    twin = Pair("q", "?", None, False, Output("a", None), Output("b", None), ("x", "y"))
    assert twin.lost({PairId("q", "y", twin.reference.digest): True})
    assert twin.lost({}) is None
