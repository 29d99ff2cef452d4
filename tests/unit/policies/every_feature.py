"""Every name that a feature can have, and whether two lots of numbers are the same to the bit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from cascade.conformal.arrays import Floats
from cascade.policies.features import place_names
from cascade.policies.views import ASKED

VIEWS = ("", ".change", ".least", ".most", ".at1", ".at2", ".at3", ".at4")


def every_name(signals: Iterable[str], sources: tuple[str, ...]) -> tuple[str, ...]:
    """Return the grammar, spelled out: all views of these signals, all comparisons of these places, and the rest."""
    places = place_names(sources)
    series = [*signals, *(f"confidence[{place}]" for place in places), "no_such_signal"]
    names = [f"{one}{view}" for one in series for view in VIEWS]
    names += [f"repeats[{place}]" for place in places]
    names += [f"same[{one},{other}]" for one in places for other in places]
    names += [f"equals.at{number}" for number in range(1, 5)]
    names += ["votes", "distinct", "answers_here", "tokens_so_far", "cost_so_far"]
    return (*names, *(f"asked.{name}" for name in ASKED), "asked.nothing")


def differing(live: Sequence[Sequence[float]] | Floats, table: Floats, names: Sequence[str]) -> list[str]:
    """Return the features whose float64 bits differ anywhere; one NaN is as good as another."""
    one = np.array(live, dtype=np.float64).reshape(table.shape)
    same = (one.view(np.uint64) == table.view(np.uint64)) | (np.isnan(one) & np.isnan(table))
    return [name for name, column in zip(names, same.T, strict=True) if not column.all()]
