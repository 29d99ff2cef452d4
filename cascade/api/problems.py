"""Collects every problem of a call, so that one error can list all of them."""

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
    """The problems of a call found so far; `refuse` ends the check."""

    def __init__(self) -> None:
        self._found: dict[str, CascadeError] = {}

    def add(self, said: str) -> None:
        """Note a problem, a sentence."""
        self._found.setdefault(said, UsageError(said))

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note an error of the call instead of raising it; other errors, such as `NotCertifiedError`, are raised."""
        try:
            yield
        except CascadeError as error:
            self._note(error)

    def of(self, make: Callable[[], _T]) -> _T | None:
        """Return what `make` returns; if it raises, note the error and return None."""
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
        """Raise the noted problems, if any: one as it is, several as a list."""
        found = list(self._found.values())
        if len(found) == 1:
            raise found[0]
        if found:
            raise UsageError(f"{len(found)} problems:" + "".join(f"\n  - {_set_in(one)}" for one in found))


def _set_in(error: CascadeError) -> str:
    """Return an error's message as an item of a list; a nested list is indented, one with a single entry is inlined."""
    if isinstance(error, ConfigError) and len(error.problems) == 1 and str(error) == str(ConfigError(error.problems)):
        return error.problems[0]
    return str(error).replace("\n", "\n  ")


def checked_log(problems: Problems, asked: LogAsked, tell: Tell) -> Log | None:
    """Return a log; if it cannot be read, note the problems and return None."""
    log, matcher = problems.of(lambda: read_log(asked, tell)), asked.matcher
    if log is None and any(asked[1:]):
        problems.of(lambda: read_log(LogAsked(asked.source), tell))
        if matcher is not None:
            from cascade.matching import get_matcher

            problems.of(lambda: get_matcher(matcher))
    return log
