"""How far a fit is, and how a run that is ended keeps the training of its network."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cascade.api.output import plain
from cascade.cli.output import notes, say
from cascade.training.networks import progress
from cascade.training.networks.progress import CHECKPOINT_FILE

_QUIET_S = 10.0
"""How long to be silent between two lines where there is no terminal."""
_REDRAWN_S = 0.1


class Showing:
    """How far a fit is, on stderr: a bar while a network is trained on a terminal, a line now and then elsewhere."""

    def __init__(self, working: str) -> None:
        self._out, self._working = notes(), working
        self._bar: Progress | None = None
        self._said, self._last = time.monotonic(), 0
        if self._out.is_terminal:
            parts = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Progress(*parts, TextColumn("{task.fields[said]}"), console=self._out, transient=True)
            self._task = self._bar.add_task(working, total=None, said="")  # what it does when it trains nothing

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def tell(self, now: progress.Progress) -> None:
        """Show how far the training of a network is."""
        anew, self._last = now.step <= self._last or not self._last, now.step
        if self._bar is not None and anew:
            self._replace(f"training {now.method}", now.steps, now.step - 1)
        ended = now.step == now.steps
        since = time.monotonic() - self._said
        if since < (_QUIET_S if self._bar is None else _REDRAWN_S) and not (ended and self._bar is not None):
            return
        self._said = time.monotonic()
        if self._bar is None:
            said = f"training {now.method}: step {now.step:,} of {now.steps:,}, {_figures(now)}"
            self._out.print(plain(said), soft_wrap=True)
        else:
            self._bar.update(self._task, completed=now.step, said=_figures(now))
            if ended:
                self._replace(self._working, None, 0)

    def _replace(self, description: str, total: int | None, completed: int) -> None:
        """Show something else; a task that is reset would keep its total."""
        assert self._bar is not None  # noqa: S101 - there is a terminal
        self._bar.remove_task(self._task)
        self._task = self._bar.add_task(description, total=total, completed=completed, said="")


def _figures(now: progress.Progress) -> str:
    return f"covered {100 * now.coverage:.1f} %, kappa {now.kappa:.3g}, cost {now.cost:.3g} steps"


@contextmanager
def ended_gently(checkpoint: Path | None) -> Iterator[None]:
    """Let SIGTERM end the program as an interrupt does, so that the checkpoint of the last step is written; say so."""
    if checkpoint is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _: object) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        if (checkpoint / CHECKPOINT_FILE).exists():
            say(f"stopped; the same command with --checkpoint {checkpoint} --resume goes on from here")
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
