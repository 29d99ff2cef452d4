"""The candidates of a fit, the simple ones first: a fixed depth, a threshold on each number, and learned policies.

| candidate | complexity | when |
|---|---|---|
| `fixed depth` | 0 | always |
| `the reference alone` | 0 | for regret, if the log has a reference |
| `threshold on …` | 1 | for each signal and confidence that is known and varies; the verdict also by its doubt |
| `one threshold per rung` | 2 | a ladder of three steps or more has a signal of a known kind (`samples.KNOWN`) |
| `net benefit` | 3 | a number is known and varies before the last step |
| `purchases` | 5 | single calls, of which the last is the reference (`purchases`) |
| `cpo_batch`, `ccpo` | 11, 12 | policy networks, if asked for: training one takes seconds, in every fold |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeAlias

from cascade.calibration.samples import PER_RUNG, only_unknown, rung_doubt
from cascade.calibration.scores import history_of
from cascade.checks import did_you_mean
from cascade.conformal.arrays import Ints, Parents
from cascade.episodes.table import EpisodeTable
from cascade.errors import UsageError
from cascade.guarantees.questions import has_reference
from cascade.policies import learned
from cascade.policies.base import Takes
from cascade.policies.features import offered
from cascade.policies.learned import BARE, CERTIFIABLE, LearnedPolicy
from cascade.training.choosing import Candidate, cost_of, out_of_fold
from cascade.training.objective import Objective
from cascade.training.stages import FitTarget
from cascade.training.stopping import Problem, SharedProblem, build, fit_net_benefit

if TYPE_CHECKING:  # loaded only for networks
    from cascade.training.networks.trainer import Networks

Estimator: TypeAlias = Callable[[Problem], LearnedPolicy]
"""Fits a policy to a problem of optimal stopping."""

AUTO = "auto"
METHODS = (AUTO, *(method for method in learned.METHODS if method not in BARE))
"""The methods that a fit can be asked for."""
DEPTH = "fixed depth"
REFERENCE = "the reference alone"
"""The candidate that asks the guide, or a ladder's last model, at once."""
LOG_SIGNALS = (
    "Log signals, as cascade collect does (log-probs, verdicts, several samples), or name a column of an imported "
    "table: cascade import --map MODEL.signals.NAME=COLUMN."
)
"""What to do where a log has no signal."""
_FEW = 100
"""The fewest training questions for trees: with fewer they rarely find a cut."""
_MANY = 2_000
"""The fewest training questions with which a policy with trees is compared with others."""
_NETWORK = 11
"""The complexity of the simpler network: the highest, since a network has to be trained and served."""
_CHOICE_ROWS = 20_000
"""The most questions that slow candidates are fitted on in each fold; more would not change the choice."""


class _OnSteps:
    """A table with some steps only; the last one is cached."""

    def __init__(self, steps: tuple[int, ...]) -> None:
        self.steps = steps
        self._last: tuple[EpisodeTable, EpisodeTable] | None = None

    def of(self, table: EpisodeTable) -> EpisodeTable:
        """Return the table with these steps only."""
        if self._last is None or self._last[0] is not table:
            self._last = table, table.only(self.steps)
        return self._last[1]

    def candidate(self, one: Candidate) -> Candidate:
        """Return a candidate of the part as a candidate of the whole ladder that takes these steps."""
        listed = ", ".join(map(str, self.steps))
        return replace(
            one,
            name=f"{one.name} (steps {listed})",
            fit=lambda table: self._made(one.fit, table),
            finish=lambda table: self._made(one.whole, table),
        )

    def _made(self, fit: Callable[[EpisodeTable], LearnedPolicy], table: EpisodeTable) -> LearnedPolicy:
        return replace(fit(self.of(table)), takes=Takes(self.steps))


def on_steps(
    table: EpisodeTable, objective: Objective, steps: tuple[int, ...], method: str = AUTO, *, seed: int = 0
) -> list[Candidate]:
    """Return the candidates that take only some steps of a ladder, always including the last.

    `table` has all steps; `steps` are numbers from 1, rising. `method` and `seed` are as in `portfolio`.
    """
    part = _OnSteps(steps)
    found = portfolio(part.of(table), objective, method, seed=seed)
    return [part.candidate(one) for one in found if one.method not in {"reference", "purchases"}]


