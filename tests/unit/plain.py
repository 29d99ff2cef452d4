"""A row of a log by hand."""

from __future__ import annotations

from typing import Any

from cascade.logs.schema import COLUMNS

Row = dict[str, Any]


def row(episode: str = "q", step: int = 1, candidate: int | None = 0, **columns: Any) -> Row:
    """Return one call's row: right, by the base, for 10 nano-USD, unless told otherwise."""
    given: Row = {"episode_id": episode, "step": step, "candidate": candidate, "source": "base"}
    if candidate is not None:
        given |= {"answer": "Danube", "correct": True}
    blank: Row = dict.fromkeys(COLUMNS)
    return blank | given | {"text": "said", "cost_nano_usd": 10} | columns
