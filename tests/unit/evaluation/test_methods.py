"""Every way to answer against a recursion over each question in plain Python."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from simulated import WORLDS, simulate

from cascade.calibration.samples import KNOWN, Doubt
from cascade.calibration.scores import table_scores
from cascade.conformal.arrays import levels, passed
from cascade.conformal.frontier import frontier
from cascade.conformal.split import critical_kappa, split_kappa
from cascade.episodes.table import EpisodeTable, Walk
from cascade.evaluation import baselines
from cascade.evaluation import methods as module
from cascade.evaluation.baselines import Depth, Uala, played_at
from cascade.evaluation.methods import Chance, Logged, Mixture, NetBenefit, Portfolio, Threshold, methods
from cascade.policies.fixed import FixedPolicy
from cascade.policies.threshold import ThresholdPolicy
from unit.evaluation.plain import Asked, Shown, batches, by_chance, draw, each, live, table_of
from unit.scaled import ladder

VERDICT, LOGPROB = KNOWN[0], KNOWN[1]
WHEN = {"p_yes": "uncertain", "reply_mean_logprob": "reply_logprob"}
PER_SHAPE, SIZE = 20, 8  # of 12 shapes: 1,920 questions


def read(one: Asked, doubt: Doubt, t: int) -> float:
    """Return the doubt at a step as a live policy reads it."""
    value = one.signals[t][doubt.signal]
    if value is None:
        return math.inf
    return -math.log(max(value, 1 - value)) if doubt is VERDICT else -value


def doubts(questions: Sequence[Asked], doubt: Doubt) -> list[float]:
    return [read(one, doubt, t) for one in questions for t in range(len(one.steps))]


def thresholds(questions: Sequence[Asked], doubt: Doubt, rng: np.random.Generator) -> list[float]:
    """Return thresholds where something may change: doubts, their neighbours, the ends."""
    finite = [value for value in doubts(questions, doubt) if math.isfinite(value)] or [0.0]
    some = float(rng.choice(finite))
    return [some, math.nextafter(some, math.inf), float(rng.random())]


def policy(doubt: Doubt, kappa: float, keep: Any) -> ThresholdPolicy:
    return ThresholdPolicy(kappa=kappa, keep=keep, when=WHEN[doubt.signal])  # type: ignore[arg-type]


def ready(method: Any, train: EpisodeTable, calibration: EpisodeTable | None = None, alpha: float = 0.25) -> Any:
    return method.prepare(train, train if calibration is None else calibration, alpha, 0)


def close(one: Any, other: Any) -> bool:
    return all(math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9) for a, b in zip(one, other, strict=True))


def test_every_contestant_is_its_brute_force_on_random_questions() -> None:
    rng = np.random.default_rng(11)
    seen, checks, wrong = 0, 0, []
    for questions, horizon, width in batches(seed=10, per_shape=PER_SHAPE, size=SIZE):
        table = table_of(questions, horizon, width)
        claims = [("random", each(ready(Chance(), table).play(table)), [by_chance(one) for one in questions])]
        for depth in range(1, horizon + 1):
            wanted = [live(one, FixedPolicy("both", depth), width) for one in questions]
            claims.append((f"depth {depth}", each(ready(Depth(depth), table).play(table)), wanted))
        if width < 3:
            doubt = (VERDICT, LOGPROB)[seen % 2]
            for kappa in thresholds(questions, doubt, rng):
                judged, both = policy(doubt, kappa, "judged"), policy(doubt, kappa, "both")
                for name, scores, served in (
                    ("UALA", Uala(doubt).scores(table, kappa), judged),
                    ("threshold", ready(Threshold(doubt), table).scores(table), both),
                ):
                    wanted = [live(one, served, width) for one in questions]
                    claims.append((f"{name} at {kappa}", each(played_at(table, scores, kappa)), wanted))
        for name, got, wanted in claims:
            wrong += [(name, q, a, b) for q, a, b in zip(questions, got, wanted, strict=True) if not close(a, b)]
            checks += len(questions)
        seen += len(questions)
    assert (seen, len(wrong)) == (12 * PER_SHAPE * SIZE, 0), wrong[:2]
    assert checks > 13_000


def test_uala_scores_are_those_of_the_live_policy_shown_the_log() -> None:
    rng = np.random.default_rng(12)
    for questions, horizon, width in batches(seed=13, per_shape=6):
        if width == 3:
            continue
        table = table_of(questions, horizon, width)
        on_record = np.arange(horizon) < table.arrays.steps[:, None]
        for doubt in (VERDICT, LOGPROB):
            for kappa in thresholds(questions, doubt, rng):
                mine = Uala(doubt).scores(table, kappa)
                served = table_scores(policy(doubt, kappa, "judged"), table)
                assert mine.next[on_record].tolist() == served.next[on_record].tolist()
                assert np.where(on_record[:, :, None], mine.candidates, 0).tolist() == (
                    np.where(on_record[:, :, None], served.candidates, 0).tolist()
                )


# --- UALA's threshold ---


def search(questions: Sequence[Asked], doubt: Doubt, width: int, alpha: Fraction, price: Any) -> tuple[int, int]:
    """Return (questions covered, cost) of the best threshold by trying every one that there is."""
    finite = sorted({value for value in doubts(questions, doubt) if math.isfinite(value)})
    options = [*finite, math.nextafter(finite[-1], math.inf) if finite else 0.0, math.inf, -math.inf]
    results = []
    for kappa in options:
        walked = [live(one, policy(doubt, kappa, "judged"), width) for one in questions]
        covered = sum(int(did.covered) for did in walked)
        results.append((covered, sum(price(did) for did in walked)))
    enough = [cost for covered, cost in results if covered >= len(questions) * (1 - alpha)]
    if enough:
        return len(questions), min(enough)
    most = max(covered for covered, _ in results)
    return most, min(cost for covered, cost in results if covered == most)


@pytest.mark.parametrize("cost_known", [True, False])
def test_the_tuned_threshold_is_the_best_of_all(cost_known: bool) -> None:
    checks, wrong = 0, []
    price = (lambda did: int(did.cost)) if cost_known else (lambda did: int(did.length))
    for number, (questions, horizon, width) in enumerate(batches(seed=14, per_shape=13, size=5)):
        if width == 3:
            continue
        if not cost_known:  # a table has 0 where a cost is not known
            questions = [one._replace(costs=(0,) * len(one.steps)) for one in questions]
        alpha = ("0.1", "0.2", "0.5", "0.34")[number % 4]
        doubt = (VERDICT, LOGPROB)[number % 2]
        table = table_of(questions, horizon, width, cost_known=cost_known)
        threshold = Uala(doubt)._tuned(table, float(alpha))
        walked = [live(one, policy(doubt, threshold, "judged"), width) for one in questions]
        covered, cost = sum(int(did.covered) for did in walked), sum(price(did) for did in walked)
        best, least = search(questions, doubt, width, Fraction(alpha), price)
        reached = covered >= len(questions) * (1 - Fraction(alpha)) if best == len(questions) else covered == best
        if not reached or cost != least:
            wrong.append((questions, threshold, (covered, cost), (best, least)))
        checks += 1
    assert (checks, len(wrong)) == (104, 0), wrong[:1]


def test_a_step_without_an_answer_is_no_place_to_stop() -> None:
    """The base's reply held no answer, which the strategy notes as a sure no: a walk goes on there all the same."""
    steps = (), (Shown(0, 0, True, None),), (Shown(0, 1, False, None),)
    signals = tuple({"p_yes": p_yes, "reply_mean_logprob": None} for p_yes in (0.0, 0.75, 0.9))
    table = table_of([Asked(steps, (5, 7, 9), signals, True)] * 4, 3, 1)
    (did,) = set(each(ready(Uala(VERDICT), table).play(table)))
    assert (did.covered, did.length, did.cost) == (1.0, 2.0, 12.0)


