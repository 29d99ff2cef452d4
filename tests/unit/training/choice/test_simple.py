"""Depths and thresholds as learned policies: what they do is what is said of them, and they go into a file and back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cascade.calibration.samples import doubt_of
from cascade.calibration.scores import sample_of
from cascade.conformal.arrays import rollout
from cascade.guarantees import get
from cascade.guarantees.base import Guarantee
from cascade.policies import model_file
from cascade.training.objective import Objective, prices_of
from cascade.training.simple import _meant, doubtful_verdict, fixed_depth, one_threshold, signals_of
from unit.calibration.logs import log

TABLE = log(300)
TERMS = Objective(Guarantee("coverage", 0.1), 0.1, prices_of(TABLE))


def test_a_threshold_on_the_fixed_depth_is_a_depth() -> None:
    sample = sample_of(TABLE, fixed_depth(TABLE))
    for depth in range(1, 5):
        found = rollout(TABLE.arrays, sample.levels, 0.5 - depth)
        assert (found.length == depth).all()
        assert (found.leaves == 2 * depth).all()


def test_the_verdict_s_doubt_is_in_the_order_of_its_uncertainty() -> None:
    doubt = doubt_of(TABLE)
    assert doubt is not None
    read = doubt.read(TABLE)[:, :3].ravel()
    scores = sample_of(TABLE, doubtful_verdict(TABLE)).scores.next[:, :3].ravel()
    order = np.argsort(read, kind="stable")
    assert (np.diff(scores[order]) >= -1e-15).all()


def test_a_missing_number_is_full_doubt() -> None:
    p_yes = TABLE.signals["p_yes"].copy()
    p_yes[::3, 0] = np.nan
    table = replace(TABLE, signals={**TABLE.signals, "p_yes": p_yes})
    for policy in (doubtful_verdict(table), one_threshold(table, "p_yes", get("coverage"))):
        onward = sample_of(table, policy).scores.next
        assert (onward[::3, 0] == np.inf).all()
        assert np.isfinite(onward[1::3, 0]).all()


@pytest.mark.parametrize("turned", [False, True])
def test_the_way_round_is_learned(turned: bool) -> None:
    values = -TABLE.signals["reply_mean_logprob"] if turned else TABLE.signals["reply_mean_logprob"]
    table = replace(TABLE, signals={"odd": values})
    onward = sample_of(table, one_threshold(table, "odd", get("coverage"))).scores.next[:, 0]
    assert np.corrcoef(onward, values[:, 0])[0, 1] == pytest.approx(1 if turned else -1)


def test_a_threshold_is_for_what_is_known_and_varies() -> None:
    dull = {"constant": np.ones_like(TABLE.paid), "never": np.full_like(TABLE.paid, np.nan)}
    last = np.full_like(TABLE.paid, np.nan)
    last[:, -1] = TABLE.signals["p_yes"][:, -1]  # known only where nothing is to be decided any more
    found = list(signals_of(replace(TABLE, signals={**TABLE.signals, **dull, "late": last})))
    assert not {"constant", "never", "late"} & set(found)
    assert {"p_yes", "reply_mean_logprob", "confidence[guide]"} <= set(found)
    assert not any("." in name for name in found)


def test_they_go_into_a_file_and_back() -> None:
    for policy in (fixed_depth(TABLE), doubtful_verdict(TABLE), one_threshold(TABLE, "p_yes", get("coverage"))):
        data = model_file.dumps(policy)
        again = model_file.loads(data, model_file.settings(policy, data))
        assert np.array_equal(sample_of(TABLE, again).scores.next, sample_of(TABLE, policy).scores.next)
        assert model_file.dumps(again) == data


@pytest.mark.parametrize(
    ("name", "sign"),
    [
        ("p_yes", -1.0),
        ("answer_mean_logprob", -1.0),
        ("guide_agrees", -1.0),
        ("answer_softmax_entropy", 1.0),
        ("disagreement", 1.0),
        ("aggregate_entropy", 1.0),
        ("investigated", 0.0),
        ("probability_mass_on_other", 0.0),
    ],
)
def test_a_name_says_what_its_words_say_and_no_part_of_a_word(name: str, sign: float) -> None:
    assert _meant(name) == sign
