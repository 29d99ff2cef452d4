"""A promise for each segment of questions (a tenant, a task, a language), small ones pooled without losing exactness.

Let m be the least number of exchangeable questions, the fresh one among them, that can certify alpha: ⌊alpha·m⌋ ≥ 1. A
question's *category* is decided on all n + 1 questions together, the fresh one included: its own segment if the segment
has m of them or more, else the pool of all smaller segments. Then Pr[fresh question missed | its category] ≤ alpha: the
categories depend on the bag of labels, not on which question is the fresh one (`design/calibration.md`).

A fresh question of segment g is thus judged by g's own n_g questions if n_g + 1 ≥ m, else together with every segment h
that has n_h ≤ m − 1: a segment of exactly m − 1 is large for its own questions, and part of the pool for those of
others.

The pool's promise is one for its questions taken together, not for each of its segments. With delta there is no pool,
for its mixture is not the law of any of its segments: small segments keep everything.

Reference: Vovk, Gammerman & Shafer, Algorithmic Learning in a Random World (2005), Mondrian predictors (section 4.5);
the taxonomy that looks at the whole bag is what makes the pooling exact.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from cascade.conformal.arrays import Floats, Ints
from cascade.conformal.binomial import needed_n
from cascade.conformal.calibrate import Calibration, calibrate
from cascade.conformal.split import one_of_each
from cascade.errors import UsageError

_QUOTED = 3  # labels that an error shows


@dataclass(frozen=True, slots=True)
class SegmentCalibration:
    """A threshold for every segment: by its own questions or, where they are too few, by a pool (`calibrate_segments`).

    Attributes:
        by_segment: what serves each segment on record; a small one's is the pool's.
        pooled: the calibration of the pool. It keeps everything where the pool itself is too small. None with delta.
        pooled_segments: the segments on record that are too small for a threshold of their own, sorted: the pool serves
            them; with delta they keep everything.
        unknown: what serves a question of a segment that is not on record, or of no segment: the pool; with delta
            everything is kept.
    """

    by_segment: Mapping[str, Calibration]
    pooled: Calibration | None
    pooled_segments: tuple[str, ...]
    unknown: Calibration

    def of(self, segment: str | None) -> Calibration:
        """Return the calibration that serves a question of this segment; None = a question without a segment."""
        return self.unknown if segment is None else self.by_segment.get(segment, self.unknown)


def calibrate_segments(
    critical_values: ArrayLike,
    segments: Sequence[str | None],
    alpha: float,
    *,
    delta: float | None = None,
    groups: Sequence[Hashable] | None = None,
    seed: int = 0,
) -> SegmentCalibration:
    """Return a threshold for each segment of questions.

    Guarantee: let the n calibration questions and a fresh one be exchangeable together with their segments, used for
    nothing else before. Without delta a fresh question is missed with probability at most alpha given that it belongs
    to a segment with a threshold of its own, for each such segment, and given that it belongs to the rest: small
    segments, segments never seen, and no segment at all (proof: `design/calibration.md`). With delta, for independent
    questions: a segment's threshold misses more than alpha of its questions with probability at most delta, for each
    segment, not for all segments at once.

    Args:
        critical_values: n numbers; ±∞ allowed (`calibrate`).
        segments: n labels; None = of no segment, always in the pool.
        alpha: the share of each segment's questions that may be missed, 0..1.
        delta: the probability that a segment's calibration misleads; for K segments together ask for delta/K.
        groups: n labels, where questions belong together; one question of each group in each segment counts, drawn at
            random, as of `calibrate`.
        seed: draws them.

    Raises:
        UsageError: as `calibrate`; or there are not as many segments as values, or a label is not a text.

    >>> values = [0.31, 0.12, 0.55, 0.47, 0.93, 0.28, 0.76, 0.64]
    >>> found = calibrate_segments(values, ["de", "de", "de", "de", "fr", "fr", "it", "it"], alpha=0.25)
    >>> found.of("de").kappa, found.pooled_segments, found.of("fr").kappa, found.of("es").n
    (0.12, ('fr', 'it'), 0.28, 4)
    """
    n = calibrate(critical_values, alpha, delta=delta).n  # also checks them
    values = np.asarray(critical_values, dtype=np.float64)
    if groups is not None:
        if not n == len(groups) == len(segments):
            raise UsageError(f"There are {n} critical values, {len(segments)} segments and {len(groups)} groups.")
        keys = [None if group is None else (label, group) for label, group in zip(segments, groups, strict=True)]
        chosen = one_of_each(keys, seed=seed)
        values, segments, n = values[chosen], [segments[row] for row in chosen.tolist()], chosen.size
    rows = _rows_by_segment(segments, n)
    needed = needed_n(alpha, delta) if alpha > 0 else n + 1
    large = {name: at for name, at in rows.items() if name is not None and at.size >= needed}
    own = {name: _of_rows(values, [at], alpha, delta) for name, at in large.items()}
    small = tuple(sorted(name for name in rows if name is not None and name not in own))
    if delta is not None:
        everything = {name: _of_rows(values, [rows[name]], alpha, delta) for name in small}
        return SegmentCalibration(own | everything, None, small, calibrate([], alpha, delta=delta))
    pool = [at for name, at in rows.items() if name is None or at.size <= needed]
    pooled = _of_rows(values, pool, alpha, None)
    return SegmentCalibration(own | dict.fromkeys(small, pooled), pooled, small, pooled)


def _of_rows(values: Floats, rows: Iterable[Ints], alpha: float, delta: float | None) -> Calibration:
    return calibrate(values[np.concatenate([np.zeros(0, dtype=np.int64), *rows])], alpha, delta=delta)


def _rows_by_segment(segments: Sequence[object], n: int) -> dict[str | None, Ints]:
    """Return which rows belong to each label, in the order in which the labels come."""
    if len(segments) != n:
        raise UsageError(f"There are {n} critical values, and {len(segments)} segments.")
    codes: dict[Any, int] = {}
    code = np.fromiter((codes.setdefault(segment, len(codes)) for segment in segments), dtype=np.int64, count=n)
    wrong = [repr(label) for label in codes if label is not None and not isinstance(label, str)]
    if wrong:
        shown = ", ".join(wrong[:_QUOTED]) + (", …" if len(wrong) > _QUOTED else "")
        raise UsageError(f"A segment must be a text, or None where there is none; not {shown}.")
    order = np.argsort(code, kind="stable")
    ends = np.cumsum(np.bincount(code, minlength=len(codes)))
    return dict(zip(codes, np.split(order, ends[:-1]), strict=True)) if n else {}
