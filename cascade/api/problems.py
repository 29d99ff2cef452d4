"""Everything that is wrong with a call, said at once: what is asked for is checked part by part, and then refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from cascade.api.logs import LogAsked, read_log
from cascade.api.output import Tell
from cascade.errors import CascadeError, ConfigError, UsageError
from cascade.evaluation.logs import Log

_T = TypeVar("_T")
_WRONG_CALL = UsageError.exit_code


class Problems:
    """What was found wrong with a call so far; `refuse` ends the check."""

    def __init__(self) -> None:
        self._found: dict[str, CascadeError] = {}

    def add(self, said: str) -> None:
        """Note a problem, a sentence."""
        self._found.setdefault(said, UsageError(said))

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note an error of the call instead of raising it; what could not be certified, and the like, is raised."""
        try:
            yield
        except CascadeError as error:
            self._note(error)

    def of(self, make: Callable[[], _T]) -> _T | None:
        """Return what is made; None, and the error noted, where it cannot be."""
        try:
            return make()
        except CascadeError as error:
            self._note(error)
        return None

    def _note(self, error: CascadeError) -> None:
        if error.exit_code != _WRONG_CALL:
            raise error
        self._found.setdefault(str(error), error)

    def refuse(self) -> None:
        """Raise what was noted: one error as it is, several as a list."""
        found = list(self._found.values())
        if len(found) == 1:
            raise found[0]
        if found:
            raise UsageError(f"{len(found)} problems:" + "".join(f"\n  - {_set_in(one)}" for one in found))


def _set_in(error: CascadeError) -> str:
    """Return an error's message for a line of a list: a list of its own is set in, one of a single entry is none."""
    if isinstance(error, ConfigError) and len(error.problems) == 1 and str(error) == str(ConfigError(error.problems)):
        return error.problems[0]
    return str(error).replace("\n", "\n  ")


def checked_log(problems: Problems, asked: LogAsked, tell: Tell) -> Log | None:
    """Return a log; None, and all that is wrong with how it was asked for noted, where it cannot be read."""
    log, matcher = problems.of(lambda: read_log(asked, tell)), asked.matcher
    if log is None and any(asked[1:]):
        problems.of(lambda: read_log(LogAsked(asked.source), tell))
        if matcher is not None:
            from cascade.matching import get_matcher

            problems.of(lambda: get_matcher(matcher))
    return log
