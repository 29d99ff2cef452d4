"""Walks that buy nodes in an order of their own, against a walk that is taken call by call."""

from dataclasses import replace

import numpy as np
import pytest

from cascade.conformal.path import UNITS, Scores, walks
from cascade.conformal.promise import Promise
from cascade.errors import UsageError
from cascade.fitting.divide import divided
from cascade.fitting.fit import FitSettings, fit
from cascade.fitting.menu import menu, run_tests
from cascade.policies.learned import Learned, learn
from cascade.policies.policy import Depth, Threshold
from cascade.table import Floats, Ints, Log, Node
from unit.fitting.random_logs import random_log

SEEDS = range(25)
KINDS_OF_ANSWERS = ("error", "regret", "coverage")


def scores_for(log: Log, seed: int) -> Scores:
    draw = np.random.default_rng([37, seed])
    doubt = draw.integers(0, 6, log.answer.shape) / 4 - 0.5
    doubt[draw.random(doubt.shape) < 0.1] = np.nan
    doubt[draw.random(doubt.shape) < 0.15] = -np.inf
    order = np.argsort(draw.random(log.answer.shape), axis=1)
    return Scores(doubt, order=order)


def walk(log: Log, row: int, doubt: Floats, order: Ints, kappa: float) -> tuple[list[int], bool]:
    """Return the nodes that a request buys, in turn, and whether its record ends where the walk does."""
    bought: list[int] = []
    for place, node in enumerate(order.tolist()):
        if place:
            before = order[place - 1]
            level = np.inf if np.isnan(doubt[place - 1]) or log.answer[row, before] < 0 else doubt[place - 1]
            level = -np.inf if doubt[place - 1] == -np.inf else level
            if level == -np.inf or level < kappa:
                break
        if not log.bought[row, node]:
            break
        bought.append(node)
    reached = [bool(log.bought[row, node]) for node in order.tolist()]
    many = reached.index(False) if False in reached else len(reached)
    complete = bool(log.complete[row]) and sum(reached) == many
    return bought, len(bought) == many and not complete


def loss(log: Log, row: int, bought: list[int], kind: str) -> float:
    right = log.right[row]
    if kind == "coverage":
        hopeless = log.complete[row] and (right[log.answer[row] >= 0] < 1).all()  # what was not judged may be right
        return float(not (hopeless or (right[bought] == 1).any()))
    served = next((node for node in reversed(bought) if log.answer[row, node] >= 0), None)
    wrong = 1.0 if served is None or np.isnan(right[served]) else 1.0 - right[served]
    return float(wrong if kind == "error" else wrong * log.reference.right[row])


@pytest.mark.parametrize("kind", KINDS_OF_ANSWERS)
def test_losses_and_costs_are_those_of_walks_taken_call_by_call(kind: str) -> None:
    for seed in SEEDS:
        log = random_log(seed)
        scores = scores_for(log, seed)
        assert scores.order is not None
        walked = walks(log, scores)
        jumps = Promise(kind, confidence=0.9).rules.jumps(walked)
        cut = np.count_nonzero(walked.log.bought, axis=1) < np.count_nonzero(log.bought, axis=1)
        for kappa in (-np.inf, -0.25, 0.25, 0.8, np.inf):
            costs, losses, stops = walked.cost.at(kappa), jumps.at(kappa) / UNITS, walked.stop(kappa)
            for row in range(log.n):
                bought, open_end = walk(log, row, scores.doubt[row], scores.order[row], kappa)
                expected = loss(log, row, [] if open_end and kind != "coverage" else bought, kind)
                assert (costs[row], stops[row]) == (log.cost_nano_usd[row, bought].sum(), len(bought) - 1)
                # What a record has after the first node that it lacks is not read, so more may count as missed.
                assert losses[row] >= expected if kind == "coverage" and cut[row] else losses[row] == expected


def with_gaps(log: Log, seed: int) -> Log:
    """Return a log whose records lack calls anywhere, as where a policy left them out; some are complete all the same."""
    there = np.random.default_rng([53, seed]).random(log.answer.shape) >= 0.3
    columns = {"confidence": log.confidence, "right": log.right, **log.signals}
    lacking = {name: np.where(there, values, np.nan) for name, values in columns.items()}
    return replace(
        log, bought=there, answer=np.where(there, log.answer, -1), cost_nano_usd=np.where(there, log.cost_nano_usd, 0),
        complete=there[:, -1], confidence=lacking.pop("confidence"), right=lacking.pop("right"), signals=lacking,
    )  # fmt: skip


@pytest.mark.parametrize("kind", KINDS_OF_ANSWERS)
def test_a_record_with_gaps_is_lost_wherever_the_whole_request_is(kind: str) -> None:
    rules, unequal = Promise(kind, confidence=0.9).rules, 0
    own_order = learn(random_log(777, n=300, whole=True), Promise("regret", confidence=0.9).rules, 0.05)
    for seed in range(10):
        log = random_log(seed, n=100, whole=True)
        log = replace(log, right=np.where(log.answer >= 0, np.nan_to_num(log.right), np.nan))
        for policy in (own_order, Threshold("reply_mean_logprob", -1.0), Depth((1, 3))):
            whole, gaps = policy.walks(log), policy.walks(with_gaps(log, seed))
            for kappa in np.append(np.quantile(whole.reach[np.isfinite(whole.reach)], [0, 0.3, 0.6, 1]), -np.inf):
                more = rules.jumps(gaps).at(kappa) - rules.jumps(whole).at(kappa)
                assert more.min() >= 0
                unequal += np.count_nonzero(more)
    assert unequal > 100


