"""`cascade compare`: policies on a log, exactly."""

from __future__ import annotations

from typing import Any

from cascade.api.comparing import ComparisonResult, compare
from cascade.api.output import plain
from cascade.cli.main import command, notes, say


def _compare(**given: Any) -> ComparisonResult:
    found = compare(**given, tell=say)
    if given["plot"] is not None:
        notes().print(f"drawn: {plain(str(given['plot']))}", soft_wrap=True)
    return found


compare_log = command(compare, "cascade compare episodes.parquet --alpha 0.1 --plot cost.svg", call=_compare)
