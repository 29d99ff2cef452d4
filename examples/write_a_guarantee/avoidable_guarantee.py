"""A guarantee: a wrong answer counts if some step has a right one."""

from __future__ import annotations

import numpy as np

from cascade.conformal.promise import Kind
from cascade.guarantees import Audit, Questions, ServedAnswer
from cascade.table import Log
from cascade.types import Answer


class AvoidableError(Kind):
    """What `fit` certifies: a wrong answer is lost if some node has a right one, or may have one."""

    name = "avoidable"
    kept = "the answer served is right, or no call would have given a right one"
    lost = "the answer served is wrong, though a call gives a right one"

    def loss(self, log: Log) -> np.ndarray:
        """Return the loss if a node's answer is served, (n, T); 1 where it is unknown."""
        hopeless = log.complete & ~(log.right == 1).any(axis=1)
        right = (log.answer >= 0) & (log.right == 1)
        return np.where(right | hopeless[:, None], 0.0, 1.0)


class Avoidable(ServedAnswer):
    """What is proved and served: a wrong answer counts if some step has a right one."""

    name = "avoidable"
    event = "the answer served is right, or no step would have given a right one"
    kept = "the answer served is right, or no step is"

    def against(self, table: Questions) -> np.ndarray:
        """Return on which logged questions a wrong answer counts: True where that is not known."""
        return table.arrays.solvable | ~table.arrays.complete

    def reads_all_steps(self, audit: Audit) -> bool:  # noqa: ARG002 - said for every audit
        """Return whether an audit that lacks a step says nothing."""
        return True

    def audited(self, answer: Answer, audit: Audit) -> bool | None:
        """Return whether an audited question was missed."""
        texts = {one.text for step in answer.steps for one in step.candidates}
        avoidable = not audit.complete or any(audit.right(text) is not False for text in texts)
        return avoidable and super().audited(answer, audit)
