"""`cascade serve --workers N`: a parent, and N processes that listen at one address.

Each worker is a new process: it shares no thread and no connection with another. A worker that dies is started again.
Each writes its counts to a file, so that any of them can answer `/metrics` for all.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from cascade.config import CascadeConfig
from cascade.errors import CascadeError, StoreError, logger
from cascade.server import lifecycle
from cascade.server.lifecycle import Configs
from cascade.server.metrics import PARENT, WorkerCounts, family, of_reloads

_PAUSE_S, _LONGEST_S = 0.5, 60.0
"""The shortest and the longest pause before a worker is started again; it doubles each time a worker dies early."""
_UP, _RELOADED, _REFUSED = "up", "reloaded", "refused"
_SPAWN = multiprocessing.get_context("spawn")


@dataclass
class _WorkerProcess:
    """A worker, as its parent sees it."""

    process: Any
    pipe: Connection
    word: str = ""
    error: CascadeError | None = None
    settled: threading.Event = field(default_factory=threading.Event)
    """Set when the worker is up, has tried a reload that it was told to make, or has ended."""

    def wait(self, up: Callable[[], None]) -> None:
        """Read the worker's messages until it has ended; `up` is called once it serves."""
        with suppress(EOFError, OSError):
            while isinstance(word := self.pipe.recv(), str):
                self.word = word
                if word == _UP:
                    up()
                self.settled.set()
            self.error = word
        self.process.join()  # a worker ends itself when the pipe is closed; a reload may be writing to the end here
        self.settled.set()


class Supervisor:
    """The parent of the workers; each calls `begins` first. Raises as `lifecycle.together` does."""

    def __init__(self, configs: Configs, again: Callable[[], Configs], begins: Callable[[], None]) -> None:
        self._serving, self._again, self._begins = lifecycle.together(configs), again, begins
        self._missing = self._serving[0].server.workers
        self._stops, self._lock, self._settling = threading.Event(), threading.Lock(), threading.Lock()
        self._workers: dict[str, _WorkerProcess] = {}
        self._restarts, self._reloads = 0, Counter(done=0, refused=0)

    def serve(self, listening: Callable[[int], None]) -> None:
        """Serve as `lifecycle.serve` does, in a process that ends after it; raise its errors, its own or a worker's."""
        lifecycle.refuse_missing()
        settings = self._serving[0].server
        with lifecycle.bound(settings) as free:
            port = int(free.getsockname()[1])
        self._bind = partial(lifecycle.bound, settings.model_copy(update={"port": port}), shares=True)
        signals, self._wakes = os.pipe()
        os.set_blocking(self._wakes, False)
        signal.set_wakeup_fd(self._wakes)  # a handler runs in this thread alone, and the kernel may wake another
        for number in [signal.SIGINT, signal.SIGTERM, *lifecycle.hang_ups()]:
            signal.signal(number, lambda *_: None)
        workers, terminal = self._missing, os.isatty(0)
        with tempfile.TemporaryDirectory(prefix="cascade-workers-") as folder, ThreadPoolExecutor(workers + 1) as pool:
            self._folder, self._counts = Path(folder), WorkerCounts(Path(folder), PARENT)
            self._write()
            futures = [pool.submit(self._supervise, str(place), partial(listening, port)) for place in range(workers)]
            while os.read(signals, 1)[0] == signal.SIGHUP and (not terminal or os.isatty(0)):
                pool.submit(self._reload)
            self._stops.set()
            for worker in [*self._workers.values()]:
                worker.process.terminate()
        if errors := [error for task in futures if (error := task.result()) is not None]:
            raise errors[0]

    def _supervise(self, place: str, listening: Callable[[], None]) -> CascadeError | None:
        """Keep a worker running in a place until the server stops; return the error if it did not start or end well."""
        pause_s = _PAUSE_S
        while not self._stops.is_set():
            began_s, worker = time.monotonic(), self._started(place)
            worker.wait(partial(self._is_up, listening))
            ended = f"A worker ended with code {worker.process.exitcode}."
            # SIGTERM: process managers may signal a whole group at once
            error = worker.error or (None if worker.process.exitcode in {0, -signal.SIGTERM} else StoreError(ended))
            if self._stops.is_set():
                return error if worker.word else None
            if self._missing > 0:  # the first ones are still starting
                os.write(self._wakes, bytes([signal.SIGTERM]))
                return error
            self._restarts += 1
            self._write()
            pause_s = _PAUSE_S if time.monotonic() - began_s > _LONGEST_S else pause_s
            logger.error("worker %s is started again in %g s: %s", place, pause_s, error or ended)
            self._stops.wait(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_S)
        return None

    def _started(self, place: str) -> _WorkerProcess:
        (ours, theirs), counts = _SPAWN.Pipe(), WorkerCounts(self._folder, place)
        with self._settling, lifecycle.hang_ups_wait():  # a reload under way decides what the new worker serves
            process = _SPAWN.Process(target=work, args=(theirs, counts, self._serving, self._begins, self._bind))
            process.start()
            worker = self._workers[place] = _WorkerProcess(process, ours)
        theirs.close()
        if self._stops.is_set():
            process.terminate()
        return worker

    def _is_up(self, listening: Callable[[], None]) -> None:
        with self._lock:
            self._missing -= 1
            if self._missing == 0:
                listening()

    def _reload(self) -> None:
        """Send the configuration, read again, to each worker in turn, if it and the first one of them can serve it."""
        earlier = self._serving
        try:
            configs = self._again()
            renewed = lifecycle.renewed(earlier, configs)
        except Exception as error:  # noqa: BLE001 - whatever it is, the workers go on
            lifecycle.refused(error, self._reloads)
            self._write()
            return
        with self._settling:
            self._serving, workers = renewed, [*self._workers.values()]
            for at, worker in enumerate(workers):
                worker.settled.wait()
                worker.settled.clear()
                worker.word = worker.word and _UP
                with suppress(OSError):  # it has ended
                    worker.pipe.send(configs)
                    worker.settled.wait()
                if worker.word == _REFUSED and any(other.word == _RELOADED for other in workers[:at]):
                    worker.process.terminate()  # it is started again, and serves what the others do
                elif worker.word == _REFUSED:
                    self._serving = earlier
                    break

    def _write(self) -> None:
        with self._lock:
            restarts = family("worker_restarts_total", "Workers that died and were started again.", self._restarts)
            self._counts.write(restarts + of_reloads(self._reloads))


def work(
    pipe: Connection,
    counts: WorkerCounts,
    serving: Sequence[CascadeConfig],
    begins: Callable[[], None],
    bind: Callable[[], socket.socket],
) -> None:
    """Serve in this process until its parent stops it or is gone. It reloads what the parent sends alone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the parent ends them
    begins()
    sent, error = list[Configs](), None
    threading.Thread(target=_follow, args=(pipe, sent), daemon=True).start()
    try:
        up, reloaded = (lambda _: pipe.send(_UP)), (lambda done: pipe.send(_RELOADED if done else _REFUSED))
        lifecycle.run(serving, bind, lambda: sent.pop() if sent else {}, up, reloaded, counts)
    except CascadeError as failure:
        error = failure
    with suppress(OSError):
        pipe.send(error)
    raise SystemExit(0 if error is None else error.exit_code)


def _follow(parent: Connection, sent: list[Configs]) -> None:
    """Reload what the parent sends, and end once it is gone."""
    with suppress(EOFError, OSError):
        while True:
            sent.append(parent.recv())
            os.kill(os.getpid(), signal.SIGHUP)
    os.kill(os.getpid(), signal.SIGTERM)
