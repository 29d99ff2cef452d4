"""Compare formulas mathematically, with math-verify in a separate process."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import validate_call

from cascade.errors import MissingExtraError, UsageError, quote
from cascade.forks import after_fork, keep
from cascade.matching.number import only_number
from cascade.matching.registry import Matcher, TimeLimit, accepted
from cascade.matching.text import clean, same_text, stated

PACKAGE = "math-verify"


class MathMatcher(Matcher):
    """Equality of formulas, sets, intervals, equations and matrices, in LaTeX or plain notation.

    The comparison runs in a worker process that is ended after `timeout_s`, so it can be called from any thread, with
    the same result. If the time or the memory runs out, the truth is unknown. Floats are equal if they agree to 6
    decimals, as in math-verify.

    Args:
        timeout_s: wall-clock seconds that one comparison may take. Ordinary formulas take 1 to 300 ms; the margin keeps
            a loaded machine from changing a result.

    Raises:
        MissingExtraError: math-verify is not installed.

    Reference: math-verify 0.9, https://github.com/huggingface/math-verify.
    """

    @validate_call
    def __init__(self, timeout_s: TimeLimit = 10.0) -> None:
        if find_spec("math_verify") is None:
            raise MissingExtraError(PACKAGE, "The matcher 'math'")
        self._worker = FormulaWorker(timeout_s)
        self._compare = lru_cache(maxsize=4_096)(self._worker.ask)  # the steps of a walk repeat a few answers
        weakref.finalize(self, self._worker.close)

    def matches(self, answer: str, gold: Sequence[str]) -> bool | None:
        """Return whether the answer's formula equals an accepted one's."""
        golds = accepted(gold)
        if any(same_text(answer, text) for text in golds):
            return True
        formulas = tuple([formula for text in golds if (formula := as_latex(text)) is not None])
        return self._compare(as_latex(answer) or "", formulas) if formulas else None


# --- plain notation such as 2*sqrt(3) or 3 1/2 becomes LaTeX, as the parser needs it ---

MAX_FORMULA_CHARS = 2_000
"""A longer formula is not read: the parser takes more than 2 s for 5,000 brackets (measured, math-verify 0.9)."""
_COMMANDS = (
    "arcsin|arccos|arctan|epsilon|lambda|alpha|gamma|delta|theta|sigma|omega|infty|sinh|cosh|tanh|beta|sin|cos|tan|cot|"
    "sec|csc|log|exp|max|min|gcd|lcm|det|phi|rho|tau|ln|pi|mu"
)
_NOTATION = [
    (re.compile(pattern), latex)
    for pattern, latex in (
        (r"√ ?(\d{1,50}|[A-Za-z])", r"\\sqrt{\1}"),
        (r"(?:√ ?|(?<![\\A-Za-z])sqrt ?)\(([^()]{1,200})\)", r"\\sqrt{\1}"),
        (r"(?<![\d./^])(\d{1,50}) (\d{1,50})/(\d{1,50})(?![\d/])", r"\1\\frac{\2}{\3}"),
        (r"(?<![\\A-Za-z])(?:infinity|inf|oo)(?![A-Za-z])|∞", r"\\infty "),
        (rf"(?<![\\A-Za-z])({_COMMANDS})(?![A-Za-z])", r"\\\1"),
    )
]
_DELIMITED = re.compile(r"\$[^$]+\$|\\\(|\\\[")
_WORD = re.compile(r"(?<![\\A-Za-z{])[A-Za-z]{4,}(?![A-Za-z{])")
_SHORT_WORD = re.compile(r"(?<![\\A-Za-z{])[A-Za-z]{2,}(?![A-Za-z{])")


def as_latex(text: str) -> str | None:
    r"""Return the formula that an answer states, as LaTeX between dollars; None if it has none.

    A boxed part, or the part after "answer is", counts. Formulas between marks are not changed. In a sentence without a
    formula the only number counts. A word is written as text: a product of letters would equal its anagrams.

    >>> as_latex("The answer is 2*sqrt(3)."), as_latex(r"so \boxed{3 1/2}"), as_latex("It has 12 sides in all")
    ('$2*\\sqrt{3}$', '$3\\frac{1}{2}$', '$12$')
    >>> as_latex("It is $x=5$."), as_latex("even"), as_latex("")
    ('It is $x=5$', '$\\text{even}$', None)
    """
    formula = stated(clean(text)).strip("* ").rstrip(".,;")
    if len(formula) > MAX_FORMULA_CHARS:
        return None
    if _DELIMITED.search(formula):
        return formula
    formula = bare = formula.replace("\\$", "").replace("$", "").strip()
    for pattern, latex in _NOTATION:
        formula = pattern.sub(latex, formula)
    if len(_WORD.findall(formula)) >= 2 or len(_SHORT_WORD.findall(formula)) >= 3:  # a sentence
        number = only_number(bare)
        return None if number is None else f"${number.value}$"
    spelled = _WORD.sub(r"\\text{\g<0>}", formula)
    return f"${spelled}$" if bare else None


# --- the worker: one comparison at a time, ended by the kernel when it takes too long ---
#
# sympy has no reliable time limit: math-verify's uses SIGALRM with a handler, so it works only in the main thread, and
# results differ in other threads. An alarm without a handler ends a separate process even inside C code.

MEMORY_BYTES = 1024**3
"""The worker's limit of address space; math-verify with sympy takes 0.07 GB of it."""
_SCRIPT = Path(__file__).with_name("maths_worker.py")
_ENVIRONMENT = {"PYTHONHASHSEED": "0"}
"""The worker's whole environment: it reads untrusted text and needs no keys. Every worker orders sets alike."""


