"""Estimators fitted to plain arrays: ridge, logistic regression, calibration, trees. They know nothing of logs.

A BLAS or OpenMP library cuts a sum into as many parts as it has threads, and this changes the last bits. On one thread
(`one_thread`) the same data give the same bytes on 1 core and on 16.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import ThreadpoolController


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit BLAS and OpenMP to one thread within the block, in the whole process.

    The limit does not reach libraries that are loaded within the block: import them before.
    """
    with ThreadpoolController().limit(limits=1):
        yield