def test_the_share_to_cover_is_read_as_the_decimal_that_it_is() -> None:
    """(1 − 0.18) · 150 is 123.00000000000001 in floating point; 27 of 150 may be missed."""
    sure = {"p_yes": 0.95, "reply_mean_logprob": None}
    unsure = {"p_yes": 0.6, "reply_mean_logprob": None}

    def one(first: bool) -> Asked:
        return Asked(((Shown(0, 0, first, None),), (Shown(0, 1, True, None),)), (1, 10), (sure, unsure), True)

    table = table_of([one(False)] * 27 + [one(True)] * 123, 2, 1)
    threshold = Uala(VERDICT)._tuned(table, 0.18)
    assert each(played_at(table, Uala(VERDICT).scores(table, threshold), threshold))[0].length == 1


def test_uala_without_a_known_doubt_goes_to_the_end() -> None:
    rng = np.random.default_rng(15)
    blind = [one._replace(signals=({"p_yes": None},) * len(one.steps)) for one in (draw(rng, 3, 2) for _ in range(6))]
    table = table_of(blind, 3, 2)
    found = ready(Uala(VERDICT), table)
    assert [did.length for did in each(found.play(table))] == [len(one.steps) for one in blind]
    assert found.scores is None


# --- calibrated rows ---


def kappa_star(one: Asked, doubt: Doubt, width: int) -> float:
    """Return the highest threshold that covers a question, by trying each."""
    tried = sorted({math.inf, *(read(one, doubt, t) for t in range(len(one.steps)))}, reverse=True)
    return next((k for k in tried if live(one, policy(doubt, k, "both"), width).covered), -math.inf)


