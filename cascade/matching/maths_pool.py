"""Worker processes for formulas: one request at a time each, killed when it takes too long.

sympy has no time limit that holds: math-verify's own works by SIGALRM, so in the main thread only, and gives other
results under threads. A process that is killed from outside holds wherever the caller runs.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from cascade.errors import MissingExtraError, UsageError, quote
from cascade.resilience.forks import after_fork, keep

PACKAGE = "math-verify"
MEMORY_BYTES = 1024**3
"""Of address space; math-verify with sympy takes 0.07 GB of it."""
START_LIMIT_S = 120.0
"""sympy is imported in 1 s on an idle core; a loaded machine may take long."""
_SCRIPT = Path(__file__).with_name("maths_worker.py")
_ENVIRONMENT = {"PYTHONHASHSEED": "0"}
"""All that the worker inherits: it reads foreign text and has no use for keys. Sets are ordered alike in each."""


class WorkerLostError(Exception):
    """The worker ended before it replied: it was killed for its time, or fell over its memory or its stack."""


class Worker:
    """One process. Not for several threads at once."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._expired = False
        if not sys.executable:
            raise UsageError("The matcher 'math' starts a Python process, but this program does not know its Python.")
        try:
            self._process = _start()
        except OSError as error:
            raise UsageError(f"The worker of the matcher 'math' cannot be started: {error.strerror}.") from error
        # The child's alarm is the second line: it strikes only where the parent could not.
        hello = {"path": [entry or str(Path.cwd()) for entry in sys.path], "memory_bytes": MEMORY_BYTES}
        self._check(self.ask(hello | {"limit_s": math.ceil(timeout_s) + 5}, START_LIMIT_S))

    def _check(self, reply: dict[str, Any]) -> None:
        if reply.get("ready"):
            return
        self.kill()
        if "missing" in reply:
            raise MissingExtraError(PACKAGE, f"The matcher 'math' ({quote(str(reply['missing']))})")
        raise UsageError("The worker of the matcher 'math' did not start.")

    def ask(self, request: dict[str, Any], timeout_s: float | None = None) -> dict[str, Any]:
        """Return the reply to a request.

        Raises:
            WorkerLostError: the worker was killed after `timeout_s`, or died.
        """
        timer = threading.Timer(self._timeout_s if timeout_s is None else timeout_s, self._expire)
        timer.daemon = True
        timer.start()
        try:
            line = self._exchange(json.dumps(request))
        except BaseException:  # interrupted between question and reply, the next reply would be the last one's
            self.kill()
            raise
        finally:
            timer.cancel()
            timer.join()
        if self._expired:  # it struck as the reply came: the reply holds, the worker does not
            self.kill()
        reply: dict[str, Any] = json.loads(line)
        return reply

    def _expire(self) -> None:
        self._expired = True
        self._process.kill()

    def _exchange(self, line: str) -> str:
        requests, replies = self._process.stdin, self._process.stdout
        if requests is None or replies is None:
            raise AssertionError("the worker has no pipes")
        try:
            requests.write(line + "\n")
            requests.flush()
            reply = replies.readline()
        except (OSError, ValueError):  # the pipe is broken, or was closed by `kill`
            raise WorkerLostError from None
        if not reply.endswith("\n"):
            raise WorkerLostError
        return reply

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End the process and give back what it held."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    continue  # it holds what a dead process never read


def _start() -> subprocess.Popen[str]:
    return subprocess.Popen(  # noqa: S603 - a fixed command
        [sys.executable, "-s", "-P", str(_SCRIPT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=_ENVIRONMENT,
        encoding="ascii",
        start_new_session=True,  # Ctrl-C is for the program, which then ends its workers
    )


class Pool:
    """At most `size` workers, started when they are needed. Safe for threads; a forked child starts its own."""

    def __init__(self, size: int, timeout_s: float) -> None:
        self._size = size
        self._timeout_s = timeout_s
        self._begin()
        after_fork(self._in_child)

    def _in_child(self) -> None:
        keep(self._idle)  # the parent's workers: neither to be used nor to be ended
        self._begin()

    def _begin(self) -> None:
        self._slots = threading.BoundedSemaphore(self._size)
        self._idle: list[Worker] = []

    def ask(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """Return a worker's reply, waiting for a free one; None if the request cost it its life."""
        with self._slots:
            worker = self._take()
            try:
                reply = worker.ask(request)
            except WorkerLostError:
                return None
            self._idle.append(worker)
            return reply

    def _take(self) -> Worker:
        while self._idle:
            worker = self._idle.pop()  # list.pop and append are atomic
            if worker.alive:
                return worker
            worker.kill()
        try:
            return Worker(self._timeout_s)
        except WorkerLostError:
            raise UsageError("The worker of the matcher 'math' ended before it was ready.") from None

    def close(self) -> None:
        """End the idle workers; a worker in use ends with the program."""
        while self._idle:
            self._idle.pop().kill()
