"""How long a test waits for what must come: a guard against hanging alone, which no slow or busy machine reaches."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PATIENCE_S = 240.0


def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, "it did not come to hold"
        time.sleep(0.002)


def at_once(*works: Callable[[], object]) -> None:
    """Do all of this at once, each in a thread of its own, and wait for the last."""
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def in_child(work: Callable[[], Any]) -> Any:
    """Run something in a forked process; return its result, or raise its error."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def run() -> None:
        try:
            theirs.send(work())
        except BaseException as error:
            theirs.send(error)

    process = context.Process(target=run)
    process.start()
    process.join(PATIENCE_S)
    assert process.exitcode == 0
    result = ours.recv()
    if isinstance(result, BaseException):
        raise result
    return result


def lives(pid: int) -> bool:
    """Return whether a process runs: there is one of that number, and it has not ended."""
    try:
        os.kill(pid, 0)
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
