"""Call a function with many inputs: here, in processes on this machine, or on the machines of a Ray cluster.

The function is pure, so the results are the same wherever and however often it runs; they come in the order of the
inputs. What a worker or machine had begun when it died is done again by another. Data travels through memory.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from cascade._version import __version__
from cascade.errors import CascadeError, MissingExtraError, UsageError, WorkersLostError, quote

Input = TypeVar("Input")
Output = TypeVar("Output")
HERE = "here"
_TRIES = 3
"""After workers died this often in a row without a result, no new ones start: the task itself may kill them."""
_HEAD_S = 20.0
"""How long Ray's head node may be unreachable. After 60 s Ray ends this process, without an error to catch."""


def parallel_map(
    task: Callable[[Input], Output], inputs: Iterable[Input], on: str = HERE
) -> Generator[Output, None, None]:
    """Yield the result of each input, in order. The workers stop when the iterator is closed, as by Ctrl-C.

    Args:
        task: a pure function at the top level of a module, or a `partial` of one.
        inputs: the arguments, one per call.
        on: here; processes, one per core; ray, the cluster of RAY_ADDRESS or of this machine, or a new one on it.
            Each machine must have this version of cascade.

    Raises:
        UsageError: there is no such place.
        MissingExtraError: ray is not installed.
        WorkersLostError: workers died again and again, or the cluster is lost.

    >>> list(parallel_map(abs, [-3, 2]))
    [3, 2]
    """
    if on == HERE:
        yield from map(task, inputs)
    elif on == "processes":
        yield from _in_processes(task, list(inputs))
    elif on == "ray":
        yield from _on_ray(task, list(inputs))
    else:
        raise UsageError(f"There is no place {on!r} to run: choose here, processes or ray.")


def _in_processes(task: Callable[[Input], Output], inputs: list[Input]) -> Iterator[Output]:
    done = tries = 0
    while done < len(inputs):
        reader, writer = multiprocessing.Pipe(duplex=False)
        workers = min(os.cpu_count() or 1, len(inputs) - done)
        pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _tied, (reader,))
        try:
            for result in pool.map(task, inputs[done:]):
                yield result
                done, tries = done + 1, 0
        except BrokenProcessPool:
            tries += 1
            if tries == _TRIES:
                raise WorkersLostError(
                    f"Workers died {_TRIES} times in a row: out of memory, or called from a script without "
                    'if __name__ == "__main__".'
                ) from None
        finally:
            writer.close()
            pool.shutdown(cancel_futures=True)
            reader.close()


def _tied(lifeline: Connection) -> None:
    """Let this worker live as long as the other end of a pipe, and leave Ctrl-C to the process that holds it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def end() -> None:
        lifeline.poll(None)
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()


def _on_ray(task: Callable[[Input], Output], inputs: list[Input]) -> Iterator[Output]:
    try:
        import ray
        from ray.exceptions import RayError
    except ImportError:
        raise MissingExtraError("ray", "--on ray") from None
    starts, waiting = not ray.is_initialized(), list[Any]()
    try:
        if starts:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # or a new cluster reports its usage to Ray's makers
            ray.init(log_to_driver=False)
        call, shared = ray.remote(_called), ray.put(task)
        waiting = [call.remote(__version__, shared, argument) for argument in inputs]
        head = _Head(ray.get_runtime_context().gcs_address)
        for result in waiting:
            while not ray.wait([result], timeout=1.0)[0]:
                head.check()
            head.check()
            yield ray.get(result)
    except (RayError, ConnectionError) as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, CascadeError):
            raise cause from None
        raise WorkersLostError(f"The Ray cluster is lost, or differs from this machine: {quote(error)}") from None
    finally:
        with suppress(RayError, ConnectionError):
            for result in waiting:
                ray.cancel(result, force=True)
        if starts:
            ray.shutdown()


class _Head:
    """The head node of a Ray cluster, and whether it accepts connections."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._address = (host.strip("[]"), int(port))
        self._gone_s: float | None = None

    def check(self) -> None:
        """Raise ConnectionError if it has been unreachable for too long."""
        try:
            socket.create_connection(self._address, 1.0).close()
            self._gone_s = None
        except OSError:
            self._gone_s = self._gone_s or time.monotonic()
            if time.monotonic() - self._gone_s >= _HEAD_S:
                raise ConnectionError("its head node is gone") from None


def _called(version: str, task: Callable[[Any], Any], argument: Any) -> Any:
    if version != __version__:
        raise UsageError(f"A machine of the cluster has cascade {__version__}, and this one has {version}.")
    return task(argument)
