"""One thread for sums whose order is a library's choice: the same data then give the same bytes on 1 core and on 16.

A BLAS or OpenMP library cuts a sum into as many parts as it has threads, and the last bits follow.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import ThreadpoolController


@contextmanager
def one_thread() -> Iterator[None]:
    """Hold BLAS and OpenMP to one thread meanwhile, in the whole process.

    Libraries that are loaded meanwhile are not held: import them before.
    """
    with ThreadpoolController().limit(limits=1):
        yield
