"""What an act of the package returns: figures as plain values, and the same figures in words."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType

from cascade.api.output import SafeConsole

_WIDTH = 110
"""Columns of a summary where no width is given: those of a notebook's cell."""


class Result(ABC):
    """What an act of the package found. `print(result)` shows what the command line prints.

    A notebook shows the same. `to_dict` returns the document that the command prints with `--json`;
    `docs/schemas` has its JSON Schema.
    """

    @abstractmethod
    def parts(self, width: int) -> Iterator[RenderableType]:
        """Yield what is printed, for a terminal of so many columns."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain values. Costs are in USD; unknown is None."""

    def summary(self, width: int = _WIDTH) -> str:
        """Return what the command line prints, as plain text of so many columns."""
        console = SafeConsole(file=io.StringIO(), width=width, highlight=False, no_color=True, force_terminal=False)
        for part in self.parts(width):
            console.print(part, crop=False)
        text: str = console.file.getvalue()  # type: ignore[attr-defined]
        return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")

    def __str__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        """Return the summary for a notebook, every character of it escaped."""
        console = SafeConsole(file=io.StringIO(), width=_WIDTH, highlight=False, record=True)
        for part in self.parts(_WIDTH):
            console.print(part, crop=False)
        block = '<pre style="white-space:pre;overflow-x:auto;line-height:1.3">{code}</pre>'
        return console.export_html(inline_styles=True, code_format=block)
