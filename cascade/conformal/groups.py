"""A promise for each group of questions (per tenant, task, language), small groups pooled without losing exactness.

Let m be the least number of exchangeable questions, the fresh one among them, that can certify alpha: ⌊alpha·m⌋ ≥ 1. A
question's *category* is decided on all n + 1 questions together, the fresh one included: its own group if the group
has m of them or more, else the pool of all smaller groups. Then Pr[fresh question missed | its category] ≤ alpha: the
categories depend on the bag of labels, not on which question is the fresh one (`design/calibration.md`).

A fresh question of group g is thus judged by g's own n_g questions if n_g + 1 ≥ m, else together with every group h
that has n_h ≤ m − 1: a group of exactly m − 1 is large for its own questions, and part of the pool for those of others.

The pool's promise is one for its questions taken together, not for each of its groups. With delta there is no pool, for
its mixture is not the law of any of its groups: small groups keep everything.

Reference: Vovk, Gammerman & Shafer, Algorithmic Learning in a Random World (2005), Mondrian predictors (section 4.5);
the taxonomy that looks at the whole bag is what makes the pooling exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from cascade.conformal.arrays import Floats, Ints
from cascade.conformal.binomial import needed_n
from cascade.conformal.calibrate import Calibration, calibrate
from cascade.errors import UsageError

_QUOTED = 3  # labels that an error shows


@dataclass(frozen=True, slots=True)
class GroupCalibration:
    """A threshold for every group: by its own questions or, where they are too few, by a pool (`calibrate_groups`).

    Attributes:
        by_group: what serves each group on record; a small one's is the pool's.
        pooled: the calibration of the pool. It keeps everything where the pool itself is too small. None with delta.
        pooled_groups: the groups on record that are too small for a threshold of their own, sorted: the pool serves
            them; with delta they keep everything.
        unknown: what serves a question of a group that is not on record, or of no group: the pool; with delta
            everything is kept.
    """

    by_group: Mapping[str, Calibration]
    pooled: Calibration | None
    pooled_groups: tuple[str, ...]
    unknown: Calibration

    def of(self, group: str | None) -> Calibration:
        """Return what serves a question of this group; None = of no group."""
        return self.unknown if group is None else self.by_group.get(group, self.unknown)


def calibrate_groups(
    critical_values: ArrayLike, groups: Sequence[str | None], alpha: float, *, delta: float | None = None
) -> GroupCalibration:
    """Return a threshold for each group of questions.

    Guarantee: let the n calibration questions and a fresh one be exchangeable together with their groups, used for
    nothing else before. Without delta a fresh question is missed with probability at most alpha given that it belongs
    to a group with a threshold of its own, for each such group, and given that it belongs to the rest: small groups,
    groups never seen, and no group at all (proof: `design/calibration.md`). With delta, for independent
    questions: a group's threshold misses more than alpha of its questions with probability at most delta, for each
    group, not for all groups at once.

    Args:
        critical_values: n numbers; ±∞ allowed (`calibrate`).
        groups: n labels; None = of no group, always in the pool.
        alpha: the share of each group's questions that may be missed, 0..1.
        delta: the probability that a group's calibration misleads.

    Raises:
        UsageError: as `calibrate`; or there are not as many groups as values, or a label is not a text.

    >>> values = [0.31, 0.12, 0.55, 0.47, 0.93, 0.28, 0.76, 0.64]
    >>> found = calibrate_groups(values, ["de", "de", "de", "de", "fr", "fr", "it", "it"], alpha=0.25)
    >>> found.of("de").kappa, found.pooled_groups, found.of("fr").kappa, found.of("es").n
    (0.12, ('fr', 'it'), 0.28, 4)
    """
    n = calibrate(critical_values, alpha, delta=delta).n  # also checks them
    values = np.asarray(critical_values, dtype=np.float64)
    rows = _rows_by_group(groups, n)
    needed = needed_n(alpha, delta) if alpha > 0 else n + 1
    large = {name: at for name, at in rows.items() if name is not None and at.size >= needed}
    own = {name: _of_rows(values, [at], alpha, delta) for name, at in large.items()}
    small = tuple(sorted(name for name in rows if name is not None and name not in own))
    if delta is not None:
        everything = {name: _of_rows(values, [rows[name]], alpha, delta) for name in small}
        return GroupCalibration(own | everything, None, small, calibrate([], alpha, delta=delta))
    pool = [at for name, at in rows.items() if name is None or at.size <= needed]
    pooled = _of_rows(values, pool, alpha, None)
    return GroupCalibration(own | dict.fromkeys(small, pooled), pooled, small, pooled)


def _of_rows(values: Floats, rows: Iterable[Ints], alpha: float, delta: float | None) -> Calibration:
    return calibrate(values[np.concatenate([np.zeros(0, dtype=np.int64), *rows])], alpha, delta=delta)


def _rows_by_group(groups: Sequence[object], n: int) -> dict[str | None, Ints]:
    """Return which rows belong to each label, in the order in which the labels come."""
    if len(groups) != n:
        raise UsageError(f"There are {n} critical values, and {len(groups)} groups.")
    codes: dict[Any, int] = {}
    code = np.fromiter((codes.setdefault(group, len(codes)) for group in groups), dtype=np.int64, count=n)
    wrong = [repr(label) for label in codes if label is not None and not isinstance(label, str)]
    if wrong:
        shown = ", ".join(wrong[:_QUOTED]) + (", …" if len(wrong) > _QUOTED else "")
        raise UsageError(f"A group must be a text, or None where there is none; not {shown}.")
    order = np.argsort(code, kind="stable")
    ends = np.cumsum(np.bincount(code, minlength=len(codes)))
    return dict(zip(codes, np.split(order, ends[:-1]), strict=True)) if n else {}
