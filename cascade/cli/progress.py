"""The progress of a long computation, on stderr: a bar on a terminal, otherwise a line now and then."""

from __future__ import annotations

import time
from typing import Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cascade.api.output import plain
from cascade.cli.output import notes

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
