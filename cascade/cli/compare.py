"""`cascade compare` and `cascade evaluate`: policies on a log, exactly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cascade.api.comparing import ComparisonResult, compare
from cascade.api.evaluating import evaluate
from cascade.api.output import plain
from cascade.cli.main import command, flag, notes


def _say_drawn(_: ComparisonResult, given: Mapping[str, Any]) -> None:
    if given["plot"] is not None:
        notes().print(f"drawn: {plain(str(given['plot']))}", soft_wrap=True)


compare_log = command(compare, "cascade compare episodes.parquet --alpha 0.1 --plot cost.svg", after=_say_drawn)
evaluate_log = command(
    evaluate,
    'cascade evaluate episodes.parquet --policy "{kind: threshold, threshold: 0.3}"',
    flags={"policy": flag("--policy")},
)
