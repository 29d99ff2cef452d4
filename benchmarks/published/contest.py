"""Plays every row of a table on fresh draws of its world: the paper's sizes, splits as many as are asked for.

What a row is judged on: the 200 test questions of the split, as in the tables, and, at a coverage of exactly 1 − alpha,
20,000 fresh questions that all splits share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from fitted.opponents import clairvoyant_cost
from literal.config import LiteralConfig
from literal.training import LiteralNetworks

from cascade.calibration.samples import doubt_of
from cascade.calibration.scores import scored
from cascade.conformal.arrays import ScoreArrays, levels
from cascade.conformal.frontier import clairvoyant, frontier
from cascade.episodes.table import EpisodeTable
from cascade.evaluation.baselines import Depth, Ready, Uala, played_at
from cascade.guarantees.base import Guarantee
from cascade.policies.learned import LearnedPolicy
from cascade.training.dividing import allowed_loss
from cascade.training.estimators import one_thread
from cascade.training.networks.config import CCPOConfig
from cascade.training.networks.trainer import Networks
from cascade.training.stages import FitTarget, step_cost
from cascade.training.stopping import build, fit_net_benefit
from published.worlds import WORLDS, simulate

from .methods import Chance, Logged, Method, PolicyNetwork, Threshold, calibrated
from .printed import (
    BASE_POLICY,
    CCPO,
    CHARGED,
    CPO,
    CPO_BATCH,
    CPO_ONLINE,
    EXIT_BASE,
    EXIT_GUIDE,
    GUIDE_POLICY,
    QUESTIONS,
    RANDOM,
    UALA,
    Table,
)

UALA_OWN, UALA_TUNED, FIRST = "UALA, threshold 0.31", "UALA, tuned", "both answers, one round"
THRESHOLD, SAMPLED = "one threshold, conformal", "CCPO sampled (λ = 0)"
SAMPLED_AT = 0.1
"""Where rollouts are sampled too: half of all the time, and at 0.2 one round is enough whatever is learned."""
OSC, LIMIT, CLAIRVOYANT = "OSC", "the limit", "clairvoyant"
ROWS = (
    EXIT_GUIDE, EXIT_BASE, RANDOM, GUIDE_POLICY, BASE_POLICY, UALA, UALA_OWN, UALA_TUNED, FIRST, THRESHOLD,
    CPO, CPO_BATCH, CPO_ONLINE, CCPO, CHARGED, SAMPLED, OSC, LIMIT, CLAIRVOYANT,
)  # fmt: skip
"""In the order of the tables; what is not printed there stands beside what it is like."""
SAME_DIAL = {CPO_ONLINE: CPO_BATCH}
"""Rows that turn the same dial: the scores of one network."""
CENTS = QUESTIONS * 1e-7
"""Cents for 200 questions of a mean in nano-USD."""
UALA_THRESHOLD = 0.31
"""Nats of −ln p of a single token, which UALA's code has for GPT-3.5 (Han et al. 2024, `uncertainty_utils.py`)."""
FRESH_SEED, LIMIT_SEED, FIRST_SEED = 2, 1, 100
"""Of the questions all splits share, of those the limit learns from, of the first split."""


class Settings(NamedTuple):
    """How the contest is held.

    Attributes:
        config: of the networks.
        many: questions that the limit learns from.
        fresh: questions for costs at matched coverage.
    """

    config: CCPOConfig
    many: int = 150_000
    fresh: int = 20_000


class Figures(NamedTuple):
    """One row of one split; None where a row has no such figure.

    Attributes:
        cents: for 200 questions.
        coverage, length, leaves, distinct: means over the test questions.
        matched: cents at a coverage of exactly 1 − alpha on the fresh questions, or at the least coverage of the dial.
        reached: what is covered there.
    """

    cents: float
    coverage: float
    length: float | None = None
    leaves: float | None = None
    distinct: float | None = None
    matched: float | None = None
    reached: float | None = None


