"""The sentence embeddings of a log's questions, and a table with their positions along fitted directions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from cascade.conformal.arrays import Floats
from cascade.episodes.schema import question_id
from cascade.episodes.table import EpisodeTable
from cascade.policies.question_features import PREFIX, Directions, Embedder

Vectors: TypeAlias = Mapping[str, Floats]
"""Each question's embedding, float64 (d,), by `schema.question_id`."""


def vectors_of(rows: Iterable[Mapping[str, Any]], embedder: Embedder) -> dict[str, Floats]:
    """Return the embedding of every question of a log whose text is on record; each text is embedded once."""
    by_text: dict[str, Floats] = {}
    found: dict[str, Floats] = {}
    for row in rows:
        text = row["question"]
        if text is None:
            continue
        if text not in by_text:
            by_text[text] = embedder(text)
        found.setdefault(question_id(text, row["context"]), by_text[text])
    return found


def stacked(table: EpisodeTable, vectors: Vectors) -> Floats:
    """Return the embeddings of a table's questions, float64 (n, d); NaN if unknown."""
    known = [vectors.get(question) for question in table.spelled]
    width = next((one.size for one in known if one is not None), 0)
    unknown = np.full(width, np.nan)
    return np.array([unknown if one is None else one for one in known], dtype=np.float64).reshape(table.n, width)


def embedded(table: EpisodeTable, vectors: Vectors, directions: Directions) -> EpisodeTable:
    """Return a table whose `asked` has each question's positions along the directions; NaN if unknown.

    These are, to the bit, the numbers that a policy with these directions reads live.
    """
    numbers = np.full((table.n, len(directions.names)), np.nan)
    for row, question in enumerate(table.spelled):
        vector = vectors.get(question)
        if vector is not None:
            numbers[row] = list(directions.numbers(vector).values())
    columns = {name: numbers[:, index] for index, name in enumerate(directions.names)}
    return replace(table, asked={**table.asked, **columns})


def without_embeddings(table: EpisodeTable) -> EpisodeTable:
    """Return a table without the numbers that `embedded` added; the same table if it has none."""
    kept = {name: values for name, values in table.asked.items() if not name.startswith(PREFIX)}
    return table if len(kept) == len(table.asked) else replace(table, asked=kept)