def portfolio(
    table: EpisodeTable,
    objective: Objective,
    method: str = AUTO,
    *,
    seed: int = 0,
    networks: Networks | None = None,
) -> list[Candidate]:
    """Return the candidates that a log has the numbers for, simple ones first.

    `method` is "auto" for all candidates, or one of `policies.learned.METHODS` for those of that method. The candidates
    read only numbers that are known and vary in the table.
    """
    check_method(method)
    if not table.n:  # only policies that read no signal can be fitted
        method = "depth"
    offers = networks is not None and networks.offered
    tried = _tried(table, objective, networks=offers) if method == AUTO else {method}
    if method in CERTIFIABLE or (method == AUTO and offers):
        from cascade.training.networks.trainer import Networks, require_torch

        networks = networks or Networks()
        require_torch(networks.config.device)
    found = [one for one in _all(table, objective, seed, networks, tried) if one.method in tried]
    if not found and method == "purchases" and sees_something(table) and not _buys(table, objective):
        raise UsageError(_cannot_buy(table))
    if not found:
        raise UsageError(f"{table.dataset} has no signal that a policy of the method {method} can use. {LOG_SIGNALS}")
    return found


def _tried(table: EpisodeTable, objective: Objective, *, networks: bool) -> set[str]:
    """Return the methods that "auto" tries.

    If the first step has numbers but none of a known kind, as with tool calls without log-probs, one policy with trees
    replaces all others: on a few hundred questions a choice costs more than it gains, and if nothing can be certified
    the reference is taken anyway (`design/fitting.md`). With many questions it is compared.
    """
    trees, offered = find_spec("sklearn") is not None, set(CERTIFIABLE) if networks else set[str]()
    if trees and table.n >= _FEW and objective.guarantee.rules.reference_keeps_it and only_unknown(table):
        alone = table.n < _MANY and _buys(table, objective)
        return {"purchases", *offered} | (set() if alone else {"depth", "reference"})
    return set(learned.METHODS) - ({*CERTIFIABLE} - offered)


def _all(
    table: EpisodeTable,
    objective: Objective,
    seed: int,
    networks: Networks | None,
    tried: set[str],
) -> Iterator[Candidate]:
    """Yield the candidates of the methods in `tried`, and cheap ones of other methods."""
    kind = objective.guarantee.rules
    if tried & {"depth", "reference"}:
        from cascade.training.simple import fixed_depth, reference_alone  # here and below: loaded if they are tried

        yield Candidate(DEPTH, "depth", 0, partial(fixed_depth, kind=kind))
        if kind.reference_keeps_it and not objective.guarantee.abstain and has_reference(table):
            yield Candidate(REFERENCE, "reference", 0, reference_alone)
    if table.n and table.arrays.horizon > 1:
        if "threshold" in tried:
            yield from _thresholds(table, objective)
        yield from _learned(table, objective, seed, tried)
        if networks is not None and tried & {*CERTIFIABLE}:
            yield from _trained(table, objective, seed, networks)


def _thresholds(table: EpisodeTable, objective: Objective) -> Iterator[Candidate]:
    from cascade.training.simple import VERDICT, doubtful_verdict, one_threshold, signals_of, threshold_per_rung

    kind = objective.guarantee.rules
    for signal in signals_of(table):
        yield Candidate(f"threshold on {signal}", "threshold", 1, partial(one_threshold, signal=signal, kind=kind))
        if signal == VERDICT:
            yield Candidate("threshold on the verdict's doubt", "threshold", 1, partial(doubtful_verdict, kind=kind))
    doubt = rung_doubt(table)
    if doubt is not None:
        asked = asked_of(objective)
        yield Candidate(PER_RUNG, "threshold", 2, lambda table: threshold_per_rung(table, doubt, asked))


def _learned(table: EpisodeTable, objective: Objective, seed: int, tried: set[str]) -> Iterator[Candidate]:
    """Yield the candidates fitted to features. The choice leaves out confidences if they do not affect it.

    If the log has no number of a known kind, `purchases` values a call with both trees and regressions.
    """
    if not _most_features(table):
        return
    asked, shared = asked_of(objective), SharedProblem()

    def candidate(name: str, method: str, complexity: int, fit: Estimator) -> Candidate:
        return Candidate(
            name,
            method,
            complexity,
            lambda table: fit(shared(table, asked, confidences=False, seed=seed)),
            most_rows=_CHOICE_ROWS,
            finish=lambda table: fit(build(table, asked, seed=seed)),
        )

    if "net_benefit" in tried:
        yield candidate("net benefit", "net_benefit", 3, fit_net_benefit)
    if "purchases" in tried and _buys(table, objective):
        from cascade.training.purchases import fit_purchases

        trees = find_spec("sklearn") is not None and table.n >= _FEW and only_unknown(table)
        yield candidate("purchases", "purchases", 5, partial(fit_purchases, trees=trees))


def _buys(table: EpisodeTable, objective: Objective) -> bool:
    """Return whether a policy may decide before each call: steps are single calls, and the last keeps the promise."""
    from cascade.training.purchases import offers_of

    guarantee = objective.guarantee
    return not guarantee.abstain and offers_of(table) is not None and guarantee.rules.last_is_safe(table)