def test_a_right_answer_that_is_cut_off_or_never_bought_counts_as_missed() -> None:
    log = random_log(1, whole=True)
    doubt = np.full(log.answer.shape, -np.inf)
    walked = walks(log, Scores(doubt, order=np.broadcast_to([3, 0, 1, 2], log.answer.shape)))
    missed = Promise("coverage").rules.jumps(walked).at(-np.inf)
    may = ((log.right == 1) | (np.isnan(log.right) & log.answers)).any(axis=1) | ~log.complete
    assert missed.tolist() == (np.where(may & (log.right[:, 3] != 1), UNITS, 0)).tolist()


def test_the_listed_order_gives_what_no_order_gives() -> None:
    for seed in SEEDS:
        log = random_log(seed)
        doubt = np.nan_to_num(scores_for(log, seed).doubt, neginf=-1.0)
        listed = np.broadcast_to(np.arange(log.width), log.answer.shape)
        plain, ordered = walks(log, Scores(doubt)), walks(log, Scores(doubt, order=listed))
        for name in ("reach", "keep", "serve", "sure"):
            assert np.array_equal(getattr(plain, name), getattr(ordered, name), equal_nan=True)
        for name in ("answer", "right", "cost_nano_usd", "bought", "complete", "open_end"):
            assert np.array_equal(getattr(plain.log, name), getattr(ordered.log, name), equal_nan=True)


@pytest.mark.parametrize("order", [[0, 0, 1, 2], [0, 1, 2, 4], [0, 1, 2, -1], [0, 1, 2]])
def test_an_order_has_every_node_once(order: list[int]) -> None:
    log = random_log(0)
    with pytest.raises(UsageError):
        log.in_order(np.broadcast_to(np.array(order), (log.n, len(order))))


def test_nodes_that_are_bought_together_have_no_order() -> None:
    log = random_log(0)
    together = replace(log, nodes=tuple([Node(node.name, node.step // 2) for node in log.nodes]))
    with pytest.raises(UsageError):
        together.in_order(np.broadcast_to(np.arange(4), log.answer.shape))


PROMISE = Promise("regret", 0.1, 0.9)


def nameless(log: Log) -> Log:
    return replace(log, signals={"wisdom": log.signals["self_check"]})


def lengths(log: Log) -> Log:
    return replace(log, signals={"reply_tokens": log.signals["reply_tokens"]})


def together(log: Log) -> Log:
    return replace(log, nodes=tuple([Node(node.name, node.step // 2) for node in log.nodes]))


@pytest.mark.parametrize(
    ("n", "width", "change", "shares"),
    [
        (400, 2, None, [0.95, 0.05]),
        (400, 4, None, [0.2375] * 4 + [0.05]),
        (400, 3, lengths, [0.2 / 3] * 3 + [0.8]),
        (400, 2, nameless, [1.0]),
        (300, 2, None, [1.0]),
        (300, 2, nameless, []),
        (400, 4, together, [0.25] * 4),
    ],
)
def test_the_members_of_a_menu(n: int, width: int, change: object, shares: list[float]) -> None:
    log = random_log(21, n=n, width=width, whole=True)
    log = change(log) if callable(change) else log
    members = menu(log, divided(log, 0.3, 0).learns, PROMISE, 0.1)
    assert np.allclose([member.share for member in members], shares)
    hidden = replace(log, right=np.full(log.right.shape, np.nan))
    again = menu(hidden, divided(hidden, 0.3, 0).learns, PROMISE, 0.1)
    assert [member.name for member in again] == [member.name for member in members]


def test_no_request_learns_and_certifies_and_the_level_is_not_exceeded() -> None:
    log = random_log(22, n=400, width=3, whole=True)
    log = replace(log, groups=tuple([f"g{at // 2}" for at in range(log.n)]))
    learns = divided(log, 0.3, 0).learns
    *_, learned = menu(log, learns, PROMISE, 0.1)
    assert learned.rows is not None
    assert not {*log.take(learned.rows).groups} & {*learns.groups}
    tested = run_tests(log, menu(log, learns, PROMISE, 0.1), PROMISE, 0.1)
    assert isinstance(tested[-1].policy, Learned)
    assert tested[-1].n == learned.rows.size
    assert tested[-1].level <= 0.1


def test_fit_serves_what_learned_if_it_is_asked_for() -> None:
    log = random_log(23, n=500, width=3, whole=True)
    done = fit(log, Promise("regret", 0.2, 0.9), FitSettings(policy="learned"))
    assert isinstance(done.tested[0].policy, Learned)
    assert done.learned_from == 150
    assert fit(log, Promise("regret", 0.2, 0.9)).learned_from == 0  # a simple test was cheaper
    assert fit(log, Promise("regret", 0.2, 0.9), FitSettings(policy="threshold")).learned_from == 0


@pytest.mark.parametrize(
    ("promise", "by_segment"),
    [(Promise("error", 0.75, 0.9), False), (Promise("coverage", 0.2), False), (Promise("regret", 0.2, 0.9), True)],
)
def test_what_learned_is_certified_for_any_promise_on_requests_that_did_not_learn(
    promise: Promise, by_segment: bool
) -> None:
    log = random_log(24, n=600, width=3, whole=True)
    log = replace(log, segments=tuple(["law" if at % 2 else "art" for at in range(log.n)]))
    done = fit(log, promise, FitSettings(policy="learned", by_segment=by_segment))
    assert isinstance(done.policy, Learned)
    assert done.learned_from == 180
    assert sum(certified.n for certified in done.certified.values()) == done.log.n == 420