class FormulaWorker:
    """A process that compares formulas, started when it is needed and restarted after it ended. Thread-safe.

    A forked child starts its own, and must neither use nor end the parent's.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._renew()
        after_fork(self._in_child)

    def _renew(self) -> None:
        self.process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def _in_child(self) -> None:
        keep(self.process)
        self._renew()

    def ask(self, answer: str, gold: tuple[str, ...]) -> bool | None:
        """Return whether two formulas are equal; None if the time, the memory or the stack ran out.

        Raises:
            UsageError: no process can be started.
            MissingExtraError: math-verify cannot be imported in the process.
        """
        with self._lock:
            if self.process is None or self.process.poll() is not None:
                self._end()
                self._start()
            reply = self._reply(json.dumps({"gold": gold, "answer": answer}) + "\n")
        return None if reply is None else reply["correct"]

    def close(self) -> None:
        """End the process, after any comparison in progress."""
        with self._lock:
            self._end()

    def _start(self) -> None:
        path = [entry or str(Path.cwd()) for entry in sys.path]
        settings = {"path": path, "memory_bytes": MEMORY_BYTES, "timeout_s": self.timeout_s}
        if not sys.executable:
            raise UsageError("The matcher 'math' starts a Python process, but this program does not know its Python.")
        try:
            self.process = subprocess.Popen(  # noqa: S603 - a fixed command
                [sys.executable, "-s", "-P", str(_SCRIPT), json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=_ENVIRONMENT,
                encoding="ascii",
                start_new_session=True,  # Ctrl-C is for the program, which then ends its worker
            )
        except OSError as error:
            raise UsageError(f"The worker of the matcher 'math' cannot be started: {error.strerror}.") from error
        hello = self._reply("")
        if hello is None:
            raise UsageError("The worker of the matcher 'math' ended before it was ready.")
        if "missing" in hello:
            self._end()
            raise MissingExtraError(PACKAGE, f"The matcher 'math' ({quote(str(hello['missing']))})")

    def _reply(self, line: str) -> Any:
        """Return the reply to a line; None if the process ended, or sent only part of a reply.

        Without a reply the process is ended, since its next reply would belong to this line.
        """
        assert self.process is not None  # noqa: S101 - for the type checker
        assert self.process.stdin is not None  # noqa: S101 - a pipe
        assert self.process.stdout is not None  # noqa: S101 - a pipe
        reply = None
        try:
            with suppress(BrokenPipeError):  # a process that has ended may have replied before
                self.process.stdin.write(line)
                self.process.stdin.flush()
            with suppress(ValueError):
                reply = json.loads(self.process.stdout.readline())
        finally:
            if reply is None:
                self._end()
        return reply

    def _end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None