class Split(NamedTuple):
    """The questions of one split."""

    train: EpisodeTable
    calibration: EpisodeTable
    test: EpisodeTable


def draw(table: Table, number: int) -> Split:
    """Draw a split's questions: new ones for each split, of the same world."""
    drawn = simulate(WORLDS[table.world], table.train + 2 * QUESTIONS, FIRST_SEED + number)
    ends = np.cumsum([0, table.train, QUESTIONS, QUESTIONS]).tolist()
    return Split(*(drawn.take(np.arange(*pair)) for pair in pairwise(ends)))


@dataclass(frozen=True, slots=True)
class Judged:
    """Of each of the first rounds the answer that the verdict favours: the base's after a yes, else the guide's.

    Of one round it is what a policy does that follows the verdict; of L rounds what UALA's printed rows are, whose
    length and set size are both L.
    """

    name: str
    depth: int

    def prepare(self, train: EpisodeTable, calibration: EpisodeTable, alpha: float, seed: int) -> Ready:  # noqa: ARG002
        """Nothing is to be prepared."""
        return Ready(lambda table: played_at(table, self._scores(table), 0.0))

    def _scores(self, table: EpisodeTable) -> ScoreArrays:
        arrays = table.arrays
        kept = np.full(arrays.answer.shape, -np.inf)
        kept[:, :, 1] = np.inf  # after a yes the guide's answer is the base's
        onward = np.where(np.arange(arrays.horizon) < self.depth - 1, np.inf, -np.inf)
        return ScoreArrays(kept, np.broadcast_to(onward, arrays.cost.shape).astype(np.float64))


@dataclass(frozen=True, slots=True)
class FixedUala:
    """UALA at a threshold given once and for all."""

    name: str
    inner: Uala
    threshold: float

    def prepare(self, train: EpisodeTable, calibration: EpisodeTable, alpha: float, seed: int) -> Ready:  # noqa: ARG002
        """Nothing is to be prepared."""
        return Ready(lambda table: played_at(table, self.inner.scores(table, self.threshold), self.threshold))


@dataclass(frozen=True, slots=True)
class Stopping:
    """Net benefit, calibrated; learned from the training questions or given."""

    name: str
    given: LearnedPolicy | None = None

    def prepare(self, train: EpisodeTable, calibration: EpisodeTable, alpha: float, seed: int) -> Ready:
        """Fit unless a policy is given; set the threshold."""
        policy = self.given or stopping(train, alpha, seed)
        return calibrated(lambda table: scored(policy, table)[1], calibration, alpha)


def stopping(train: EpisodeTable, alpha: float, seed: int) -> LearnedPolicy:
    """Fit net benefit for what 200 calibration questions will allow."""
    asked = FitTarget("coverage", allowed_loss(Guarantee("coverage", alpha), QUESTIONS))
    return fit_net_benefit(build(train, asked, confidences=False, seed=seed))


def charge_in_steps(table: Table, train: EpisodeTable) -> float:
    """Return λ as printed, read as USD for each answer kept, in mean steps of the training questions."""
    unit = step_cost(train).unit_nano_usd
    if unit is None:
        raise SystemExit("a simulated world has prices")
    return table.charge * 1e9 / unit


def sampled(config: CCPOConfig) -> LiteralConfig:
    """Return the paper's estimator, with its own defaults and what was set otherwise."""
    return LiteralConfig(**(config.model_dump(exclude_unset=True) | {"estimator": "sampled"}))


