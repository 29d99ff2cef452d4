"""One log, many splits: what each way to decide costs at matched coverage, and what a certificate of it then covers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np

from cascade.calibration.samples import doubt_of
from cascade.conformal.arrays import Floats, ScoreArrays, levels, rollout
from cascade.conformal.split import critical_values, split_kappa
from cascade.episodes.table import EpisodeTable

from .cells import Cell
from .figures import Coverage, coverage
from .opponents import (
    CLAIRVOYANT,
    MIXTURE,
    TUNED,
    clairvoyant_cost,
    going_on,
    matched,
    mixture_cost,
    signals_of,
    single_signals,
)
from .splitting import Part, parts

SINGLE = "single: "
"""Stands before the name of a threshold on one signal."""
Scorer: TypeAlias = Callable[[EpisodeTable], ScoreArrays]


class Fitted(NamedTuple):
    """A policy fitted for one alpha.

    Attributes:
        scores: what it scores on a log.
        note: what was chosen, for the record.
    """

    scores: Scorer
    note: str = ""


class Method(NamedTuple):
    """A way to fit: from training questions to a policy for each alpha."""

    name: str
    fit: Callable[[EpisodeTable, Sequence[float], int], Mapping[float, Fitted]]


@dataclass(frozen=True, slots=True)
class Trial:
    """What was found on one cell.

    Attributes:
        cell: its name; source: whose questions they are.
        n, sizes: questions; training, calibration and test rows of a split.
        control: whether little is to be gained.
        signals: whether the log has any signal before the last step.
        floor: the alphas at which one step already covers enough.
        cost: by (way, alpha), float64 (splits,): USD a question at a coverage of exactly 1 − alpha; NaN out of reach.
        covered: by (way, alpha), the realised coverage of the policy that was calibrated.
        notes: by (way, alpha), what was chosen, one a split.
        seconds: by way, fitting all alphas, one a split.
    """

    cell: str
    source: str
    n: int
    sizes: tuple[int, int, int]
    control: bool
    signals: bool
    floor: tuple[float, ...]
    cost: dict[tuple[str, float], Floats] = field(default_factory=dict)
    covered: dict[tuple[str, float], Floats] = field(default_factory=dict)
    notes: dict[tuple[str, float], list[str]] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def coverage(self, way: str, alpha: float) -> Coverage | None:
        """Return what a way covers once it is calibrated; None where it was not judged."""
        values = self.covered.get((way, alpha))
        return None if values is None else coverage(values, alpha, calibration=self.sizes[1], test=self.sizes[2])

    def best_single(self, alpha: float) -> str | None:
        """Return the single signal that is the cheapest on the mean of the splits: chosen with hindsight."""
        known = {
            way: float(costs.mean())
            for (way, at), costs in self.cost.items()
            if at == alpha and way.startswith(SINGLE) and not np.isnan(costs).any()
        }
        return min(known, key=lambda way: known[way]) if known else None

    def hardest_single(self, alpha: float) -> Floats:
        """Return the cost of whichever single signal is the cheapest on each split: chosen with hindsight every time.

        Harder than anything that could be served: of many useless signals the luckiest looks useful on few questions.
        """
        costs = [costs for (way, at), costs in self.cost.items() if at == alpha and way.startswith(SINGLE)]
        if not costs:
            return np.full(self.cost[MIXTURE, alpha].shape, np.nan)
        return np.asarray(np.nan_to_num(np.array(costs), nan=np.inf).min(axis=0))


def run(cell: Cell, methods: Sequence[Method], alphas: tuple[float, ...], count: int, seed: int = 0) -> Trial:
    """Judge every way on so many splits of a log."""
    trial: Trial | None = None
    for number, part in enumerate(parts(cell.table, count, seed)):
        if trial is None:
            shape = part.train.n, part.calibration.n, part.test.n
            floor = tuple(alpha for alpha in alphas if cell.floor(alpha))
            signals = bool(signals_of(cell.table))
            trial = Trial(cell.name, cell.source, cell.table.n, shape, cell.control, signals, floor)
        _opponents(trial, part, alphas, number, count)
        for method in methods:
            started = time.perf_counter()
            fitted = method.fit(part.train, alphas, seed + number)
            trial.seconds.setdefault(method.name, []).append(time.perf_counter() - started)
            for alpha, one in fitted.items():
                _judge(trial, method.name, part, one.scores, alpha, (number, count))
                trial.notes.setdefault((method.name, alpha), []).append(one.note)
    assert trial is not None  # noqa: S101 - there is a split
    return trial


def _opponents(trial: Trial, part: Part, alphas: tuple[float, ...], number: int, count: int) -> None:
    """Write down what the simpler ways bring."""
    place = number, count
    for alpha in alphas:
        _put(trial.cost, (MIXTURE, alpha), mixture_cost(part.test.arrays, alpha), place)
        _put(trial.cost, (CLAIRVOYANT, alpha), clairvoyant_cost(part.test.arrays, alpha), place)
    for name, values in single_signals(part.test).items():
        costs = matched(part.test.arrays, going_on(part.test, values), alphas)
        for alpha, cost in zip(alphas, costs, strict=True):
            _put(trial.cost, (SINGLE + name, alpha), cost, place)
    doubt = doubt_of(part.train)
    if doubt is not None:
        for alpha in alphas:
            _judge(trial, TUNED, part, lambda table: going_on(table, doubt.read(table)), alpha, place)


def _judge(trial: Trial, way: str, part: Part, scores: Scorer, alpha: float, place: tuple[int, int]) -> None:
    """Write down a policy's matched cost, and what it covers once it is calibrated."""
    on_test = scores(part.test)
    _put(trial.cost, (way, alpha), matched(part.test.arrays, on_test, (alpha,))[0], place)
    kappa = split_kappa(critical_values(part.calibration.arrays, scores(part.calibration)), alpha)
    outcome = rollout(part.test.arrays, levels(part.test.arrays, on_test), kappa)
    _put(trial.covered, (way, alpha), float(outcome.covered.mean()), place)


def _put(into: dict[tuple[str, float], Floats], key: tuple[str, float], value: float, place: tuple[int, int]) -> None:
    number, count = place
    into.setdefault(key, np.full(count, np.nan))[number] = value