def _cannot_buy(table: EpisodeTable) -> str:
    """Return why no policy that decides before each call can be fitted to a log."""
    from cascade.training.purchases import MOST_OFFERS, offers_of

    says = "A policy of the method purchases decides before each call, and"
    if {"base", "guide"} >= {*table.sources}:
        return f"{says} {table.dataset} has rounds of two calls: read it call by call, offers:LOG, or as ladder:LOG."
    if offers_of(table) is None:
        return f"{says} {table.dataset} is not a list of 2 to {MOST_OFFERS} calls with one answer each."
    return f"{says} it is for a promise that the last call keeps: regret, agreement or preference, without --abstain."


def _trained(table: EpisodeTable, objective: Objective, seed: int, networks: Networks) -> Iterator[Candidate]:
    """Yield the policy networks."""
    if not _most_features(table):
        return
    asked = asked_of(objective)

    def candidate(method: str, complexity: int) -> Candidate:
        return Candidate(
            method,
            method,
            complexity,
            lambda table: networks.sketch(table, asked, method, seed=seed),
            most_rows=_CHOICE_ROWS,
            finish=lambda table: networks.policy(table, asked, method, seed=seed),
        )

    yield from (candidate(method, _NETWORK + place) for place, method in enumerate(CERTIFIABLE))


def sees_something(table: EpisodeTable) -> bool:
    """Whether any number is known and varies before the last step, so that a policy can learn from it."""
    return table.arrays.horizon > 1 and _most_features(table) > 0


def _most_features(table: EpisodeTable) -> int:
    history = history_of(table)
    return max(len(offered(history, step)) for step in range(1, history.horizon))


def asked_of(objective: Objective) -> FitTarget:
    """Return the target of a fit."""
    return FitTarget(objective.guarantee.kind, objective.alpha)


# --- Decide which models of a ladder to ask, and leave out those that cost more than they save ---
# A ladder of five models need not ask all five: a question that only the last model can answer pays for every model
# before it. The steps of a ladder do not depend on each other, so a log of all of them shows exactly what any subset of
# them would have cost.

WORTH = 0.005
"""A step is left out if that saves at least this share of the cost. A smaller saving is noise."""


def may_leave_out(table: EpisodeTable, objective: Objective) -> bool:
    """Return whether steps may be left out: only in a ladder of three or more whose last answer keeps the promise."""
    guarantee = objective.guarantee
    return not guarantee.abstain and table.arrays.horizon > 2 and guarantee.rules.last_is_safe(table)


def best_steps(
    table: EpisodeTable, fold: Ints, objective: Objective, candidate_on: Callable[[tuple[int, ...]], Candidate | None]
) -> tuple[int, ...]:
    """Return the steps that save more than they cost, found by leaving out one step after another.

    `candidate_on` makes a policy for some steps, or returns None if these steps have nothing to learn from. The numbers
    rise from 1: the last step and at least one other.
    """

    def cost(steps: tuple[int, ...]) -> float:
        return cost_of(out_of_fold(table, candidate_on(steps), fold), objective, objective.alpha, coin=0.0)

    best = tuple(range(1, table.arrays.horizon + 1))
    least = cost(best)
    while len(best) > 2:
        figures = {fewer: cost(fewer) for fewer in _fewer(best, table.parents)}
        found = min(figures, key=lambda one: figures[one], default=best)
        if not figures.get(found, math.inf) < least * (1 - WORTH):
            break
        best, least = found, figures[found]
    return best


def _fewer(steps: tuple[int, ...], parents: Parents | None) -> Iterator[tuple[int, ...]]:
    """Yield the steps with one left out, for each step except the last and those that another step depends on."""
    for at in range(len(steps) - 1):
        needed = () if parents is None else {p for step in steps if step != steps[at] for p in parents[step - 1]}
        if steps[at] not in needed:
            yield steps[:at] + steps[at + 1 :]


def method_written(method: str) -> str:
    """Return a method as messages write it: networks with dashes.

    >>> method_written("cpo_batch"), method_written("net_benefit")
    ('cpo-batch', 'net_benefit')
    """
    return method.replace("cpo_", "cpo-")


def method_named(said: str | None) -> str | None:
    """Return the internal name of a method; None stays None.

    >>> method_named("cpo-batch"), method_named("net_benefit"), method_named(None)
    ('cpo_batch', 'net_benefit', None)
    """
    return None if said is None else said.replace("-", "_")


def check_method(method: str) -> None:
    """Raise UsageError for a method that does not exist, or that cannot have a certificate."""
    if method in BARE:
        raise UsageError(
            f"--policy {method_written(method)} cannot have a certificate: cpo-batch calibrates the same network."
        )
    if method not in METHODS:
        meant = did_you_mean(method_written(method), map(method_written, METHODS))
        raise UsageError(f"There is no policy {method_written(method)!r} to fit{meant}.")
