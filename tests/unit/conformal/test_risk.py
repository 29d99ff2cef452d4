"""Promises about means: against brute force, published formulas, and their validity by enumeration."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np
import pytest
from cases import each
from mapie.risk_control.methods import find_best_predict_param, get_r_hat_plus

from cascade.conformal.arrays import UNITS, StepFunctions, levels, rollout
from cascade.conformal.risk import calibrate_budget, calibrate_risk, cost_levels, loss_levels
from cascade.conformal.split import calibrate, critical_kappa
from cascade.errors import UsageError
from unit.conformal.brute import Case, batches, expand, outcome, pack, telling_kappas

INF = math.inf


def graded(seed: int, shape: tuple[int, ...], *, dyadic: bool) -> np.ndarray:
    rng = np.random.default_rng(seed)
    quality = rng.integers(0, 9, shape) / 8 if dyadic else rng.random(shape)
    return np.where(rng.random(shape) < 0.15, math.nan, quality)


def true_loss(case: Case, quality: np.ndarray, kappa: float, *, relative: bool) -> float:
    """Return the loss of one question by its rollout tree, worst where it is unknown."""
    leaves = [(leaf.step, leaf.place.index) for leaf in expand(case, kappa).leaves]
    kept = max((np.nan_to_num(quality[at], nan=0.0) for at in leaves), default=0.0)
    on_record = [quality[t, place.index] for t, places in enumerate(case.steps) for place in places]
    best = max((1.0 if math.isnan(q) else q for q in on_record), default=0.0)
    return (best if relative and case.complete else 1.0) - kept


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("dyadic", [False, True])
def test_losses_are_those_of_the_trees_at_every_threshold(relative: bool, dyadic: bool) -> None:
    rng = np.random.default_rng(2)
    for cases, horizon, width in batches(seed=5, per_shape=25):
        steps, scores, _ = pack(cases, horizon, width)
        quality = graded(horizon * 10 + width, (len(cases), horizon, width), dyadic=dyadic)
        losses = loss_levels(steps, levels(steps, scores), quality, relative=relative)
        for q, case in enumerate(cases):
            for kappa in telling_kappas(case, rng, 7):
                over = int(losses.at(kappa)[q]) / UNITS - true_loss(case, quality[q], kappa, relative=relative)
                assert over == 0 if dyadic else 0 <= over + 1e-16 <= 2 / UNITS


def test_costs_are_those_of_the_trees_and_the_cap_where_a_record_ends_too_early() -> None:
    rng = np.random.default_rng(3)
    most = 10**11
    for cases, horizon, width in batches(seed=6, per_shape=25):
        steps, scores, _ = pack(cases, horizon, width)
        costs = cost_levels(steps, levels(steps, scores), most)
        for q, case in enumerate(cases):
            for kappa in telling_kappas(case, rng, 7):
                found = outcome(case, kappa)
                cut = not case.complete and found.length == len(case.steps)
                assert int(costs.at(kappa)[q]) == (most if cut else found.cost)


@pytest.mark.parametrize(("cut_short", "least"), [(False, 40), (True, 25)])
def test_a_loss_of_0_and_1_relative_to_the_record_is_a_miss(cut_short: bool, least: int) -> None:
    """The threshold is that of `calibrate`, where both promise something; and it counts the same questions."""
    compared = 0
    for cases, horizon, width in batches(seed=7, per_shape=60):
        steps, scores, _ = pack([case if cut_short else case._replace(complete=True) for case in cases], horizon, width)
        found = levels(steps, scores)
        critical = critical_kappa(steps, found)
        losses = loss_levels(steps, found, steps.correct.astype(float), relative=True)
        for kappa in (INF, -INF, 0.4, 0.0):
            covered = rollout(steps, found, kappa).covered
            assert losses.at(kappa).tolist() == np.where(covered, 0, UNITS).tolist()
        for alpha in (0.01, 0.05, 0.1, 0.3, 0.7):
            ours, theirs = calibrate_risk(losses, alpha), calibrate(critical, alpha)
            assert ours.certified == (theirs.k > 0 and not theirs.vacuous)
            assert not ours.certified or ours.kappa == theirs.kappa
            compared += ours.certified
    assert compared > least


def test_relative_to_itself_the_best_answer_is_no_loss_whatever_its_quality_rounds_to() -> None:
    for cases, horizon, width in batches(seed=8, per_shape=20):
        steps, scores, _ = pack([case._replace(complete=True) for case in cases], horizon, width)
        finite = scores._replace(candidates=np.nan_to_num(scores.candidates), next=np.nan_to_num(scores.next))
        quality = np.random.default_rng(1).random(steps.answer.shape) / 3
        losses = loss_levels(steps, levels(steps, finite), quality, relative=True)
        assert (losses.at(-INF) == 0).all()
        assert losses.at(INF).any() == bool(losses.jump[losses.level < INF].any())


def drawn(seed: int, n: int, jumps: int, units: int, direction: int) -> StepFunctions:
    """Return n functions from 1 down (losses) or from a base up (costs), with ties, infinities and jumps of 0."""
    rng = np.random.default_rng(seed)
    pool = np.array([INF, -INF, 0.1, 0.2, 0.3, 0.4, 0.5])
    level = rng.choice(pool, (n, jumps), p=[0.1, 0.1, 0.2, 0.2, 0.2, 0.1, 0.1])
    sizes = rng.multinomial(units, [1 / (jumps + 1)] * (jumps + 1), n)[:, :jumps]
    return StepFunctions(
        np.full(n, units if direction < 0 else 1), level, direction * sizes, units if direction < 0 else 1
    )


def every_kappa(functions: StepFunctions) -> list[float]:
    own = functions.level[np.isfinite(functions.level)]
    return sorted({INF, -INF, *own.tolist(), *np.nextafter(own, INF).tolist(), *np.nextafter(own, -INF).tolist()})


@each("seed", range(30))
def test_the_highest_threshold_that_fits_is_found(seed: int) -> None:
    losses = drawn(seed, n=1 + seed % 9, jumps=2, units=8, direction=-1)
    for alpha, bound in itertools.product((0.05, 0.2, 0.5, 0.9, 1.0), (1.0, 1.5)):
        level, cap = Fraction(repr(alpha)), Fraction(repr(bound))
        fits = [k for k in every_kappa(losses) if Fraction(int(losses.at(k).sum()), 8) + cap <= level * (losses.n + 1)]
        got = calibrate_risk(losses, alpha, bound=bound)
        assert (got.certified, got.kappa) == (bool(fits), max(fits, default=-INF))
        assert got.loss == losses.at(got.kappa).sum() / 8 / losses.n


@each("seed", range(30))
def test_the_lowest_threshold_within_the_budget_is_found(seed: int) -> None:
    costs = drawn(seed, n=1 + seed % 9, jumps=2, units=8, direction=1)
    for budget, most in itertools.product((1, 3, 6, 9), (9, 20)):
        fits = [k for k in every_kappa(costs) if int(costs.at(k).sum()) + most <= budget * (costs.n + 1)]
        got = calibrate_budget(costs, budget, most)
        assert (got.certified, got.kappa) == (bool(fits), min(fits, default=INF))
        assert got.total_nano_usd == costs.at(got.kappa).sum()


def published_lhat(risk: Callable[[float], float], lambdas: list[float], n: int, alpha: float) -> float:
    """Return conformal-risk's choice: of rising lambdas with falling risk, the first whose corrected risk is ≤ alpha."""
    fine = [n / (n + 1) * risk(one) + 1 / (n + 1) <= alpha for one in lambdas]
    return lambdas[fine.index(True)]


