"""Trials as lines of a file: one cell a line, written as soon as it is judged, so that no run is lost or done twice."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cascade.conformal.arrays import Floats

from .opponents import MIXTURE
from .trial import Trial


def append(path: Path, trial: Trial) -> None:
    """Write one trial to the end of a file, on a line of its own."""
    line = json.dumps(document(trial), allow_nan=False) + "\n"
    cut = path.exists() and not path.read_bytes().endswith(b"\n")
    with path.open("a", encoding="utf-8") as file:
        file.write("\n" + line if cut else line)


def read(paths: Iterable[Path]) -> list[Trial]:
    """Return the trials of these files; a cell that was judged several times becomes one trial with all its ways.

    A last line that was cut short is left out. A cell of which the splits differ raises ValueError.
    """
    found: dict[str, Trial] = {}
    for path in paths:
        for line in path.read_text("utf-8").splitlines():
            try:
                trial = restored(json.loads(line))
            except json.JSONDecodeError:
                continue  # the run was killed while it wrote: the cell is judged again
            held = found.get(trial.cell)
            found[trial.cell] = trial if held is None else merged(held, trial)
    return list(found.values())


def done(trials: Sequence[Trial], cell: str, ways: Sequence[str], count: int) -> bool:
    """Return whether a cell was judged with these ways on so many splits."""
    held = [one for one in trials if one.cell == cell and splits(one) == count]
    return any(set(ways) <= set(one.seconds) for one in held)


def splits(trial: Trial) -> int:
    """Return how many splits were judged."""
    return max(costs.size for costs in trial.cost.values())


def merged(one: Trial, other: Trial) -> Trial:
    """Return a trial with the ways of two that judged the same splits of the same cell; of a way of both the later."""
    for key in one.cost.keys() & other.cost.keys():
        if key[0] == MIXTURE and not np.array_equal(one.cost[key], other.cost[key], equal_nan=True):
            message = f"{one.cell} was judged on different splits. Combine runs of the same log and number of splits."
            raise ValueError(message)
    return replace(
        other,
        cost=one.cost | other.cost,
        covered=one.covered | other.covered,
        notes=one.notes | other.notes,
        seconds=one.seconds | other.seconds,
    )


def document(trial: Trial) -> dict[str, Any]:
    """Return a trial as JSON values; unknown is null."""
    plain = {name: getattr(trial, name) for name in ("cell", "source", "n", "sizes", "control", "signals", "floor")}
    arrays = {name: _listed(getattr(trial, name)) for name in ("cost", "covered")}
    notes = [[way, alpha, list(said)] for (way, alpha), said in trial.notes.items()]
    return {**plain, **arrays, "notes": notes, "seconds": trial.seconds}


def restored(values: dict[str, Any]) -> Trial:
    """Return the trial of a document."""
    arrays = {name: _arrays(values[name]) for name in ("cost", "covered")}
    notes = {(way, alpha): said for way, alpha, said in values["notes"]}
    held = {**values, **arrays, "notes": notes, "sizes": tuple(values["sizes"]), "floor": tuple(values["floor"])}
    return Trial(**held)


def _listed(arrays: dict[tuple[str, float], Floats]) -> list[list[Any]]:
    return [
        [way, alpha, [None if math.isnan(value) else value for value in values.tolist()]]
        for (way, alpha), values in arrays.items()
    ]


def _arrays(lists: list[list[Any]]) -> dict[tuple[str, float], Floats]:
    return {(way, alpha): np.array(values, dtype=np.float64) for way, alpha, values in lists}
