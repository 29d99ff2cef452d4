"""Turn scores and a threshold into decisions, and calibration data into a threshold with a guarantee.

This package works on numbers only and calls no language models. You can use it with a cascade of your own:

>>> from cascade.conformal import calibrate
>>> calibrate([0.3, 0.9, 0.4, 0.7, 0.6, 0.8, 0.2, 0.5, 0.1], alpha=0.1).kappa  # of nine questions' critical values
0.1

Names are loaded when they are first used, so that a program that only serves needs no numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cascade._names import loaded_on_use

if TYPE_CHECKING:
    from cascade.conformal.arrays import Levels, ScoreArrays, StepArrays, levels
    from cascade.conformal.audits import AuditPlan
    from cascade.conformal.ltt import PathResult, learn_then_test
    from cascade.conformal.monitor import Monitor
    from cascade.conformal.served import PathPoint, served_losses
    from cascade.conformal.split import (
        Calibration,
        calibrate,
        calibrate_segments,
        covered_at,
        critical_kappa,
        critical_values,
        needed_n,
    )

_HOMES = {
    "arrays": "Levels ScoreArrays StepArrays levels",
    "audits": "AuditPlan",
    "ltt": "PathResult learn_then_test",
    "monitor": "Monitor",
    "served": "PathPoint served_losses",
    "split": "Calibration calibrate calibrate_segments covered_at critical_kappa critical_values needed_n",
}

__all__ = [
    "AuditPlan",
    "Calibration",
    "Levels",
    "Monitor",
    "PathPoint",
    "PathResult",
    "ScoreArrays",
    "StepArrays",
    "calibrate",
    "calibrate_segments",
    "covered_at",
    "critical_kappa",
    "critical_values",
    "learn_then_test",
    "levels",
    "needed_n",
    "served_losses",
]

__getattr__ = loaded_on_use(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
