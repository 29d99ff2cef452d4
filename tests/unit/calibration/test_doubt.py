"""How a log's signals are read as doubt, and which candidate a verdict favours."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from cases import each

from cascade.calibration.samples import KNOWN, Doubt, doubt_of
from cascade.episodes.table import EpisodeTable
from cascade.policies.threshold import uncertainty
from unit.evaluation.plain import draw, table_of


def logged(signals: dict[str, list[float]], present: list[list[bool]] | None = None) -> EpisodeTable:
    """Return a table of one question whose steps have these signals."""
    steps = max((len(values) for values in signals.values()), default=len(present or [[]]))
    rng = np.random.default_rng(0)
    question = draw(rng, steps, 2)
    while len(question.steps) < steps:
        question = draw(rng, steps, 2)
    table = table_of([question], steps, 2)
    answer = table.arrays.answer if present is None else np.where(np.array([present]), 0, -1)
    found = {name: np.array([values]) for name, values in signals.items()}
    return replace(table, signals=found, arrays=replace(table.arrays, answer=answer))


def test_a_verdicts_doubt_is_the_live_policys_to_the_last_bit() -> None:
    values = [0.0, 1.0, 0.5, 0.3, 1 / 3, *np.random.default_rng(1).random(500).tolist()]
    table = logged({"p_yes": values})
    assert KNOWN[0].read(table)[0].tolist() == [uncertainty(value) for value in values]


def test_what_is_not_known_is_full_doubt() -> None:
    table = logged({"p_yes": [math.nan, 0.5], "reply_mean_logprob": [-0.25, math.nan], "self_check": [0.75, math.nan]})
    assert [doubt.read(table)[0].tolist() for doubt in KNOWN[:3]] == [
        [math.inf, pytest.approx(math.log(2))],
        [0.25, math.inf],
        [0.25, math.inf],
    ]
    assert Doubt("absent", "absent", np.abs).read(table)[0].tolist() == [math.inf, math.inf]


@each(
    "signals, name",
    [
        ({"p_yes": [0.5], "reply_mean_logprob": [-1.0]}, "verdict"),
        ({"p_yes": [math.nan], "reply_mean_logprob": [-1.0]}, "log-prob"),
        ({"self_check": [0.5], "answer_token_entropy": [1.0]}, "self-check"),
        ({"answer_min_logprob": [-0.5], "other_run_uncertainty": [0.5]}, "answer log-prob"),
        ({"base_gate": [0.5], "guide_gate": [0.5]}, "gate"),
        ({"judge_share": [0.5], "gate": [math.nan]}, "judge's votes"),
        ({"guide_gate": [0.5]}, None),
        ({"base_other_run_uncertainty": [0.5]}, "base other run uncertainty"),
        ({"answer_token_entropy": [0.5], "an_entropy": [math.nan]}, "answer token entropy"),
        ({"guide_agrees": [1.0]}, None),
        ({"p_yes": [math.nan]}, None),
        ({}, None),
    ],
)
def test_the_doubt_is_the_first_signal_that_the_log_has_numbers_for(
    signals: dict[str, list[float]], name: str | None
) -> None:
    found = doubt_of(logged(signals))
    assert (None if found is None else found.name) == name


def test_kinds_that_say_how_good_an_answer_looks_are_turned_round() -> None:
    signals = {"base_gate": [0.75, 0.0], "base_answer_min_logprob": [-3.0, 0.0], "judge_share": [1.0, 0.25]}
    read = []
    for name, values in signals.items():
        table = logged({name: values})
        found = doubt_of(table)
        assert found is not None
        read.append(found.read(table)[0].tolist())
    assert read == [[0.25, 1.0], [3.0, 0.0], [0.0, 0.75]]


def test_entropies_are_doubt_as_they_are() -> None:
    table = logged({"answer_token_entropy": [0.5, 2.0, math.nan]})
    found = doubt_of(table)
    assert found is not None
    assert found.read(table)[0].tolist() == [0.5, 2.0, math.inf]


def test_a_no_favours_the_guide_and_anything_else_the_base() -> None:
    present = [[True, True]] * 4 + [[True, False], [False, True], [False, False]]
    table = logged({"p_yes": [0.9, 0.1, 0.5, math.nan, 0.1, 0.9, 0.1]}, present)
    assert KNOWN[0].chosen(table)[0].tolist() == [0, 1, 0, 0, 0, 1, -1]


def test_without_verdicts_the_first_candidate_is_favoured() -> None:
    table = logged({"reply_mean_logprob": [-0.1, -9.0]}, [[True, True], [False, True]])
    assert KNOWN[1].chosen(table)[0].tolist() == [0, 1]
