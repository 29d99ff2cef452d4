"""Walks that buy nodes in an order of their own, against a walk that is taken call by call."""

from dataclasses import replace

import numpy as np
import pytest

from cascade.conformal.path import UNITS, Scores, walks
from cascade.conformal.promise import Promise
from cascade.errors import UsageError
from cascade.policies.learned import learn
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
def test_losses_and_costs_are_those_of_walks_taken_call_by_call(kind):
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
def test_a_record_with_gaps_is_lost_wherever_the_whole_request_is(kind):
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


def test_a_right_answer_that_is_cut_off_or_never_bought_counts_as_missed():
    log = random_log(1, whole=True)
    doubt = np.full(log.answer.shape, -np.inf)
    walked = walks(log, Scores(doubt, order=np.broadcast_to([3, 0, 1, 2], log.answer.shape)))
    missed = Promise("coverage").rules.jumps(walked).at(-np.inf)
    may = ((log.right == 1) | (np.isnan(log.right) & log.answers)).any(axis=1) | ~log.complete
    assert missed.tolist() == (np.where(may & (log.right[:, 3] != 1), UNITS, 0)).tolist()


def test_the_listed_order_gives_what_no_order_gives():
    for seed in SEEDS:
        log = random_log(seed)
        doubt = np.nan_to_num(scores_for(log, seed).doubt, neginf=-1.0)
        listed = np.broadcast_to(np.arange(log.width), log.answer.shape)
        plain, ordered = walks(log, Scores(doubt)), walks(log, Scores(doubt, order=listed))
        for name in ("reach", "keep", "serve"):
            assert np.array_equal(getattr(plain, name), getattr(ordered, name), equal_nan=True)
        for name in ("answer", "right", "cost_nano_usd", "bought", "complete", "open_end"):
            assert np.array_equal(getattr(plain.log, name), getattr(ordered.log, name), equal_nan=True)


@pytest.mark.parametrize("order", [[0, 0, 1, 2], [0, 1, 2, 4], [0, 1, 2, -1], [0, 1, 2]])
def test_an_order_has_every_node_once(order):
    log = random_log(0)
    with pytest.raises(UsageError):
        log.in_order(np.broadcast_to(np.array(order), (log.n, len(order))))


def test_nodes_that_are_bought_together_have_no_order():
    log = random_log(0)
    together = replace(log, nodes=tuple([Node(node.name, node.step // 2) for node in log.nodes]))
    with pytest.raises(UsageError):
        together.in_order(np.broadcast_to(np.arange(4), log.answer.shape))
