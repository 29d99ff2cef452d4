"""What must be made anew in a forked child: locks, threads, connections and queues. One mechanism for all of them.

A fork copies the memory and the sockets of a process, but only the thread that forks. A lock that another thread holds
stays locked in the child for ever, a connection is then shared with the parent, and an import that another thread has
begun is never finished. Objects that own such things register here how they begin anew.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import ismethod
from typing import Any

_WAIT_S = 10.0
"""How long a fork waits at most for an import; longer, and the two wait for each other."""
_PRUNED_EVERY = 256
_renewals: list[tuple[weakref.ref[Any] | None, Callable[..., None]]] = []
"""The owner and the function of each method, or a function alone."""
_inherited: list[Any] = []
_quiet = threading.RLock()


def after_fork(renew: Callable[[], None]) -> None:
    """Call `renew` in every child that is forked from now on. A bound method is called while its object lives.

    In the child `renew` must take no lock that the parent may hold, and close nothing that it shares with the parent:
    see `keep`.
    """
    if ismethod(renew):
        owner, function = weakref.ref(renew.__self__), renew.__func__
        _renewals.append((owner, function))
    else:
        _renewals.append((None, renew))
    if len(_renewals) % _PRUNED_EVERY == 0:
        _renewals[:] = [one for one in _renewals if one[0] is None or one[0]() is not None]


def keep(inherited: Any) -> None:
    """Hold an object of the parent in the child as it is.

    If the child dropped it, its destructor could write to a connection that the parent still uses.
    """
    _inherited.append(inherited)


def keep_for_ever(inherited: Any) -> None:
    """Do as `keep`, and let no destructor run at the end either: one that joins native threads would hang."""
    keep(inherited)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(inherited))


@contextmanager
def no_fork() -> Iterator[None]:
    """Let forks in other threads wait: for an import in a thread that the child will not have."""
    with _quiet:
        yield


def _before() -> None:
    _quiet.acquire(timeout=_WAIT_S)


def _in_parent() -> None:
    try:
        _quiet.release()
    except RuntimeError:  # the wait before the fork was in vain
        return


def _in_child() -> None:
    global _quiet  # noqa: PLW0603 - the parent's thread may hold the old one
    _quiet = threading.RLock()
    for reference, renew in _renewals:
        owner = None if reference is None else reference()
        if reference is None:
            renew()
        elif owner is not None:
            renew(owner)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
