"""What no split may cut, and what a certificate may count: groups, near-duplicates, segments."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cascade.calibration.verifying import verify

from cascade.calibration.calibrating import calibrate_policy
from cascade.calibration.samples import once, one_a_group, tied
from cascade.episodes.schema import COLUMNS, identity
from cascade.episodes.tabulate import tables_from_rows
from cascade.errors import UsageError
from cascade.guarantees.base import Guarantee
from cascade.guarantees.certificate import statement
from cascade.policies.artifact import PolicyArtifact, Seen, write
from cascade.policies.reading import read
from unit.calibration.logs import POLICY, SECTION, log

SETTINGS = SECTION.model_dump(mode="json")
COVERAGE = Guarantee("coverage", 0.2)


def documents(n: int, each: int, seed: int = 0) -> Any:
    return log(n, seed, groups=[f"document {row // each}" for row in range(n)])


def asked(texts: list[str], **more: Any) -> list[dict[str, Any]]:
    """Return a log of two steps a question, the first one wrong."""
    rows = []
    for number, text in enumerate(texts):
        for step in (1, 2):
            given = {"episode_id": f"e{number}", "question": text, "step": step, "candidate": 0, "answer": f"{step}"}
            known = {"correct": step == 2, "confidence": 0.5, "cost_nano_usd": 1, "source": "guide", "horizon": 2}
            rows.append(dict.fromkeys(COLUMNS) | given | known | {"signals": {"p_yes": number / 999}} | more)
    return rows


def test_one_question_of_each_group_certifies_and_the_certificate_says_so(tmp_path: Path) -> None:
    """0.5.0: n was 240, of 12 documents."""
    table = documents(240, 20)
    done = calibrate_policy([table], POLICY, SECTION, COVERAGE)
    (one,) = done.artifact.certificates
    assert (one.n, one.unit, done.n) == (12, "group", 12)
    assert "a random question of a random fresh group" in statement(one)
    assert "12 groups, one question of each" in statement(one)
    assert any("12 of 240 questions, one of each group" in said for said in one.assumptions)
    write(tmp_path, done.artifact)
    assert read(tmp_path).certificates == (one,)
    fresh = documents(240, 20, 1)
    fresh = replace(fresh, groups=tuple([f"other {group}" for group in fresh.groups]))
    checks = {check.name: check for check in verify(tmp_path, [table, fresh]).checks}
    assert checks["threshold"].ok
    assert "of 12 fresh questions lost" in checks["fresh"].said  # and not the 228 others of the 12 documents


def test_where_no_group_has_several_questions_nothing_is_drawn() -> None:
    done = calibrate_policy([log(100)], POLICY, SECTION, COVERAGE)
    (one,) = done.artifact.certificates
    assert (one.n, one.unit) == (100, "question")
    assert "group" not in statement(one)


def test_the_draw_knows_no_outcome_and_no_order() -> None:
    table = tied(documents(200, 5))
    drawn = one_a_group(table, seed=3)
    assert sorted(drawn.drawn_from.tolist()) == [5] * 40
    other = replace(table, arrays=replace(table.arrays, correct=~table.arrays.correct))
    assert one_a_group(other, seed=3).questions == drawn.questions
    shuffled = table.take(np.random.default_rng(0).permutation(200))
    assert set(one_a_group(shuffled, seed=3).questions) == set(drawn.questions)
    assert set(one_a_group(table, seed=4).questions) != set(drawn.questions)
    assert one_a_group(drawn, seed=9).ids == drawn.ids


# --- near-duplicates ---


def test_copies_that_differ_in_blanks_are_one_question() -> None:
    """0.5.0: 12 questions in 20 copies, each with more blanks, gave n = 240."""
    texts = [f"What is {number} plus 1?" for number in range(12)]
    (table,) = tables_from_rows(asked([text + " " * copy for copy in range(20) for text in texts]))
    assert once(table).size == 12
    done = calibrate_policy([table], POLICY, SECTION, COVERAGE)
    assert (done.n, done.repeated) == (12, 228)


def test_a_training_question_in_another_spelling_certifies_nothing() -> None:
    """0.5.0: training questions with a trailing blank or in capitals were accepted."""
    texts = [f"Which river runs through town {number}?" for number in range(40)]
    seen = PolicyArtifact(SETTINGS, Seen(tuple(identity(text, None) for text in texts)))
    (table,) = tables_from_rows(asked([text.upper() + " " for text in texts]))
    with pytest.raises(UsageError, match="40 of 40 questions were used to make this policy"):
        calibrate_policy([table], POLICY, SECTION, COVERAGE, held=seen)


# --- segments ---


def in_segments(n: int, names: str = "abc") -> Any:
    return replace(documents(n, 4), segments=tuple([names[row % len(names)] for row in range(n)]))


def test_each_segment_has_one_question_of_each_group() -> None:
    done = calibrate_policy([in_segments(600)], POLICY, SECTION, Guarantee("coverage", 0.1, 0.1, by_segment=True))
    found = {one.segment: one for one in done.artifact.certificates}
    assert set(found) == {"a", "b", "c"}
    assert {found[name].n for name in "abc"} == {150}
    assert "For segment a: " in statement(found["a"])
    assert "for this segment by itself" in statement(found["a"])
