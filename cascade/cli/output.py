"""Printing: text for people, or one JSON document, on stdout; everything else on stderr.

The progress of a long computation is among the rest: a bar on a terminal, otherwise a line now and then (`Shown`).
"""

from __future__ import annotations

import json
import logging
import sys
import time
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cascade.api.output import SafeConsole, plain, shown, spelled

if TYPE_CHECKING:
    from cascade.api.output import Result


class LogFormatter(logging.Formatter):
    """Formats a log line with `shown`, since it may quote a server."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return shown(super().format(record))


def console() -> Console:
    """Return the console for results."""
    return SafeConsole(highlight=False, soft_wrap=False)


def notes() -> Console:
    """Return the console for everything but the result: progress, warnings, errors."""
    return SafeConsole(stderr=True, highlight=False)


def say(text: str) -> None:
    """Print a sentence that the reader of a result must know, on stderr."""
    notes().print(plain(text), style="yellow", soft_wrap=True)


def print_result(result: Result, *, as_json: bool) -> None:
    """Print a result, as text for this terminal or as one JSON document."""
    if as_json:
        print_json(result.to_dict())
        return
    out = console()
    for part in result.parts(out.width):
        out.print(part, crop=False)  # a command with a line break could not be run


def print_json(document: Any) -> None:
    """Print one JSON document on stdout; control characters are written as escapes."""
    text = json.dumps(document, ensure_ascii=False, indent=1, default=_number, allow_nan=False)
    sys.stdout.write(spelled(text) + "\n")


def _number(value: Any) -> Any:
    if isinstance(value, Decimal):
        return float(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


_QUIET_S = 10.0
"""Least seconds between two lines if there is no terminal."""


class Shown:
    """Progress by name: how many parts of each task are done, and how many there are."""

    def __init__(self, working: str = "") -> None:
        self._out, self._working = notes(), working
        self._bar: Progress | None = None
        self._said = time.monotonic()
        if self._out.is_terminal:
            parts = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._bar = Progress(*parts, TextColumn("{task.fields[said]}"), console=self._out, transient=True)
            self._task = self._bar.add_task(working, total=None, said="")

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def tell(self, name: str, done: int, total: int, said: str = "", *, always: bool = False) -> None:
        """Show the progress of a task.

        Args:
            name: the task.
            done: how many of its parts are done.
            total: how many parts there are.
            said: a figure beside it.
            always: print a line even if one was printed just before.
        """
        if self._bar is not None:
            (task,) = self._bar.tasks
            if (task.description, task.total) != (plain(name), total) or done < task.completed:
                self._replace(plain(name), total)
            self._bar.update(self._task, completed=done, said=said)
        elif always or time.monotonic() - self._said >= _QUIET_S:
            self._said = time.monotonic()
            beside = f", {said}" if said else ""
            self._out.print(plain(f"{name}: {done:,} of {total:,}{beside}"), soft_wrap=True)

    def rest(self) -> None:
        """Show the work as a whole again, whose progress is unknown."""
        if self._bar is not None:
            self._replace(self._working, None)

    def _replace(self, description: str, total: int | None) -> None:
        """Show another task; resetting the old one would keep its total."""
        assert self._bar is not None  # noqa: S101 - there is a terminal
        self._bar.remove_task(self._task)
        self._task = self._bar.add_task(description, total=total, said="")
