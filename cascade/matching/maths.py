"""Formulas: whether two of them are mathematically the same, by math-verify, where it can do no harm."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.util import find_spec
from types import TracebackType
from typing import Self

from cascade.errors import MissingExtraError
from cascade.matching.base import RIGHT, UNKNOWN, Verdict, accepted
from cascade.matching.maths_pool import PACKAGE, Pool
from cascade.matching.maths_text import as_latex
from cascade.matching.reading import same_text

DEFAULT_TIMEOUT_S = 10.0
"""Ordinary formulas take 1 to 300 ms; the margin keeps a loaded machine from changing a result."""


class MathMatcher:
    """Equality of formulas, sets, intervals, equations and matrices, in LaTeX or plain notation.

    The comparison runs in worker processes that are killed after `timeout_s`, so it may be called from any thread; the
    result is the same from each. Where the time or the memory did not suffice, the truth is unknown. Floats are equal
    if they agree to 6 decimals, as math-verify has it.

    Args:
        timeout_s: wall-clock seconds that one comparison may take.
        workers: how many processes at most; by default one a core, at most 4.

    Raises:
        MissingExtraError: math-verify is not installed.

    Reference: math-verify 0.9, https://github.com/huggingface/math-verify.
    """

    def __init__(self, timeout_s: float = DEFAULT_TIMEOUT_S, workers: int | None = None) -> None:
        if find_spec("math_verify") is None:
            raise MissingExtraError(PACKAGE, "The matcher 'math'")
        pool = Pool(workers or min(4, os.cpu_count() or 1), timeout_s)
        self._pool, self._compare = pool, _remembering(pool)
        weakref.finalize(self, pool.close)

    def matches(self, answer: str, gold: Sequence[str]) -> Verdict:
        """Return whether the answer's formula equals an accepted one's."""
        golds = accepted(gold)
        if any(same_text(answer, one, fold=False) for one in golds):
            return RIGHT
        wanted = tuple([found for found in map(as_latex, golds) if found is not None])
        return self._compare(as_latex(answer) or "", wanted) if wanted else UNKNOWN

    def close(self) -> None:
        """End the worker processes. The matcher may still be used; it starts new ones."""
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _remembering(pool: Pool) -> Callable[[str, tuple[str, ...]], Verdict]:
    """Return the comparison, which keeps its last results: the steps of a walk repeat the same few answers."""

    @lru_cache(maxsize=4_096)
    def compare(answer: str, gold: tuple[str, ...]) -> Verdict:
        reply = pool.ask({"gold": list(gold), "answer": answer})
        if reply is None or not reply.get("readable"):
            return UNKNOWN
        return Verdict(correct=reply["correct"] is True)

    return compare
