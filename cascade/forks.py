"""Renew locks, threads, connections and queues in a forked child.

A fork copies the memory and the sockets of a process, but only the thread that forks. So a lock that another thread
holds stays locked in the child for ever, the child shares every connection with its parent, and an import that another
thread has begun never finishes. Objects that own such things register a function here that renews them.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from inspect import ismethod
from typing import Any

_WAIT_S = 10.0
"""The longest that a fork waits for an import: after this time the two may be waiting for each other."""
_renewals: list[Callable[[], Callable[[], None] | None]] = []
"""References to the functions that renew; a reference gives None once the object of a bound method is gone."""
_inherited: list[Any] = []
_quiet = threading.RLock()


def after_fork(renew: Callable[[], None]) -> None:
    """Call `renew` in every child that is forked from now on; a bound method only as long as its object exists.

    In the child, `renew` must not take a lock that the parent may hold, and must not close anything that the child
    shares with the parent: see `keep`.
    """
    for gone in [reference for reference in _renewals if reference() is None]:
        with suppress(ValueError):  # another thread has removed it
            _renewals.remove(gone)
    _renewals.append(weakref.WeakMethod(renew) if ismethod(renew) else lambda: renew)


def now_and_after_fork(begin: Callable[[], None]) -> None:
    """Call `begin` now, and in every child as `after_fork` does."""
    begin()
    after_fork(begin)


def keep(inherited: Any) -> None:
    """Keep an object of the parent alive in the child, unchanged.

    If the child dropped it, its destructor could write to a connection that the parent still uses.
    """
    _inherited.append(inherited)


def keep_for_ever(inherited: Any) -> None:
    """Do the same as `keep`, and prevent the destructor at exit too: one that joins native threads would hang."""
    keep(inherited)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(inherited))


@contextmanager
def no_fork(wait_s: float = -1) -> Iterator[None]:
    """Delay forks in other threads while the block runs, such as an import: a child would never finish it.

    Blocks take turns. Raises TimeoutError if others have not ended after `wait_s` seconds; -1 waits for ever.
    """
    quiet = _quiet
    if not quiet.acquire(timeout=wait_s):
        raise TimeoutError
    try:
        yield
    finally:
        quiet.release()


def _in_parent() -> None:
    with suppress(RuntimeError):  # the wait before the fork timed out
        _quiet.release()


def _in_child() -> None:
    global _quiet  # noqa: PLW0603 - the parent's thread may hold the old one
    _quiet = threading.RLock()
    for reference in _renewals:
        if (renew := reference()) is not None:
            renew()


os.register_at_fork(
    before=lambda: _quiet.acquire(timeout=_WAIT_S), after_in_parent=_in_parent, after_in_child=_in_child
)
