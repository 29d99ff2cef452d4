"""One thread for sums whose order is a library's choice: the same data then give the same bytes on 1 core and on 16.

A BLAS or OpenMP library cuts a sum into as many parts as it has threads, and the last bits follow. `threadpoolctl`
comes with scikit-learn; without it the environment's OMP_NUM_THREADS and OPENBLAS_NUM_THREADS decide.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def one_thread() -> Iterator[bool]:
    """Hold BLAS and OpenMP to one thread meanwhile, in the whole process; yield whether that could be done.

    Libraries that are loaded meanwhile are not held: import them before.
    """
    controller = _controller()
    if controller is None:
        yield False
        return
    with controller.limit(limits=1):
        yield True


def _controller() -> Any:
    try:
        from threadpoolctl import ThreadpoolController
    except ModuleNotFoundError:
        return None
    return ThreadpoolController()
