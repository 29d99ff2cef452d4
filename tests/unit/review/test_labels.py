"""Judgements as a log's truth, and the path of thresholds that asks for as few of them as it can."""

from __future__ import annotations

import random
from datetime import date

import numpy as np
import pytest
from scipy import stats

from cascade.calibration.calibrating import Calibrated, calibrate_policy
from cascade.conformal.labels import is_drawn
from cascade.errors import NotCertifiedError, UsageError
from cascade.guarantees.base import Guarantee, get
from cascade.review.labels import labelled_by_reviews
from cascade.review.pairs import Compared, Pair, PairId, compare
from cascade.review.path import along_path
from cascade.review.plan import plans
from cascade.review.reviews import Judgement, Reviews, Terms
from cascade.training.fitting import fit_policy
from cascade.training.simple import plain_threshold
from unit.review.booking import call, episode

N = 400
DAY = date(2026, 11, 23)
ROWS = []
DOUBT, DIFFERS, HARMS = [], [], []
_draw = random.Random(4)
for _number in range(N):
    DOUBT.append(_draw.random())
    DIFFERS.append(_draw.random() < 0.5 * DOUBT[-1] ** 2)
    HARMS.append(_draw.random() < 0.5)
    _rows = episode(_number, call(_number + 5_000 if DIFFERS[-1] else _number), call(_number))
    for _row in _rows:
        _row["signals"] = {**_row["signals"], "doubt": DOUBT[-1]}
    ROWS += _rows
COMPARED: Compared = compare(lambda: ROWS)
NUMBER = {pair.id: int(pair.asked.split()[2]) for pair in COMPARED.pairs()}


def said(pair: Pair | PairId, *, ask: str = "regret", reviewer: str = "ann") -> Judgement:
    """Return what a reviewer says who sees whether the cheap model's output harms."""
    one = pair if isinstance(pair, PairId) else pair.id
    harms = HARMS[NUMBER[one]]
    verdict = "reference" if harms else "equal"
    rights = (None, None) if ask == "preference" else (not harms, True)
    return Judgement(*one, "output", verdict, *rights, reviewer, "")  # type: ignore[arg-type]


def reviews(pairs: list[PairId], rate: float = 1.0, ask: str = "regret") -> Reviews:
    return Reviews(Terms(ask, COMPARED.comparator, rate, "key"), tuple([said(pair, ask=ask) for pair in pairs]))  # type: ignore[arg-type]


def calibrated(held: Reviews, kind: str, alpha: float = 0.05, rate: float | None = None) -> Calibrated:
    tables = labelled_by_reviews(COMPARED, [held], kind, rate)
    policy = plain_threshold(tables[0], "doubt", 1.0, get(kind))
    return calibrate_policy(tables, policy, {"kind": "learned"}, Guarantee(kind, alpha, 0.1), today=DAY)


def by_hand(alpha: float, rate: float, *, labelled: set[int]) -> int:
    """Return how many questions the cheap model serves at the certified threshold: a plain loop over thresholds."""
    most = max(k for k in range(N) if stats.binom.cdf(k, N, alpha * rate) <= 0.1)
    questions = dict(zip(range(N), COMPARED.episodes.values(), strict=True))
    served = lost = 0
    for number in sorted(range(N), key=DOUBT.__getitem__):
        drawn = is_drawn("key", questions[number].question, rate)
        lost += DIFFERS[number] and drawn and (HARMS[number] or number not in labelled)
        if lost > most:
            break
        served += 1
    return served


@pytest.mark.parametrize("kind", ["regret", "preference"])
@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_the_threshold_is_that_of_a_plain_loop(kind: str, rate: float) -> None:
    done = calibrated(reviews(list(NUMBER), rate), kind)
    assert round(N * (2 - done.realised.length)) == by_hand(0.05, rate, labelled=set(range(N)))


def test_without_a_judgement_the_same_loop_counts_a_loss() -> None:
    odd = {number for number in range(N) if number % 2}
    done = calibrated(reviews([pair for pair in NUMBER if NUMBER[pair] in odd]), "regret")
    assert round(N * (2 - done.realised.length)) == by_hand(0.05, 1.0, labelled=odd)


def test_the_path_asks_until_no_label_changes_what_is_certified() -> None:
    wanted = Guarantee("regret", 0.05, 0.1)
    policy = plain_threshold(labelled_by_reviews(COMPARED, [reviews([])], "regret")[0], "doubt", 1.0, get("regret"))
    along = along_path(COMPARED, policy, None, wanted, Terms("regret", COMPARED.comparator, 1.0, "key"))
    losses: dict[PairId, bool] = {}
    while pairs := along.wanted(losses):
        losses[pairs[0].id] = HARMS[NUMBER[pairs[0].id]]
    few = calibrated(reviews(list(losses)), "regret").segments[0].found
    full = calibrated(reviews(list(NUMBER)), "regret").segments[0].found
    assert few.kappa == full.kappa
    assert 0 < len(losses) < len(NUMBER)
    assert len(losses) <= along.most_labels() == len(NUMBER)


