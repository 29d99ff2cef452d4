"""`f1`: the best F1 of all steps minus the best F1 among the kept answers is at most alpha on average."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from cascade.conformal.arrays import Floats, StepFunctions
from cascade.conformal.risk import calibrate_risk, loss_levels
from cascade.errors import UsageError
from cascade.guarantees.base import Guarantee, Kind, many_questions
from cascade.guarantees.laws import Told, on_losses
from cascade.guarantees.questions import Found, Path, Questions, Scored, everywhere
from cascade.types import Certificate


class F1(Kind):
    """A graded loss, by conformal risk control."""

    name = "f1"
    speaks_of = "set"
    kept = "1 − (best F1 in the log − best F1 kept), on average"
    worst = "loss"
    needs_quality = True

    def loss(self, table: Questions, confidence: Floats | None = None) -> Floats:
        """Return the quality of the best logged answer minus that of the best answer so far."""
        del confidence
        quality = np.where(table.arrays.present, np.nan_to_num(_quality(table), nan=0.0), 0.0).max(axis=2)
        so_far = np.maximum.accumulate(quality, axis=1)
        best = np.where(table.arrays.complete, so_far[:, -1], 1.0)
        return np.asarray(best[:, None] - so_far)

    def losses(self, sample: Scored) -> StepFunctions:
        """Return the quality of the best logged answer minus that of the best answer kept."""
        table = sample.table
        return loss_levels(table.arrays, sample.levels, _quality(table), relative=True)

    def calibrate(self, sample: Scored, guarantee: Guarantee, path: Path | None) -> list[Found]:
        """Return the highest threshold whose mean loss stays within alpha."""
        del path
        losses, n = self.losses(sample), sample.table.n
        result = calibrate_risk(losses, guarantee.alpha or 0.0, delta=guarantee.delta)
        if result.certified:
            return [Found(None, everywhere(n), n, result.kappa)]
        if losses.at(-math.inf).any():
            said = "even at the lowest threshold, which keeps every finite score, the mean loss is too high"
            return [Found(None, everywhere(n), n, math.nan, needed_n=result.needed_n, refused=said)]
        return [Found(None, everywhere(n), n, -math.inf, keeps_everything=True, needed_n=result.needed_n)]

    def verify(self, certificate: Certificate, sample: Scored) -> Iterator[Told]:
        """Test the mean loss on fresh questions; where unknown qualities would decide, the check fails."""
        table = sample.table
        if table.quality is None:
            yield Told(ok=True, said="the log does not say how good answers are: not tested")
            return
        losses = self.losses(sample)
        known = table.arrays.complete & ~(table.arrays.present & np.isnan(table.quality)).any(axis=(1, 2))
        lost = losses.at(certificate.kappa) / losses.units * (not certificate.keeps_everything)
        yield on_losses(certificate, np.where(known, lost, 0.0), lost, "lack {:.4f} of the best F1 on average")

    def describe(self, certificate: Certificate) -> str:
        """Return the promise in a sentence."""
        short = f"is at most {certificate.alpha!r} lower than the best F1 of any step"
        return f"On average over {many_questions(certificate)}, the best F1 among the answers kept {short}."


def _quality(table: Questions) -> Floats:
    if table.quality is None:
        raise UsageError(
            f"f1 needs to know how good each answer is, but {table.dataset} says only which are right: f1 needs "
            "accepted answers in the column gold."
        )
    return table.quality
