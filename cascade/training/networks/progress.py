"""How far training is: what each step shows, smoothed over the last ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:  # that module needs torch, and who shows progress does not
    from cascade.training.networks.problem import Row, State

_RECENT = 100
"""Steps whose means are told: a batch of 10 or 100 questions alone says little."""


class Progress(NamedTuple):
    """How far a run is.

    Attributes:
        method: what is trained.
        step, steps: the last step done, and how many there will be.
        coverage, cost: means over the last 100 steps; the share of questions covered, and mean steps a question.
        kappa: the threshold.
    """

    method: str
    step: int
    steps: int
    coverage: float
    cost: float
    kappa: float


Tell: TypeAlias = Callable[[Progress], None]
"""Is told after each step."""


def silent(_: Progress) -> None:
    """Say nothing."""


class Following:
    """Follows a run, step by step, and tells how far it is."""

    def __init__(self, method: str, steps: int, tell: Tell) -> None:
        self._method, self._steps, self._tell = method, steps, tell
        self._recent: deque[tuple[float, float]] = deque(maxlen=_RECENT)

    def __call__(self, _: State, row: Row) -> None:
        """Take in a step."""
        self._recent.append((row.coverage, row.cost))
        coverage, cost = (sum(values) / len(self._recent) for values in zip(*self._recent, strict=True))
        self._tell(Progress(self._method, row.step, self._steps, coverage, cost, row.kappa))
