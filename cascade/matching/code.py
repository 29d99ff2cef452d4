"""Judge code by a user's tests, which run in a separate process that is killed when its time is up.

The process gets an empty folder, no keys from the environment, and no input. It is not a sandbox: it may read what this
user may read, and use the network. Run unreviewed code in a container.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from pydantic import validate_call

from cascade.chat import ChatRequest
from cascade.errors import UsageError
from cascade.matching.registry import Matcher, TimeLimit, accepted
from cascade.safety import exit_code

_FENCED = re.compile(r"```[\w+-]*\n(.*?)```", re.DOTALL)
_PASSED_ON = ("PATH", "LANG", "LC_ALL", "SYSTEMROOT")
"""The environment variables that the tests get; keys are in other variables."""


class CodeMatcher(Matcher):
    """Code is right if it passes tests; two outputs are the same if both pass, or both fail, the same tests.

    The code is the last fenced block of an answer, or the whole answer. Accepted answers are tests in Python, appended
    to it. A command is run in an empty folder with the code in the file `answer.py` there, and passes with exit code 0.

    Args:
        command: the command that runs the tests; by default Python runs the file. `{file}` is the file's path.
        timeout_s: seconds until the tests, and the processes of their session, are killed, which counts as failed.

    >>> CodeMatcher().matches("def double(x): return 2 * x", ["assert double(2) == 4"])
    True
    """

    @validate_call
    def __init__(self, command: str = "", timeout_s: TimeLimit = 10.0) -> None:
        self._command = tuple(shlex.split(command)) or (sys.executable, "-I", "{file}")
        self._own_tests = bool(command)
        self._timeout_s = timeout_s
        self._passes = lru_cache(maxsize=4_096)(self._run)

    def matches(self, answer: str, gold: Sequence[str]) -> bool | None:
        """Return whether the answer's code passes one of the accepted tests."""
        tests, code = accepted(gold), code_in(answer)
        return any(self._passes(f"{code}\n\n{test}\n") for test in tests) if tests else None

    def same(self, output: str, other: str, request: ChatRequest | None = None) -> bool | None:  # noqa: ARG002 - the base class's
        """Return whether both outputs pass the command's tests, or both fail."""
        if not self._own_tests:
            raise UsageError(
                'Two outputs are compared by your tests: "code:command=python -m pytest -q /path/to/tests".'
            )
        code, other_code = code_in(output), code_in(other)
        return code == other_code or self._passes(code) == self._passes(other_code)

    def _run(self, code: str) -> bool:
        """Return whether the command succeeds on the code in time."""
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            file = Path(folder, "answer.py")
            file.write_text(code, "utf-8", errors="replace")
            inherited = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
            command = [word.replace("{file}", str(file)) for word in self._command]
            try:
                exited = exit_code(command, folder, {**inherited, "HOME": folder, "TMPDIR": folder}, self._timeout_s)
            except OSError as error:
                raise UsageError(f"The tests cannot be run: {error}. Check the command of the matcher code.") from None
            return exited == 0


def code_in(answer: str) -> str:
    r"""Return the code of an answer: its last fenced block, or all of it.

    >>> code_in("Here:\n```python\nx = 1\n```\nDone.")
    'x = 1\n'
    """
    blocks = _FENCED.findall(answer)
    return blocks[-1] if blocks else answer