def test_what_is_skipped_is_lost_and_ends_nothing() -> None:
    wanted = Guarantee("preference", 0.05, 0.1)
    policy = plain_threshold(labelled_by_reviews(COMPARED, [reviews([])], "regret")[0], "doubt", 1.0, get("regret"))
    along = along_path(COMPARED, policy, None, wanted, Terms("preference", COMPARED.comparator, 1.0, "key"))
    first = along.wanted({})
    again = along.wanted({}, frozenset({first[0].id}))
    assert first[0].id not in {pair.id for pair in again}


def test_at_a_rate_only_drawn_questions_are_asked_for() -> None:
    wanted = Guarantee("preference", 0.05, 0.1)
    policy = plain_threshold(labelled_by_reviews(COMPARED, [reviews([])], "regret")[0], "doubt", 1.0, get("regret"))
    along = along_path(COMPARED, policy, None, wanted, Terms("preference", COMPARED.comparator, 0.5, "key"))
    losses: dict[PairId, bool] = {}
    while pairs := along.wanted(losses):
        assert all(is_drawn("key", pair.question, 0.5) for pair in pairs)
        losses[pairs[0].id] = HARMS[NUMBER[pairs[0].id]]
    few = calibrated(reviews(list(losses), 0.5), "regret").segments[0].found
    full = calibrated(reviews(list(NUMBER), 0.5), "regret").segments[0].found
    assert few.kappa == full.kappa


def test_the_certificate_says_what_it_rests_on() -> None:
    done = calibrated(reviews(list(NUMBER), 0.5), "regret")
    (one,) = done.artifact.certificates
    assert one.alpha == 0.05
    text = " ".join(one.assumptions)
    assert all(
        word in text for word in ("tool_calls", "two equal answers are both right", "probability 0.5", "counts as lost")
    )
    assert (one.reference, one.comparator) == ("dear", "tool_calls")


def test_too_few_requests_at_a_rate_certify_nothing() -> None:
    with pytest.raises(NotCertifiedError):
        calibrated(reviews(list(NUMBER), 0.01), "regret")
    found = plans(200, 40, None, Guarantee("regret", 0.05, 0.05))
    assert [one.least for one in found] == [59, 119, 299]
    assert [one.most_lost for one in found] == [4, 1, None]


def test_reviews_that_do_not_say_it_are_refused() -> None:
    ids = list(NUMBER)
    other = Reviews(Terms("regret", "json", 1.0, "key"), ())
    for held, kind, word in (
        ([reviews(ids, ask="preference")], "regret", "right or wrong"),
        ([other], "regret", "--matcher"),
        ([reviews(ids)], "coverage", "do not determine coverage"),
        ([reviews(ids, 0.5), Reviews(Terms("regret", COMPARED.comparator, 0.5, "other"), ())], "regret", "draws"),
    ):
        with pytest.raises(UsageError, match=word):
            labelled_by_reviews(COMPARED, held, kind)
    assert reviews(ids).losses("preference")  # who was asked for regret has said which is better, too


def test_what_people_said_of_regret_certifies_no_preference() -> None:
    (table,) = labelled_by_reviews(COMPARED, [reviews([])], "regret")
    policy = plain_threshold(table, "doubt", 1.0, get("regret"))
    with pytest.raises(UsageError, match="people judged the outputs for regret, not for preference"):
        calibrate_policy([table], policy, {"kind": "learned"}, Guarantee("preference", 0.05, 0.1), today=DAY)


def test_while_fitting_an_output_that_nobody_judged_counts_as_much_as_judged_ones_on_average() -> None:
    judged = [pair for pair in NUMBER if NUMBER[pair] % 2]
    (table,) = labelled_by_reviews(COMPARED, [reviews(judged)], "regret")
    place = {name: number for number, (_, name) in enumerate(COMPARED.episodes)}
    number = np.array([place[name] for name in table.ids])
    differs, harms = np.array(DIFFERS)[number], np.array(HARMS)[number]
    seen = differs & (number % 2 == 1)
    share = ((seen & harms).sum() + 1) / (seen.sum() + 2)
    loss = get("regret").loss(table)
    assert loss[:, 0] == pytest.approx(np.where(seen, harms, np.where(differs, share, 0.0)))
    assert not loss[:, -1].any()
    some = np.flatnonzero(number < N // 2)  # a part of the log is judged by its own judgements alone
    part = ((seen & harms)[some].sum() + 1) / (seen[some].sum() + 2)
    assert set(get("regret").loss(table.take(some))[:, 0]) == {0.0, 1.0, part}


def test_a_policy_whose_certifying_questions_lack_judgements_is_kept_and_says_what_to_do() -> None:
    (table,) = labelled_by_reviews(COMPARED, [reviews([pair for pair in NUMBER if NUMBER[pair] % 8 == 0])], "regret")
    found = fit_policy([table], Guarantee("regret", 0.02, 0.1), method="threshold", calibration_share=0.5)
    assert found.policy.method == "threshold"
    assert any("lack a judgement" in note and "cascade review" in note for note in found.notes)