def test_a_calibrated_threshold_is_the_kth_smallest_critical_value() -> None:
    for number, (questions, horizon, width) in enumerate(batches(seed=16, per_shape=4, size=19)):
        if width == 3:
            continue
        alpha, rank = ((0.1, 2), (0.25, 5), (0.04, 0))[number % 3]  # ⌊alpha · 20⌋
        table = table_of(questions, horizon, width)
        found = ready(Threshold(VERDICT), table_of([], horizon, width), table, alpha)
        stars = sorted(kappa_star(one, VERDICT, width) for one in questions)
        kappa = stars[rank - 1] if rank else -math.inf
        wanted = [live(one, policy(VERDICT, kappa, "both"), width) for one in questions]
        assert each(found.play(table)) == wanted
        assert found.scores is not None


def test_a_mixture_is_nested_in_its_threshold_and_lies_between_two_depths() -> None:
    rng = np.random.default_rng(17)
    for width in (1, 2):
        questions = [draw(rng, 4, width) for _ in range(60)]
        table = table_of(questions, 4, width)
        scores = ready(Mixture(), table).scores(table)
        found, before = levels(table.arrays, scores), np.zeros(table.arrays.answer.shape, dtype=np.bool_)
        for kappa in (math.inf, -0.2, -0.5, -0.9, -1.0, -1.4, -2.7, -3.0, -math.inf):
            kept = passed(found.leaf, kappa)
            assert not (before & ~kept).any()
            before = kept
            # Steps without an answer are gone through at any threshold, so only the others tell the depth.
            full = [q for q, one in enumerate(questions) if len(one.steps) == 4 and all(one.steps)]
            lengths = played_at(table, scores, kappa).length[full]
            assert lengths.max() - lengths.min() <= 1
            if kappa in {-1.0, -3.0}:
                assert set(lengths) == {1 - kappa}


def test_the_coins_of_a_mixture_are_tossed_anew_for_other_questions() -> None:
    rng = np.random.default_rng(18)
    table = table_of([draw(rng, 2, 2) for _ in range(40)], 2, 2)
    scores = ready(Mixture(), table).scores
    one, other = (scores(table.take(np.arange(start, start + 20))) for start in (0, 20))
    assert not np.isclose(one.next, other.next).any()
    assert np.array_equal(one.next, scores(table.take(np.arange(20))).next)


# --- which there are ---


def walk(n: int, known: bool = True) -> Walk:
    some, zero = np.full(n, known), np.zeros(n, dtype=np.int64)
    return Walk(some, some, some, zero, zero, zero, zero)


def names(table: EpisodeTable) -> list[str]:
    return [one.name for one in methods(table)]


def test_the_contestants_are_those_that_the_log_has_numbers_for() -> None:
    rng = np.random.default_rng(19)
    bare = table_of([draw(rng, 1, 1) for _ in range(5)], 1, 1)
    assert names(bare) == ["random", "all answers, depth 1"]
    rounds = table_of([draw(rng, 2, 2) for _ in range(5)], 2, 2)
    rounds = EpisodeTable(
        *(getattr(rounds, name) for name in EpisodeTable.__slots__[:7]),
        {"z": walk(5), "guide only": walk(5), "base only": walk(5), "never": walk(5, known=False)},
    )
    assert names(rounds) == [
        "random",
        "base only",
        "guide only",
        "z",
        "all answers, depth 1",
        "all answers, depth 2",
        "depth mixture, conformal",
        "UALA on verdict, tuned",
        "threshold on verdict, conformal",
        "net benefit, conformal",
    ]


