"""A feature is the same number live and on the log of what was live, to the bit, and knows nothing of what comes later."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from unit.made import request
from unit.policies.every_feature import differing, every_name

from cascade.calibration.scores import history_of
from cascade.episodes.schema import rows
from cascade.episodes.table import EpisodeTable
from cascade.episodes.tabulate import tables_from_rows
from cascade.policies.base import Observation
from cascade.policies.features import FeatureSet, offered
from cascade.types import Answer, Call, Candidate, Completion, Question, Step, Usage

PAIR, LADDER, ALONE, THREE = ("base", "guide"), ("small", "medium", "large"), ("guide",), ("base", "guide", "third")
SIGNALS = ("p_yes", "reply_mean_logprob", "answer_chars", "certainty 1.5")
TEXTS = ["Danube", "The danube.", "Rhine", "3.5", "35", "-5", "5", "?!", "Ｄanube", "", "ß", "SS", "a\nb", "an"]
WHOLE = st.integers(0, 5_000) | st.none()
NUMBER = st.floats(-4, 4) | st.sampled_from([0.0, -0.0, 0.1, 0.2, 0.30000000000000004, 1e300, -5e-324])


@st.composite
def calls(draw: st.DrawFn, role: str, number: int) -> list[Call]:
    """Draw a role's calls of one step. All came back: a table leaves out questions of which a call failed."""
    asked = request(role=role, model=role, step=number)
    made = []
    for sample in range(draw(st.integers(1, 2))):
        usage = Usage(draw(WHOLE), draw(WHOLE), estimated=draw(st.booleans()))
        cost = draw(st.integers(0, 10**7) | st.none())
        made.append(Call(asked._replace(sample=sample), Completion("said", "stop", usage), cost, cost))
    return made


@st.composite
def steps(draw: st.DrawFn, roles: Sequence[str], number: int) -> Step:
    asked = [roles[number - 1]] if roles == LADDER else list(roles)
    made = [call for role in asked for call in draw(calls(role, number))]
    candidates = tuple(
        Candidate(draw(st.sampled_from(TEXTS)), role, role, draw(st.none() | st.floats(0, 1)))
        for role in asked
        if draw(st.integers(0, 3))
    )
    signals = draw(st.dictionaries(st.sampled_from(SIGNALS), st.none() | NUMBER))
    return Step(number, candidates, signals, calls=tuple(made))


@st.composite
def walks(draw: st.DrawFn) -> list[Answer]:
    """Draw walks of some questions through one cascade."""
    roles = draw(st.sampled_from([PAIR, LADDER, ALONE, THREE]))
    found = []
    for _ in range(draw(st.integers(1, 4))):
        question = Question(draw(st.text(max_size=40)), draw(st.none() | st.text(max_size=9)))
        many = draw(st.integers(1, 3))
        held = tuple(draw(steps(roles, number)) for number in range(1, many + 1))
        found.append(Answer(question, None, (), held, "horizon", 0.0))
    return found


def logged(answers: Sequence[Answer], right: Sequence[bool]) -> EpisodeTable:
    """Return the table of what was logged of these, with this or that judged right; as from a file."""
    found: list[dict[str, Any]] = []
    for number, answer in enumerate(answers):
        for row in rows(answer, horizon=3, episode_id=f"e{number}"):
            judged = None if row["candidate"] is None else right[len(found) % len(right)]
            found.append(json.loads(json.dumps(row)) | {"correct": judged})
    (table,) = tables_from_rows(found)
    return table


RIGHT = st.lists(st.booleans(), min_size=1, max_size=5)


@given(walks(), RIGHT)
def test_live_and_on_the_log_a_feature_has_the_same_bits(answers: list[Answer], right: list[bool]) -> None:
    table = logged(answers, right)
    history, names = history_of(table), every_name([*SIGNALS], table.sources)
    features = FeatureSet(names, table.sources)
    for step in range(1, history.horizon + 1):
        rows_there = np.flatnonzero(history.steps >= step)
        live = [features.live(Observation(answers[row].question, answers[row].steps[:step], 3)) for row in rows_there]
        wanted = features.table(history, step)
        assert not differing(live, wanted[rows_there], names)
        assert np.isnan(np.delete(wanted, rows_there, axis=0)).all()


@given(walks(), RIGHT, RIGHT)
def test_no_feature_looks_at_the_truth_or_at_later_steps(
    answers: list[Answer], right: list[bool], other: list[bool]
) -> None:
    table = logged(answers, right)
    history, names = history_of(table), every_name([*SIGNALS], table.sources)
    features, cut = FeatureSet(names, table.sources), [replace(one, steps=one.steps[:1]) for one in answers]
    first = features.table(history, 1)
    again = history_of(logged(answers, other))
    assert not differing(features.table(again, 1), first, names)
    shorter = logged(cut, right)
    if shorter.sources == table.sources:
        assert not differing(features.table(history_of(shorter), 1), first, names)
    for step in range(1, history.horizon + 1):
        assert offered(again, step) == offered(history, step)


@given(walks(), RIGHT, st.integers(0, 3))
def test_a_row_has_the_same_features_whatever_stands_beside_it(
    answers: list[Answer], right: list[bool], row: int
) -> None:
    table = logged(answers, right)
    chosen, names = np.array([row % table.n]), every_name([*SIGNALS], table.sources)
    features = FeatureSet(names, table.sources)
    for step in range(1, table.arrays.horizon + 1):
        whole = features.table(history_of(table), step)[chosen]
        assert not differing(features.table(history_of(table.take(chosen)), step), whole, names)
        assert not differing(features.table(history_of(table).take(chosen), step), whole, names)
