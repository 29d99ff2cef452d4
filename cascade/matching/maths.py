"""Compare formulas mathematically, by math-verify, in isolated processes."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from cascade.errors import MissingExtraError, UsageError, quote
from cascade.forks import after_fork, keep
from cascade.matching.base import accepted
from cascade.matching.reading import clean, same_text, stated
from cascade.matching.words import only_number

DEFAULT_TIMEOUT_S = 10.0
"""Ordinary formulas take 1 to 300 ms; the margin keeps a loaded machine from changing a result."""


class MathMatcher:
    """Equality of formulas, sets, intervals, equations and matrices, in LaTeX or plain notation.

    The comparison runs in worker processes that are killed after `timeout_s`, so it may be called from any thread; the
    result is the same from each. If the time or the memory is not enough, the truth is unknown. Floats are equal if
    they agree to 6 decimals, as in math-verify.

    Args:
        timeout_s: wall-clock seconds that one comparison may take.
        workers: the most processes; by default one per core, at most 4.

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

    def matches(self, answer: str, gold: Sequence[str]) -> bool | None:
        """Return whether the answer's formula equals an accepted one's."""
        golds = accepted(gold)
        if any(same_text(answer, one, fold=False) for one in golds):
            return True
        wanted = tuple([found for found in map(as_latex, golds) if found is not None])
        return self._compare(as_latex(answer) or "", wanted) if wanted else None

    def close(self) -> None:
        """End the worker processes. The matcher may still be used; it starts new ones."""
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _remembering(pool: Pool) -> Callable[[str, tuple[str, ...]], bool | None]:
    """Return the comparison with a cache of its last results, since the steps of a walk repeat a few answers."""

    @lru_cache(maxsize=4_096)
    def compare(answer: str, gold: tuple[str, ...]) -> bool | None:
        reply = pool.ask({"gold": list(gold), "answer": answer})
        if reply is None or not reply.get("readable"):
            return None
        return reply["correct"] is True

    return compare


# --- plain notation such as 2*sqrt(3) or 3 1/2 becomes LaTeX, as the parser needs it ---

MAX_FORMULA_CHARS = 2_000
"""A longer one is not read: the parser takes more than 2 s for 5,000 brackets (measured, math-verify 0.9)."""
_FUNCTIONS = (
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln exp max min gcd lcm det "
    "pi theta alpha beta gamma delta epsilon lambda mu sigma phi omega rho tau infty"
)
_DELIMITED = re.compile(r"\$[^$]+\$|\\\(|\\\[")
_KNOWN = re.compile(rf"(?<![\\A-Za-z])({'|'.join(sorted(_FUNCTIONS.split(), key=len, reverse=True))})(?![A-Za-z])")
_INFINITY = re.compile(r"(?<![\\A-Za-z])(?:infinity|inf|oo)(?![A-Za-z])|∞")
_ROOT = re.compile(r"√ ?(?:(\d{1,50}|[A-Za-z])|\(([^()]{1,200})\))")
_SQRT = re.compile(r"(?<![\\A-Za-z])sqrt ?\(([^()]{1,200})\)")
_MIXED = re.compile(r"(?<![\d./^])(\d{1,50}) (\d{1,50})/(\d{1,50})(?![\d/])")
_SCIENTIFIC = re.compile(r"(?<![\w.])(\d{1,50}(?:\.\d{1,50})?)[eE]([-+]?\d{1,6})\b")
_WORD = re.compile(r"(?<![\\A-Za-z{])[A-Za-z]{4,}(?![A-Za-z{])")
_SHORT_WORD = re.compile(r"(?<![\\A-Za-z{])[A-Za-z]{2,}(?![A-Za-z{])")


def as_latex(text: str) -> str | None:
    r"""Return the formula that an answer states, as LaTeX between dollars; None if it has none.

    A boxed part, or the part after "answer is", counts. Formulas between marks are not changed. In a sentence without a
    formula the only number counts.

    >>> as_latex("The answer is 2*sqrt(3)."), as_latex(r"so \boxed{3 1/2}"), as_latex("It has 12 sides in all")
    ('$2*\\sqrt{3}$', '$3\\frac{1}{2}$', '$12$')
    >>> as_latex("It is $x=5$."), as_latex("even"), as_latex("")
    ('It is $x=5$', '$\\text{even}$', None)
    """
    plain = clean(text)
    if plain is None:
        return None
    part = stated(plain).strip("* ").rstrip(".,;")
    if len(part) > MAX_FORMULA_CHARS:
        return None
    if _DELIMITED.search(part):
        return part
    bare = part.replace("\\$", "").replace("$", "").strip()
    if not bare:
        return None
    written = _as_commands(bare)
    if _is_prose(written):
        number = only_number(bare)
        return None if number is None else f"${number:f}$"
    return f"${_WORD.sub(_as_text, written)}$"


def _is_prose(written: str) -> bool:
    """Whether a text is a sentence: two words of four letters, or three of two, that are no commands."""
    return len(_WORD.findall(written)) >= 2 or len(_SHORT_WORD.findall(written)) >= 3


def _as_text(word: re.Match[str]) -> str:
    """Return a word as LaTeX text: as letters it would be a product, and equal to its anagrams."""
    return f"\\text{{{word[0]}}}"


def _as_commands(text: str) -> str:
    text = _SCIENTIFIC.sub(r"\1 \\times 10^{\2}", text.replace("**", "^"))
    text = _ROOT.sub(lambda found: f"\\sqrt{{{found[1] or found[2]}}}", text)
    text = _SQRT.sub(r"\\sqrt{\1}", text)
    text = _MIXED.sub(r"\1\\frac{\2}{\3}", text)
    return _KNOWN.sub(r"\\\1", _INFINITY.sub(r"\\infty ", text))


# --- workers: one request at a time each, killed when it takes too long ---
#
# sympy has no reliable time limit: math-verify's uses SIGALRM, so it works only in the main thread, and gives other
# results under threads. Killing a process from outside works from any thread.

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
        # The child's alarm is a second safeguard, for when the parent cannot kill it.
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
        """Return the reply to a request."""
        timer = threading.Timer(self._timeout_s if timeout_s is None else timeout_s, self._expire)
        timer.daemon = True
        timer.start()
        try:
            line = self._exchange(json.dumps(request))
        except BaseException:  # interrupted between request and reply, the next reply would belong to this request
            self.kill()
            raise
        finally:
            timer.cancel()
            timer.join()
        if self._expired:  # it expired as the reply came: the reply is valid, the worker is not
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
            with suppress(BrokenPipeError):  # a worker that cannot start says why and may end before it is asked
                requests.write(line + "\n")
                requests.flush()
            reply = replies.readline()
        except (OSError, ValueError):  # the pipe was closed by `kill`
            raise WorkerLostError from None
        if not reply.endswith("\n"):
            raise WorkerLostError
        return reply

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End the process and release its resources."""
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
        keep(self._idle)  # the parent's workers must be neither used nor ended
        self._begin()

    def _begin(self) -> None:
        self._slots = threading.BoundedSemaphore(self._size)
        self._idle: list[Worker] = []

    def ask(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """Return a worker's reply, waiting for a free worker; None if the worker died of the request."""
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