def test_a_logged_walk_is_played_as_it_was_logged() -> None:
    rng = np.random.default_rng(20)
    table = table_of([draw(rng, 2, 2) for _ in range(4)], 2, 2)
    columns = [rng.integers(0, 2, 4).astype(np.bool_) for _ in range(2)] + [rng.integers(0, 9, 4) for _ in range(4)]
    logged = Walk(np.ones(4, dtype=np.bool_), *columns)
    table.walks["z"] = logged  # type: ignore[index]
    played = ready(Logged("z"), table).play(table)
    hopeless = table.arrays.complete & ~table.arrays.solvable
    assert played.covered.tolist() == (logged.covered | hopeless).astype(float).tolist()
    for name in ("right", "cost", "length", "leaves", "distinct"):
        assert getattr(played, name).tolist() == getattr(logged, name).astype(float).tolist()


def test_nothing_but_the_split_that_it_is_given_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each threshold follows from its own split alone: UALA's from training, the others' from calibration."""
    rng = np.random.default_rng(21)
    one, other, third = (table_of([draw(rng, 3, 2) for _ in range(40)], 3, 2) for _ in range(3))
    kappas: list[float] = []
    real = module.played_at
    for place in (module, baselines):
        monkeypatch.setattr(place, "played_at", lambda t, s, k: (kappas.append(k), real(t, s, k))[1])
    for method, train, calibration in (
        (Uala(VERDICT), one, other),
        (Uala(VERDICT), one, third),
        (Threshold(VERDICT), other, one),
        (Threshold(VERDICT), third, one),
    ):
        method.prepare(train, calibration, 0.2, 0).play(one)
    assert kappas[0] == kappas[1]
    assert kappas[2] == kappas[3]
    assert kappas[0] != kappas[2]


# --- fitted ones


def simulated(n: int, seed: int) -> EpisodeTable:
    return simulate(WORLDS["hotpotqa/llama-2-7b"], n, seed)


@pytest.mark.parametrize("method", [NetBenefit(), Portfolio()], ids=lambda one: one.name)
def test_fitted_ones_are_calibrated_as_the_others_are(method: Any) -> None:
    calibration, test = simulated(150, 1), simulated(2_000, 2)
    prepared = method.prepare(simulated(500, 0), calibration, 0.1, 0)
    found = levels(calibration.arrays, prepared.scores(calibration))
    kappa = split_kappa(critical_kappa(calibration.arrays, found), 0.1)
    played, expected = prepared.play(test), played_at(test, prepared.scores(test), kappa)
    assert np.array_equal(played.covered, expected.covered)
    assert np.array_equal(played.cost, expected.cost)
    assert played.covered.mean() > 0.9 - 3 * 0.025


def test_learning_pays_where_there_is_something_to_learn() -> None:
    train, calibration, test = simulated(1_500, 0), simulated(150, 1), simulated(4_000, 2)

    def cost(method: Any) -> float:
        scores = method.prepare(train, calibration, 0.1, 0).scores
        point = frontier(test.arrays, levels(test.arrays, scores(test))).matched(0.9)
        assert point is not None
        return point.cost

    assert cost(NetBenefit()) < 0.9 * cost(Mixture())
    assert cost(Portfolio()) < 1.02 * min(cost(NetBenefit()), cost(Threshold(VERDICT)))


def test_without_a_number_that_varies_nothing_is_learned() -> None:
    table = simulated(100, 0)
    blind = replace(
        table,
        signals={},
        confidence=np.full_like(table.confidence, np.nan),
        paid=np.full_like(table.paid, np.nan),
        texts_known=np.zeros(100, dtype=np.bool_),
    )
    blind = replace(blind, tokens=np.full_like(table.paid, np.nan))
    assert "net benefit, conformal" not in names(blind)
    assert "net benefit, conformal" in names(table)


def test_one_threshold_per_rung_is_a_row_of_ladders_and_cheaper_than_one_shared_where_scales_differ() -> None:
    """0.5.0 compared ladders with one shared threshold only: much of what it showed as learned was a matter of scales."""
    assert "one threshold per rung, conformal" not in names(ladder(60, 2))
    table, test = ladder(1_200), ladder(2_000, seed=8)
    held = {one.name: one for one in methods(table)}
    train, calibration = table.take(np.arange(800)), table.take(np.arange(800, 1_200))
    played = {
        name: held[name].prepare(train, calibration, 0.1, 0).play(test)
        for name in ("threshold on log-prob, conformal", "one threshold per rung, conformal")
    }
    shared, own = played.values()
    assert min(shared.covered.mean(), own.covered.mean()) > 0.9 - 3 * 0.016
    assert own.cost.mean() < 0.95 * shared.cost.mean()