@each("seed", range(12))
def test_the_threshold_is_that_of_the_published_rule_and_of_mapie(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(40, 200))
    level = rng.random((n, 3))
    jump = -rng.multinomial(1000, [0.3, 0.3, 0.4], n)
    losses = StepFunctions(np.full(n, 1000), level, jump, units=1000)
    grid = np.sort(level.ravel())
    risks = np.array([losses.at(float(kappa)) / 1000 for kappa in grid]).T
    for alpha in (0.0612345, 0.1512345, 0.4012345):  # no sum of thousandths meets them, so < and ≤ are one
        got = calibrate_risk(losses, alpha)
        falling = [-float(kappa) for kappa in grid[::-1]]
        assert got.kappa == -published_lhat(lambda one: float(losses.at(-one).mean() / 1000), falling, n, alpha)
        _, plus = get_r_hat_plus(risks, grid, "crc", None, None, None)
        assert got.kappa == find_best_predict_param(grid, plus, np.array([alpha]))[0]


def leaving_one_out(bag: StepFunctions, calibrated: Callable[[StepFunctions], tuple[bool, float]]) -> Fraction:
    """Return the mean of what the fresh question brings where each of a bag is it in turn, 0 if not certified.

    That is the expectation given the bag, under exchangeability and nothing else.
    """
    total = Fraction(0)
    for fresh in range(bag.n):
        certified, kappa = calibrated(bag.take(np.arange(bag.n) != fresh))
        total += Fraction(int(bag.at(kappa)[fresh]), bag.units) if certified else 0
    return total / bag.n


