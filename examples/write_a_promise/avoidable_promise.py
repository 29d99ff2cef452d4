"""A promise: a wrong answer is lost if some call gives a right one."""

import numpy as np

from cascade.conformal.path import hopeless
from cascade.conformal.promise import Kind
from cascade.table import Log


class Avoidable(Kind):
    """A request is lost if the answer served is wrong though a call gives a right one, or may give one."""

    name = "avoidable"
    kept_when = "the answer served is right, or no call would have given a right one"
    lost_when = "the answer served is wrong, though a call gives a right one"

    def loss(self, log: Log) -> np.ndarray:
        """Return the loss if a node's answer is served, (n, T)."""
        return np.where((log.right == 1) | hopeless(log)[:, None], 0.0, 1.0)
