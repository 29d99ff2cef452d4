"""The tables that are printed of what was found: Markdown, as they stand in the project's design documents."""

from __future__ import annotations

import math
import os
import platform
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from cascade.conformal.arrays import Floats
from cascade.house.study import Interval

from .figures import geometric_mean, ratio, told
from .opponents import CLAIRVOYANT, MIXTURE, TUNED
from .trial import SINGLE, Trial

BEST, HARDEST = "best single", "luckiest single"
OPPONENTS = (MIXTURE, TUNED, BEST, HARDEST)


@dataclass(frozen=True, slots=True)
class Against:
    """One way's cost on one cell relative to those it is held against."""

    trial: Trial
    way: str
    alpha: float

    @property
    def known(self) -> bool:
        """Whether the way was judged here, at a coverage that is within reach on every split."""
        costs = self.trial.cost.get((self.way, self.alpha))
        return costs is not None and not bool(np.isnan(costs).any())

    def to(self, opponent: str) -> Interval:
        """Return the ratio of the costs; NaN where either is unknown or out of reach."""
        costs, other = self.trial.cost.get((self.way, self.alpha)), self._of(opponent)
        if costs is None or other is None:
            return Interval(math.nan, None, None)
        return ratio(costs, other, n_train=sum(self.trial.sizes[:2]), n_test=self.trial.sizes[2])

    def _of(self, opponent: str) -> Floats | None:
        if opponent == HARDEST:
            return self.trial.hardest_single(self.alpha)
        name = self.trial.best_single(self.alpha) if opponent == BEST else opponent
        return None if name is None else self.trial.cost.get((name, self.alpha))


def head() -> str:
    """Return the day and the machine.

    >>> head().count(",") > 2
    True
    """
    day = datetime.now(UTC).date().isoformat()
    cores = f"{os.cpu_count()} cores, {platform.machine()}"
    return f"{day}, {cores}, Python {platform.python_version()}, numpy {np.__version__}"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table in Markdown.

    >>> table(["a", "b"], [["1", "2"]])
    ['| a | b |', '|---|---|', '| 1 | 2 |']
    """
    return [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|", *(f"| {' | '.join(row)} |" for row in rows)]


def by_cell(trials: Sequence[Trial], way: str, alpha: float) -> list[str]:
    """Return what one way costs on each cell, relative to the others, and what its certificate covers."""
    columns: tuple[str, ...] = (
        "log",
        "train, calibrate, test",
        "mixture, µUSD",
        f"{way} ÷ mixture",
        "÷ tuned threshold",
    )
    columns += ("÷ best single", "which", "÷ luckiest single", "clairvoyant ÷ mixture", "coverage ± sd (z)", "chosen")
    return table(columns, [_row(Against(trial, way, alpha)) for trial in trials])


def _row(found: Against) -> list[str]:
    trial, alpha = found.trial, found.alpha
    mixture = trial.cost[MIXTURE, alpha]
    best = trial.best_single(alpha)
    real = trial.coverage(found.way, alpha)
    chosen = Counter(trial.notes.get((found.way, alpha), ())).most_common(3)
    return [
        trial.cell + (" (floor)" if alpha in trial.floor else "") + (" (control)" if trial.control else ""),
        ", ".join(f"{size:,}" for size in trial.sizes),
        "–" if np.isnan(mixture).any() else f"{mixture.mean() * 1e6:,.0f}",
        told(found.to(MIXTURE)),
        told(found.to(TUNED)),
        told(found.to(BEST)),
        "–" if best is None else best.removeprefix(SINGLE),
        f"{found.to(HARDEST).mean:.3f}",
        f"{Against(trial, CLAIRVOYANT, alpha).to(MIXTURE).mean:.3f}",
        "–" if real is None else f"{real.mean:.3f} ± {real.sd:.3f} ({real.z:+.1f})",
        ", ".join(f"{name} {times}" for name, times in chosen if name),
    ]


def summary(trials: Sequence[Trial], ways: Sequence[str], alpha: float) -> list[str]:
    """Return the geometric means over the sources: of all cells where something can be saved, and of some of them."""
    open_ = [trial for trial in trials if alpha not in trial.floor]
    kinds: Mapping[str, list[Trial]] = {
        "all": open_,
        "with signals": [trial for trial in open_ if trial.signals],
        "without": [trial for trial in open_ if not trial.signals],
        "controls": [trial for trial in open_ if trial.control],
    }
    rows = [
        [kind, str(len(some)), str(len({trial.source for trial in some})), way, *_means(some, way, alpha)]
        for kind, some in kinds.items()
        for way in ways
        if some
    ]
    return table(("cells", "number", "sources", "way", *(f"÷ {name}" for name in (*OPPONENTS, CLAIRVOYANT))), rows)


def _means(trials: Sequence[Trial], way: str, alpha: float) -> Iterator[str]:
    for opponent in (*OPPONENTS, CLAIRVOYANT):
        by_source: dict[str, list[float]] = {}
        for trial in trials:
            by_source.setdefault(trial.source, []).append(Against(trial, way, alpha).to(opponent).mean)
        yield told(geometric_mean(by_source))
