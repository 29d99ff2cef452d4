"""Guarantees: one object for each kind of promise, the request for a promise, and the certificates that result.

To write a kind of your own, derive from `KeptAnswers`, `ServedAnswer` or `Kind` (`docs/write-a-promise.md`).

Names are loaded when they are first used: most configurations promise nothing and need no numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cascade._names import loaded_on_use

if TYPE_CHECKING:
    from cascade.guarantees.base import Audit, Guarantee, Kind, get
    from cascade.guarantees.certificate import statement
    from cascade.guarantees.kept_answers import KeptAnswers
    from cascade.guarantees.questions import Questions, Scored
    from cascade.guarantees.served_answer import ServedAnswer

_HOMES = {
    "base": "Audit Guarantee Kind get",
    "certificate": "statement",
    "kept_answers": "KeptAnswers",
    "questions": "Questions Scored",
    "served_answer": "ServedAnswer",
}

__all__ = [
    "Audit",
    "Guarantee",
    "KeptAnswers",
    "Kind",
    "Questions",
    "Scored",
    "ServedAnswer",
    "get",
    "statement",
]

__getattr__ = loaded_on_use(__name__, _HOMES)
