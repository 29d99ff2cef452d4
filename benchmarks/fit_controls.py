"""Where there is nothing to be saved, is nothing claimed, and is every certificate kept?

    python benchmarks/fit_controls.py FOLDER              20 splits
    python benchmarks/fit_controls.py FOLDER --quick      3

Two kinds of logs. A **placebo** is a log of which the answers and their truth were dealt anew to the questions
(`fitted.cells.placebo`), by each split in another way: nothing that a policy looks at tells of what it would gain, so
no policy is better than a coin between two depths. The **controls** are logs on which little is known to be gained: the
guide is no better, or the doubt says nothing.

A split sets questions aside for the test; `fit` gets the rest: it chooses, trains, and certifies. Shown are

* **claimed**: what the chosen policy costs by fit's own table, at the loss that is allowed, relative to the best coin
  between two depths on the same questions; fit's table is made on questions that a policy has not seen;
* **realised**: the same on the test questions, at a coverage of exactly 1 − alpha;
* **claimed − realised**: paired over the splits, with its interval; fit claims too much where that lies below 0;
* **learned**: splits in which anything but a fixed depth was chosen;
* **coverage**: what the certified policy covers on the test, and z, how many standard errors that lies above 1 − alpha.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from fitted.cells import Cell, cells, placebo
from fitted.figures import Coverage, coverage, ratio, told
from fitted.opponents import matched, mixture_cost
from fitted.report import head, table
from fitted.splitting import Part, parts

from cascade.calibration.samples import joined
from cascade.calibration.scores import sample_of
from cascade.conformal.arrays import rollout
from cascade.evaluation.splits import Interval, corrected_interval
from cascade.guarantees.base import Guarantee
from cascade.training.fitting import Fitted, fit_policy

ALPHAS = (0.1, 0.05)
SPLITS, QUICK = 20, 3
PLACEBOS = ("zell_mmlu/llama-1b,3b,8b,70b>gpt-4o", "zell_mmlu/llama-3b>gpt-4o", "zell_mmlu/gpt-4o-mini>gpt-4o")
Z_BAR = -3.5
MOST_OVER = 2
"""Of about 20 intervals of 95 % half a one lies below 0 by chance; three or more do once in 70 times."""
DEPTH = "depth"
MET = {True: "ok    ", False: "MISSED"}


class Control(NamedTuple):
    """A log to try, and whether its answers are dealt anew."""

    cell: Cell
    dealt: bool = False


class Outcome(NamedTuple):
    """One split.

    Attributes:
        claimed: the chosen policy's cost over the mixture's, by fit's own reckoning.
        cost, mixture: on the test at a coverage of exactly 1 − alpha, USD a question.
        covered: share of the test questions covered at the certified threshold.
        method, name: what was chosen.
        calibration: questions that certified.
    """

    claimed: float
    cost: float
    mixture: float
    covered: float
    method: str
    name: str
    calibration: int


class Row(NamedTuple):
    """All splits of one log at one alpha."""

    cell: str
    alpha: float
    n_fit: int
    n_test: int
    outcomes: tuple[Outcome, ...]

    @property
    def realised(self) -> Interval:
        """The ratio of the costs on the test."""
        cost, mixture = (np.array([getattr(one, name) for one in self.outcomes]) for name in ("cost", "mixture"))
        return ratio(cost, mixture, n_train=self.n_fit, n_test=self.n_test)

    @property
    def gap(self) -> Interval:
        """How much less was claimed than realised, if below 0, as a share of the mixture's cost."""
        gaps = [one.claimed - one.cost / one.mixture for one in self.outcomes]
        return corrected_interval(gaps, n_train=self.n_fit, n_test=self.n_test)

    @property
    def overclaimed(self) -> bool:
        """Whether a saving is claimed that is not there, beyond chance."""
        return self.gap.high is not None and self.gap.high < 0

    @property
    def coverage(self) -> Coverage:
        """The realised coverage."""
        values = np.array([one.covered for one in self.outcomes])
        return coverage(values, self.alpha, calibration=self.outcomes[0].calibration, test=self.n_test)


