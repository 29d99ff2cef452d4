"""The embeddings of a log's questions, and the columns that are made of them."""

from __future__ import annotations

import numpy as np

from cascade.episodes.schema import question_id
from cascade.episodes.table import embedded, stacked, vectors_of, without_embeddings
from cascade.episodes.tabulate import tables_from_rows
from cascade.policies.design import Directions
from unit.embedder import WIDTH, Embedder, logged, text

DIRECTIONS = Directions("fake:1", np.zeros(WIDTH), np.eye(WIDTH)[:2])


def test_each_text_is_embedded_once_and_found_by_its_question() -> None:
    embedder, rows = Embedder(), logged(4)
    told = [row | {"context": "read this"} for row in rows[:2]]
    found = vectors_of([*rows, *told, rows[0] | {"question": None}], embedder)
    assert embedder.asked == [text(number) for number in range(4)]
    assert set(found) == {question_id(text(n), None) for n in range(4)} | {question_id(text(0), "read this")}


def test_a_question_without_a_text_is_unknown() -> None:
    rows = [row if row["question"] != text(1) else row | {"question": None} for row in logged(3)]
    (table,) = tables_from_rows(rows)
    vectors = vectors_of(rows, Embedder())
    assert np.isnan(stacked(table, vectors)).any(axis=1).tolist() == [False, True, False]
    columns = embedded(table, vectors, DIRECTIONS).asked
    assert np.isnan(columns["embedding_0"]).tolist() == [False, True, False]
    assert columns["embedding_1"][2] == round(Embedder()(text(2))[1], 4)


def test_no_text_at_all_is_no_embedding() -> None:
    (table,) = tables_from_rows(logged(3))
    assert stacked(table, {}).shape == (3, 0)


def test_what_was_put_there_can_be_taken_away() -> None:
    (table,) = tables_from_rows(logged(3))
    with_them = embedded(table, vectors_of(logged(3), Embedder()), DIRECTIONS)
    assert set(with_them.asked) - set(table.asked) == {"embedding_0", "embedding_1"}
    assert without_embeddings(with_them).asked.keys() == table.asked.keys()
    assert without_embeddings(table) is table
    assert embedded(with_them, {}, DIRECTIONS).take(np.array([1])).asked["embedding_1"].shape == (1,)
