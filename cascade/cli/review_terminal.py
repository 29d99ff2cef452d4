"""Reads one key at a time from the reviewer, and shows long texts page by page."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence

from rich.cells import chop_cells
from rich.console import Console
from rich.text import Text

ENDED = "\x04"
"""What `Keys.read` returns at the end of the input."""
_ESCAPE = b"\x1b"
_PROMPT_ROWS = 2
_BAR = "│ "


class Keys:
    """Reads keys: single ones from a terminal, the first letter of each line from anything else."""

    def __init__(self) -> None:
        self.is_terminal = sys.stdin.isatty()

    def read(self) -> str:
        """Return the next key; `ENDED` at the end of the input."""
        if not self.is_terminal:
            line = sys.stdin.readline()
            return line.strip()[:1] if line else ENDED
        with _single_keys(sys.stdin.fileno()) as descriptor:
            typed = os.read(descriptor, 64)
        # An arrow or function key arrives as several bytes, some of them digits; it is ignored.
        return "" if typed.startswith(_ESCAPE) else typed[:1].decode("ascii", "replace") or ENDED

    def forget(self) -> None:
        """Drop keys typed ahead: a key judges only the pair that was on the screen when it was pressed."""
        if self.is_terminal:
            with contextlib.suppress(ImportError):
                import termios

                termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


@contextlib.contextmanager
def _single_keys(descriptor: int) -> Iterator[int]:
    """Read each key at once, without echo; on systems that cannot do that, read a line at a time."""
    try:
        import termios
        import tty
    except ImportError:  # Windows
        yield descriptor
        return
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor, termios.TCSANOW)
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSANOW, before)


def barred(lines: Sequence[str], width: int) -> list[str]:
    """Return lines broken at the width of the screen, each behind a bar, so that none looks like a line of cascade.

    >>> barred(["abcdef", ""], 6)
    ['│ abcd', '│ ef', '│ ']
    """
    room = max(1, width - len(_BAR))
    return [_BAR + piece for line in lines for piece in (chop_cells(line.expandtabs(4), room) or [""])]


def page(out: Console, keys: Keys, rows: Sequence[Text]) -> str:
    """Print rows, on a terminal one screen at a time; return the key that ended it early, "q" or `ENDED`, else "".

    Nothing is left out: a reviewer who sees the last row has seen all rows.
    """
    room = max(1, out.height - _PROMPT_ROWS)
    at = 0
    while keys.is_terminal and len(rows) - at > room:
        _print(out, rows[at : at + room])
        at += room
        left = len(rows) - at
        keys.forget()
        out.print(Text(f"— {left} more rows: space shows the next, a all, q ends —", style="reverse"))
        while (key := keys.read()) not in {" ", "\n", "a", "q", ENDED}:
            pass
        if key in {"q", ENDED}:
            return key
        if key == "a":
            break
    _print(out, rows[at:])
    return ""


def _print(out: Console, rows: Sequence[Text]) -> None:
    for row in rows:
        out.print(row, no_wrap=True, overflow="ignore", crop=False)
