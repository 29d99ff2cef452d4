"""The facts about one audited answer from which a guarantee decides whether the question was missed."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

Judge: TypeAlias = Callable[[str], bool | None]
"""Says whether a text is right; None where that cannot be told."""


class Audit(NamedTuple):
    """The facts about an audited answer that the answer itself does not hold.

    Attributes:
        right: the truth.
        complete: whether all steps were run that the strategy has.
        reference_right: whether the reference alone would have been right; None if unknown.
        last_step: the number of the step that asks the reference, as a ladder's last does; None where no step does.
    """

    right: Judge
    complete: bool
    reference_right: bool | None = None
    last_step: int | None = None
