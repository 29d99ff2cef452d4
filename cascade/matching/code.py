"""Judge code by a user's tests, which run in a separate process that is killed when its time is over.

The process gets an empty folder, no keys from the environment, and no input. It is not a sandbox: it may read what this
user may read, and use the network. Run unreviewed code in a container.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from cascade.chat import ChatRequest
from cascade.errors import UsageError
from cascade.matching.base import accepted

_FENCED = re.compile(r"```[\w+-]*\n(.*?)```", re.DOTALL)
_KEPT = ("PATH", "LANG", "LC_ALL", "SYSTEMROOT")
"""The environment variables that the tests get; keys are in other variables."""


class CodeMatcher:
    """Code is right if it passes tests; two outputs are the same if both pass, or both fail, the same tests.

    The code is the last fenced block of an answer, or the whole answer. Accepted answers are tests in Python, appended
    to it. A command is run in an empty folder with the code in the file `answer.py` there, and passes with exit code 0.

    Args:
        command: the command that runs the tests; by default Python runs the file. `{file}` is the file's path.
        timeout_s: seconds until the tests, and all processes that they started, are killed, which counts as failed.

    >>> CodeMatcher().matches("def double(x): return 2 * x", ["assert double(2) == 4"])
    True
    """

    def __init__(self, command: str = "", timeout_s: float = 10.0) -> None:
        self._command = tuple(shlex.split(command)) or (sys.executable, "-I", "{file}")
        self._own_tests = bool(command)
        self._timeout_s = timeout_s
        self._passes = lru_cache(maxsize=4_096)(self._run)

    def matches(self, answer: str, gold: Sequence[str]) -> bool | None:
        """Return whether the answer's code passes one of the accepted tests."""
        tests = accepted(gold)
        if not tests:
            return None
        return any(self._passes(f"{code_in(answer)}\n\n{test}\n") for test in tests)

    def same(self, one: str, other: str, request: ChatRequest | None = None) -> bool | None:  # noqa: ARG002 - the Protocol's
        """Return whether both outputs pass the command's tests, or both fail."""
        if not self._own_tests:
            raise UsageError(
                'Two outputs are compared by your tests: "code:command=python -m pytest -q /path/to/tests".'
            )
        mine, theirs = code_in(one), code_in(other)
        return mine == theirs or self._passes(mine) == self._passes(theirs)

    def _run(self, code: str) -> bool:
        """Return whether the command succeeds on the code in time."""
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            file = Path(folder, "answer.py")
            file.write_text(code, "utf-8", errors="replace")
            seen = {name: os.environ[name] for name in _KEPT if name in os.environ} | {"HOME": folder, "TMPDIR": folder}
            try:
                process = subprocess.Popen(  # noqa: S603 - the user's own command, without a shell
                    [part.replace("{file}", str(file)) for part in self._command],
                    cwd=folder,
                    env=seen,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except OSError as error:
                raise UsageError(
                    f"The tests cannot be run: {error}. Check the command of the comparator code."
                ) from None
            try:
                return process.wait(self._timeout_s) == 0
            except subprocess.TimeoutExpired:
                return False
            finally:
                _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()


def code_in(answer: str) -> str:
    r"""Return the code of an answer: its last fenced block, or all of it.

    >>> code_in("Here:\n```python\nx = 1\n```\nDone.")
    'x = 1\n'
    """
    found = _FENCED.findall(answer)
    return found[-1] if found else answer