@pytest.mark.parametrize("n", [1, 2, 4, 8])
def test_the_mean_loss_of_the_fresh_question_never_exceeds_alpha(n: int) -> None:
    naive_fails = 0
    for seed in range(120 // n):
        bag = drawn(seed, n=n + 1, jumps=2, units=4, direction=-1)
        for alpha in (0.15, 0.3, 0.5, 0.75):

            def ours(rest: StepFunctions, alpha: float = alpha) -> tuple[bool, float]:
                found = calibrate_risk(rest, alpha)
                return found.certified, found.kappa

            def naive(rest: StepFunctions, alpha: float = alpha) -> tuple[bool, float]:
                fits = [k for k in every_kappa(rest) if Fraction(int(rest.at(k).sum()), 4) <= Fraction(str(alpha)) * n]
                return bool(fits), max(fits, default=-INF)

            assert leaving_one_out(bag, ours) <= Fraction(str(alpha))
            naive_fails += leaving_one_out(bag, naive) > Fraction(str(alpha))
    assert naive_fails > 0


@pytest.mark.parametrize("n", [1, 2, 4, 8])
def test_the_mean_cost_of_the_fresh_question_never_exceeds_the_budget(n: int) -> None:
    certified = 0
    for seed in range(60):
        bag = drawn(seed, n=n + 1, jumps=2, units=8, direction=1)
        for budget in (2, 3, 5, 8):

            def ours(rest: StepFunctions, budget: int = budget) -> tuple[bool, float]:
                found = calibrate_budget(rest, budget, 9)
                return found.certified, found.kappa

            assert leaving_one_out(bag, ours) <= budget
            certified += calibrate_budget(bag, budget, 9).certified
    assert certified > 60


def samples(chances: list[Fraction], n: int) -> Iterator[tuple[np.ndarray, float]]:
    """Yield how often each of three kinds of question is drawn among n, with its probability."""
    for first in range(n + 1):
        for second in range(n + 1 - first):
            counts = (first, second, n - first - second)
            ways = math.factorial(n) // math.prod(math.factorial(count) for count in counts)
            yield np.array(counts), float(ways * math.prod(p**c for p, c in zip(chances, counts, strict=True)))


@pytest.mark.parametrize("seed", range(6))
def test_with_delta_a_certified_loss_is_too_high_with_probability_delta_at_most(seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights = [int(w) for w in rng.integers(1, 20, 3)]
    chances = [Fraction(w, sum(weights)) for w in weights]
    kinds = drawn(seed, n=3, jumps=2, units=4, direction=-1)
    alpha, delta, violated, certified = 0.6, 0.2, 0.0, 0.0
    for counts, chance in samples(chances, 16):
        got = calibrate_risk(kinds.take(np.repeat(np.arange(3), counts)), alpha, delta=delta)
        true = sum(p * int(loss) for p, loss in zip(chances, kinds.at(got.kappa), strict=True)) / 4
        certified += chance * got.certified
        violated += chance * (got.certified and true > Fraction(str(alpha)))
    assert violated <= delta
    assert certified > 0


@pytest.mark.parametrize("seed", range(6))
def test_with_delta_a_certified_cost_is_too_high_with_probability_delta_at_most(seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights = [int(w) for w in rng.integers(1, 20, 3)]
    chances = [Fraction(w, sum(weights)) for w in weights]
    kinds = drawn(seed, n=3, jumps=2, units=8, direction=1)
    budget, delta, violated, certified = 6, 0.2, 0.0, 0.0
    for counts, chance in samples(chances, 16):
        got = calibrate_budget(kinds.take(np.repeat(np.arange(3), counts)), budget, 9, delta=delta)
        true = sum(p * int(cost) for p, cost in zip(chances, kinds.at(got.kappa), strict=True))
        certified += chance * got.certified
        violated += chance * (got.certified and true > budget)
    assert violated <= delta
    assert certified > 0


def test_with_delta_the_threshold_is_the_last_whose_p_value_is_small() -> None:
    from cascade.conformal.monitor import hoeffding_bentkus_p_value, mean_below_p_value

    rng = np.random.default_rng(8)
    level = rng.random((300, 2)).round(2)
    losses = StepFunctions(np.full(300, 10), level, -rng.multinomial(10, [0.5, 0.4, 0.1], 300)[:, :2], units=10)
    fits = [
        kappa
        for kappa in every_kappa(losses)
        if hoeffding_bentkus_p_value(Fraction(int(losses.at(kappa).sum()), 3000), 300, 0.4) <= 0.1
    ]
    assert calibrate_risk(losses, 0.4, delta=0.1).kappa == max(fits)
    costs = StepFunctions(np.full(300, 5), level, rng.integers(0, 50, (300, 2)))
    fits = [kappa for kappa in every_kappa(costs) if mean_below_p_value(costs.at(kappa), 35, 120) <= 0.1]
    assert calibrate_budget(costs, 35, 120, delta=0.1).kappa == min(fits)
    assert calibrate_budget(costs, 35, 120, delta=0.1).kappa > calibrate_budget(costs, 35, 120).kappa


@pytest.mark.parametrize("delta", [None, 0.1])
def test_needed_n_is_the_least_number_of_such_questions_that_is_certified(delta: float | None) -> None:
    losses = StepFunctions(np.array([8, 8, 8, 8]), np.full((4, 1), 0.5), np.array([[-8], [-8], [-8], [-7]]), units=8)

    def many(n: int) -> StepFunctions:  # of the same mean loss, 1/32, for any n: rounding it would move the number
        return StepFunctions(np.full(n, 32 * n), np.full((n, 1), 0.5), np.full((n, 1), -31 * n), units=32 * n)

    needed = calibrate_risk(losses, 0.1, delta=delta).needed_n
    assert needed is not None
    assert needed > 4
    assert calibrate_risk(many(needed), 0.1, delta=delta).certified
    assert not calibrate_risk(many(needed - 1), 0.1, delta=delta).certified
    assert calibrate_risk(many(needed), 0.1, delta=delta).needed_n is None
    assert calibrate_risk(losses, 0.03, delta=delta).needed_n is None  # 1/32 is more than that


@pytest.mark.parametrize("delta", [None, 0.1])
def test_needed_n_for_a_budget(delta: float | None) -> None:
    costs = StepFunctions(np.array([3, 5]), np.full((2, 1), 0.5), np.array([[10], [10]]))
    needed = calibrate_budget(costs, 6, 40, delta=delta).needed_n
    assert needed is not None
    rows = np.arange(needed) % 2
    assert calibrate_budget(costs.take(rows), 6, 40, delta=delta).certified
    assert not calibrate_budget(costs.take(rows[: needed - 2]), 6, 40, delta=delta).certified
    assert calibrate_budget(costs, 4, 40, delta=delta).needed_n is None


@pytest.mark.parametrize("delta", [None, 0.1])
def test_no_questions_certify_nothing_but_what_holds_by_itself(delta: float | None) -> None:
    none = drawn(0, 0, 1, 4, -1)
    assert calibrate_risk(none, 0.1, delta=delta).certified is False
    assert calibrate_risk(none, 0.1, delta=delta).loss is None
    assert calibrate_risk(none, 1.0, delta=delta).kappa == INF
    nothing = drawn(0, 0, 1, 4, 1)
    got = calibrate_budget(nothing, 3, 9, delta=delta)
    assert (got.certified, got.kappa, got.total_nano_usd, got.needed_n) == (False, INF, 0, None)
    assert calibrate_budget(nothing, 10, 9, delta=delta).kappa == -INF


def test_without_questions_the_needed_number_is_that_of_losses_of_0() -> None:
    assert calibrate_risk(drawn(0, 0, 1, 4, -1), 0.1).needed_n == 9
    nines = StepFunctions(np.ones(9, dtype=np.int64), np.full((9, 1), 0.5), -np.ones((9, 1), dtype=np.int64))
    assert calibrate_risk(nines, 0.1).kappa == 0.5


def test_alpha_is_the_decimal_that_it_is_written_as() -> None:
    """0.1·(29 + 1) is 3: two misses of 29 fit exactly, where floats may say 2.9999…"""
    for n, alpha, k in ((29, 0.1, 3), (9, 0.3, 3), (99, 0.07, 7), (199, 0.29, 58)):
        losses = StepFunctions(np.ones(n, dtype=np.int64), np.arange(n)[:, None] / n, -np.ones((n, 1), dtype=np.int64))
        assert calibrate_risk(losses, alpha).kappa == (k - 1) / n


def test_everything_wrong_is_listed() -> None:
    rising = StepFunctions(np.array([3]), np.array([[0.5]]), np.array([[1]]))
    with pytest.raises(UsageError, match=r"delta must .*; alpha must .*; a loss exceeds the bound of 2; a loss rises"):
        calibrate_risk(rising, -1, bound=2, delta=1)
    with pytest.raises(UsageError, match="bound must be a number above 0, not nan"):
        calibrate_risk(rising.take(np.array([], dtype=int)), 0.1, bound=math.nan)
    falling = StepFunctions(np.array([3]), np.array([[0.5]]), np.array([[-1]]))
    with pytest.raises(
        UsageError, match=r"budget must not be negative: -\$0.000000001; the most .* not \$0; costs must be"
    ):
        calibrate_budget(falling, -1, 0)
    dear = StepFunctions(np.array([3, 3]), np.array([[0.5], [INF]]), np.array([[1], [3]]))
    with pytest.raises(UsageError, match=r"can cost more than the cap of \$0\.000000005, one \$0\.000000006; give"):
        calibrate_budget(dear, 5, 5)


def test_a_log_that_does_not_serve_is_refused() -> None:
    (cases, horizon, width), *_ = batches(seed=1, per_shape=2)
    steps, scores, _ = pack([case._replace(complete=False) for case in cases], horizon, width)
    found = levels(steps, scores)
    with pytest.raises(UsageError, match="incomplete; give the most"):
        cost_levels(steps, found)
    with pytest.raises(UsageError, match="unknown, so no budget"):
        cost_levels(steps, found, 10, cost_known=False)
    steps.cost[0, 0] = -1
    with pytest.raises(UsageError, match="negative cost"):
        cost_levels(steps, found, 10)
    with pytest.raises(UsageError, match="shape"):
        loss_levels(steps, found, np.zeros((1, 1, 1)))
    worse = np.where(steps.present, 1.1, math.nan)
    if steps.present.any():
        with pytest.raises(UsageError, match=r"in 0\.\.1"):
            loss_levels(steps, found, worse)
    assert loss_levels(steps, found, np.where(steps.present, 1.0, 7.0)).n == 2
