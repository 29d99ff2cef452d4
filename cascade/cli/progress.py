"""How far a long computation is: a bar on a terminal, a line now and then elsewhere, on stderr."""

from __future__ import annotations

import time
from typing import Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cascade.api.output import plain
from cascade.cli.output import notes

_QUIET_S = 10.0
"""How long to be silent between two lines where there is no terminal."""


class Shown:
    """Progress by name: of each thing that is done, how many of how many parts."""

    def __init__(self) -> None:
        self._out = notes()
        self._bar: Progress | None = None
        self._said = time.monotonic()
        if self._out.is_terminal:
            parts = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._bar = Progress(*parts, console=self._out, transient=True)
            self._task = self._bar.add_task("", total=None)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def tell(self, name: str, done: int, total: int) -> None:
        """Show how far it is."""
        if self._bar is not None:
            self._bar.update(self._task, description=plain(name), completed=done, total=total)
        elif time.monotonic() - self._said >= _QUIET_S:
            self._said = time.monotonic()
            self._out.print(plain(f"{name}: {done} of {total}"), soft_wrap=True)