def split(part: Part, alpha: float, seed: int) -> Outcome:
    """Fit to everything but the test questions, and test."""
    log = joined([part.train, part.calibration])
    found = fit_policy([log], Guarantee("coverage", alpha), seed=seed, allow_everything=True)
    sample = sample_of(part.test, found.policy)
    (held,) = found.artifact.certificates
    assert held.kappa is not None  # noqa: S101 - a promise of coverage has a threshold
    return Outcome(
        claimed=_claimed(found),
        cost=matched(part.test.arrays, sample.scores, (alpha,))[0],
        mixture=mixture_cost(part.test.arrays, alpha),
        covered=float(rollout(part.test.arrays, sample.levels, held.kappa).covered.mean()),
        method=found.policy.method,
        name=found.choice.chosen.name,
        calibration=found.sizes.calibration,
    )


def _claimed(found: Fitted) -> float:
    """Return the chosen policy's cost by fit's table over the mixture's, on the questions that the table is made on."""
    if found.policy.method == DEPTH:
        return 1.0  # a depth claims nothing
    sample, alpha = found.choice.sample, found.choice.alpha
    assert alpha is not None  # noqa: S101 - coverage is promised
    figure = found.choice.winner.matched
    assert figure is not None  # noqa: S101 - it was chosen for it
    return figure / 1e9 / mixture_cost(sample.table.arrays, alpha)


def drawn(control: Control, count: int) -> Iterator[Part]:
    """Yield the splits; those of a placebo each of another deal."""
    for number in range(count):
        log = placebo(control.cell.table, number) if control.dealt else control.cell.table
        yield next(parts(log, 1, 41 + number))


def measure(some: Sequence[Control], count: int) -> Iterator[Row]:
    """Do all splits of every log at every alpha."""
    for control in some:
        cell, started = control.cell, time.perf_counter()
        name = f"{cell.name}, placebo" if control.dealt else cell.name
        for alpha in ALPHAS:
            if cell.floor(alpha):
                continue
            found = [split(part, alpha, seed) for seed, part in enumerate(drawn(control, count))]
            shape = next(drawn(control, 1))
            yield Row(name, alpha, shape.train.n + shape.calibration.n, shape.test.n, tuple(found))
        print(f"{cell.name}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)


def chosen(folder: Path) -> list[Control]:
    """Return the placebos and the controls."""
    found, _ = cells(folder)
    dealt = [Control(one, dealt=True) for one in found if one.name in PLACEBOS]
    return [*dealt, *(Control(one) for one in found if one.control)]


def lines(rows: Sequence[Row]) -> list[str]:
    """Return the table."""
    columns = (
        "log",
        "fit, test",
        "α",
        "claimed ÷ mixture",
        "realised ÷ mixture",
        "claimed − realised",
        "learned",
        "chosen",
    )
    return table((*columns, "coverage ± sd (z)"), [_cells(row) for row in rows])


def _cells(row: Row) -> list[str]:
    real, claims = row.coverage, [one.claimed for one in row.outcomes]
    names = Counter(one.name for one in row.outcomes).most_common(3)
    return [
        row.cell,
        f"{row.n_fit:,}, {row.n_test:,}",
        f"{row.alpha:g}",
        f"{np.mean(claims):.3f}",
        told(row.realised),
        _signed(row.gap) + (" **too much**" if row.overclaimed else ""),
        str(sum(one.method != DEPTH for one in row.outcomes)),
        ", ".join(f"{name} {times}" for name, times in names),
        f"{real.mean:.3f} ± {real.sd:.3f} ({real.z:+.1f})",
    ]


def _signed(found: Interval) -> str:
    if found.low is None or found.high is None:
        return f"{found.mean:+.3f}"
    return f"{found.mean:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 1 if a promise is broken, or savings are claimed that are not there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the logs are")
    parser.add_argument("--splits", type=int, default=SPLITS)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} splits")
    given = parser.parse_args(argv)
    started = time.monotonic()
    some = chosen(given.folder)
    count = QUICK if given.quick else given.splits
    rows = list(measure(some, count))
    if not rows:
        print(f"No log is in {given.folder}.", file=sys.stderr)
        return 2
    print(f"{head()}; {count} splits; {(time.monotonic() - started) / 60:.1f} minutes\n")
    print("\n".join(lines(rows)))
    below = [f"{row.cell} {row.alpha:g}" for row in rows if row.coverage.z < Z_BAR]
    over = [f"{row.cell} {row.alpha:g}" for row in rows if row.overclaimed]
    print()
    kept, honest = not below, len(over) <= MOST_OVER
    print(f"{MET[kept]} coverage below 1 − alpha beyond chance: {'; '.join(below) or 'nowhere'}")
    print(f"{MET[honest]} more claimed than is there: {'; '.join(over) or 'nowhere'}")
    return int(not (kept and honest))


if __name__ == "__main__":
    sys.exit(main())