def methods(table: Table, split: Split, config: CCPOConfig) -> dict[str, Method]:
    """Return who plays a split, by row."""
    doubt = doubt_of(split.train)
    if doubt is None:
        raise SystemExit("a simulated world has verdicts")
    exact = Networks(config)
    uala, charge = Uala(doubt), charge_in_steps(table, split.train)
    found: dict[str, Method] = {
        EXIT_GUIDE: Logged("LLM-exit, guide"),
        EXIT_BASE: Logged("LLM-exit, base"),
        RANDOM: Chance(),
        GUIDE_POLICY: Judged(GUIDE_POLICY, 1),
        UALA: Judged(UALA, table.depth),
        UALA_OWN: FixedUala(UALA_OWN, uala, UALA_THRESHOLD),
        UALA_TUNED: uala,
        FIRST: Depth(1),
        THRESHOLD: Threshold(doubt),
        CPO: PolicyNetwork(CPO, exact, "cpo_online", "argmax"),
        CPO_BATCH: PolicyNetwork(CPO_BATCH, exact, "cpo_online", "calibrated"),
        CPO_ONLINE: PolicyNetwork(CPO_ONLINE, exact, "cpo_online", "trained"),
        CCPO: PolicyNetwork(CCPO, exact),
        CHARGED: PolicyNetwork(CHARGED, Networks(config.model_copy(update={"lambda_set": charge}))),
        OSC: Stopping(OSC),
    }
    if table.alpha == SAMPLED_AT:
        found[SAMPLED] = PolicyNetwork(SAMPLED, LiteralNetworks(sampled(config)))
    return found


@one_thread()
def play_split(table: Table, number: int, settings: Settings) -> dict[str, Figures]:
    """Return the rows of one split, but for the limit."""
    split, fresh = draw(table, number), shared(table.world, settings.fresh)
    found: dict[str, Figures] = {}
    for name, one in methods(table, split, settings.config).items():
        ready = one.prepare(split.train, split.calibration, table.alpha, number)
        other = found.get(SAME_DIAL.get(name, ""))
        found[name] = judged(ready if other is None else ready._replace(scores=None), split.test, fresh, table.alpha)
        if other is not None:
            found[name] = found[name]._replace(matched=other.matched, reached=other.reached)
    found[CLAIRVOYANT] = knowing(split.test, fresh, table.alpha)
    return found


@one_thread()
def play_limit(table: Table, numbers: Sequence[int], settings: Settings) -> dict[int, Figures]:
    """Return the limit's row for each split: learned once from very many questions, calibrated on each split's."""
    learned = stopping(simulate(WORLDS[table.world], settings.many, LIMIT_SEED), table.alpha, 0)
    one, fresh = Stopping(LIMIT, learned), shared(table.world, settings.fresh)
    found: dict[int, Figures] = {}
    dial: Figures | None = None
    for number in numbers:
        split = draw(table, number)
        ready = one.prepare(split.train, split.calibration, table.alpha, number)
        found[number] = judged(ready if dial is None else ready._replace(scores=None), split.test, fresh, table.alpha)
        dial = dial or found[number]
        found[number] = found[number]._replace(matched=dial.matched, reached=dial.reached)
    return found


@lru_cache(maxsize=4)
def shared(world: str, many: int) -> EpisodeTable:
    """Return the questions that all splits of a world share."""
    return simulate(WORLDS[world], many, FRESH_SEED)


def judged(ready: Ready, test: EpisodeTable, fresh: EpisodeTable, alpha: float) -> Figures:
    """Return what a method brings on the test questions, and what its dial costs on the fresh ones."""
    played = ready.play(test)
    means = (played.cost, played.covered, played.length, played.leaves, played.distinct)
    cents, *others = (float(one.mean()) for one in means)
    found = Figures(cents * CENTS, *others)
    if ready.scores is None:
        return found
    point = frontier(fresh.arrays, levels(fresh.arrays, ready.scores(fresh))).matched(1 - alpha)
    return found if point is None else found._replace(matched=point.cost * CENTS, reached=point.coverage)


def knowing(test: EpisodeTable, fresh: EpisodeTable, alpha: float) -> Figures:
    """Return what knowing every answer beforehand would cost."""
    bound = clairvoyant(test.arrays, alpha)
    matched = clairvoyant_cost(fresh.arrays, alpha) * 1e9 * CENTS
    return Figures(bound.cost * CENTS, bound.coverage, matched=matched, reached=1 - alpha)
