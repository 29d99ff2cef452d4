"""Qualities stand where the answers stand, and are those that the sources give their own answers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cascade.episodes.quality import qualities
from cascade.episodes.tabulate import tables_from_rows
from cascade.errors import UsageError
from cascade.matching import get_matcher
from unit.evaluation.plain import row

DATA = Path(__file__).parents[4] / "shared" / "data"
WORDS = ("the", "blue", "Danube", "river", "Inn", "yes")


def said(
    answer: str | None, episode: str = "q", step: int = 1, candidate: int | None = 0, **columns: Any
) -> dict[str, Any]:
    given = {"answer": answer, "gold": ["blue Danube"], "correct": None if candidate is None else False}
    return row(episode, step, candidate, **(given | columns))


def test_the_f1_of_the_words_is_stored_in_the_candidates_place() -> None:
    rows = [
        said("the Danube"),
        said("Inn", candidate=1, source="guide"),
        said(None, candidate=None, source="guide"),
        said("Blue Danube.", step=2),
    ]
    (table,) = tables_from_rows(rows)
    (quality,) = qualities(rows, [table])
    np.testing.assert_allclose(quality, [[[2 / 3, 0.0], [1.0, math.nan]]])


def test_a_guide_that_answers_first_keeps_its_own_place() -> None:
    rows = [
        said("Inn", "a"),
        said("the Danube", "a", candidate=1, source="guide"),
        said("blue Danube", "b", source="guide"),  # the base gave no answer, so the guide's is the first
    ]
    (table,) = tables_from_rows(rows)
    assert table.sources == ("base", "guide")
    np.testing.assert_allclose(qualities(rows, [table])[0], [[[0.0, 2 / 3]], [[math.nan, 1.0]]])


def test_random_logs_in_any_order_with_episodes_that_cannot_be_judged() -> None:
    rng = np.random.default_rng(4)
    squad, checked = get_matcher("squad"), 0
    for _ in range(40):
        rows, wanted = [], {}
        for q in range(6):
            for step in range(1, int(rng.integers(2, 5))):
                places = [place for place in range(2) if rng.random() < 0.8]
                rows.append(said(None, f"q{q}", step, None, horizon=3, dataset=f"set{q % 2}"))
                for index, place in enumerate(places):
                    text = " ".join(rng.choice(WORDS, int(rng.integers(1, 5))))
                    truth = None if rng.random() < 0.05 else False
                    own = {"source": ("base", "guide")[place], "correct": truth, "horizon": 3, "dataset": f"set{q % 2}"}
                    rows.append(said(text, f"q{q}", step, index, **own))
                    wanted[f"q{q}", step, own["source"]] = squad.matches(text, ["blue Danube"]).score
        rows.append(said("blue Danube", "q0", 1, 0, walk="guide only", dataset="set0", correct=True))
        tables = tables_from_rows([rows[i] for i in rng.permutation(len(rows))])
        for table, quality in zip(
            tables, qualities([rows[i] for i in rng.permutation(len(rows))], tables), strict=True
        ):
            assert np.array_equal(~np.isnan(quality), table.arrays.present)
            for i, t, a in np.argwhere(table.arrays.present):
                source = table.sources[a] if len(set(table.sources)) == len(table.sources) == 2 else None
                if source in {"base", "guide"}:
                    assert quality[i, t, a] == wanted[table.ids[i], t + 1, source]
                    checked += 1
    assert checked > 300


def test_a_matcher_without_a_score_gives_1_and_0_and_one_that_cannot_tell_nothing() -> None:
    rows = [said("42.0", gold=["42"]), said("41", step=2, gold=["42"]), said("x", step=3, gold=[])]
    (quality,) = qualities(rows, tables_from_rows(rows), "number")
    np.testing.assert_array_equal(quality.ravel(), [1.0, 0.0, math.nan])


def test_an_answer_that_was_not_kept_as_text_is_unknown() -> None:
    rows = [said(None, correct=True), said("Danube", step=2)]
    np.testing.assert_allclose(qualities(rows, tables_from_rows(rows))[0].ravel(), [math.nan, 2 / 3])


def test_what_cannot_be_graded_is_refused() -> None:
    rows = [said("Danube", gold=None)]
    tables = tables_from_rows(rows)
    with pytest.raises(UsageError, match="log has nothing to grade answers by"):
        qualities(rows, tables)
    with pytest.raises(UsageError, match="There is no matcher 'f2'"):
        qualities(rows, tables, "f2")
    for others in ([], [said("Danube", "other")], [said("Danube"), said("Danube", step=2)]):
        with pytest.raises(UsageError, match="not the rows that the table log was made from"):
            qualities(others, tables)


def test_a_published_logs_own_f1_is_ours() -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    path = DATA / "episodes_uala.parquet"
    if not path.exists():
        pytest.skip(f"the published logs are not here: ../shared/data/{path.name}")
    from cascade.evaluation.logs import open_log

    log = open_log(str(path))
    table, quality = next(
        (table, quality)
        for table, quality in zip(log.tables, qualities(log.rows(), log.tables, "hotpotqa"), strict=True)
        if table.dataset.startswith("uala_hotpotqa")
    )
    theirs = {
        one["question_id"]: one["guide_score"]
        for one in parquet.read_table(path, columns=["dataset", "question_id", "guide_score"]).to_pylist()
        if one["dataset"] == "uala_hotpotqa"
    }
    assert table.n == len(theirs) == 500
    ours = dict(zip(table.groups, quality[:, 1, 0].tolist(), strict=True))
    known = {name: value for name, value in ours.items() if not math.isnan(value)}
    assert len(known) > 400
    assert known == pytest.approx({name: theirs[name] for name in known})
    assert all(theirs[name] == 0 for name in ours.keys() - known)  # an answer without a word, which is none for us
