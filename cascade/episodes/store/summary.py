"""What is in a store, in numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

from cascade.episodes.store.tables import episodes


def summary(connection: sa.Connection, columns: Iterable[str]) -> dict[str, Any]:
    """Return counts, the time covered, and by model the calls and what they cost.

    A cost is None as soon as one call's is unknown; `cost_unknown` counts those.
    """
    have = set(columns)
    column = episodes.c
    marked = sa.case((column.signals.contains('"not_finite":', autoescape=True), 1), else_=0)
    head = sa.select(
        sa.func.count().label("rows"),
        sa.func.count(column.episode_id.distinct()).label("episodes"),
        sa.func.min(column.created_at).label("first"),
        sa.func.max(column.created_at).label("last"),
        sa.func.coalesce(sa.func.sum(marked), 0).label("not_finite"),
    )
    found = dict(connection.execute(head).mappings().one())
    found["not_finite"] = int(found["not_finite"])
    live = column.walk.is_(None) if "walk" in have else sa.true()
    by_model = (
        sa.select(
            column.model,
            sa.func.count().label("rows"),
            sa.func.sum(column.cost_nano_usd).label("cost_nano_usd"),
            (sa.func.count() - sa.func.count(column.cost_nano_usd)).label("cost_unknown"),
        )
        .where(live)
        .group_by(column.model)
        .order_by(sa.desc("rows"), column.model)
    )
    found["models"] = [_priced(dict(row)) for row in connection.execute(by_model).mappings()]
    return found


def _priced(row: dict[str, Any]) -> dict[str, Any]:
    known = row["cost_unknown"] == 0 and row["cost_nano_usd"] is not None
    return row | {"cost_nano_usd": int(row["cost_nano_usd"]) if known else None}
