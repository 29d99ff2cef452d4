"""Sentence embeddings as features: the same numbers live and on a log, saved whole, and never a silent zero."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cascade.calibration.scores import check_fits, scored
from cascade.episodes.table import embedded, vectors_of
from cascade.episodes.tabulate import tables_from_rows
from cascade.errors import ConfigError, UsageError
from cascade.policies import model_file
from cascade.policies.base import Observation
from cascade.policies.design import Directions, Embedded
from cascade.policies.estimators import Constant, Signal
from cascade.policies.features import FeatureSet, describe
from cascade.policies.learned import LearnedPolicy, StepRule
from cascade.types import Candidate, Question, Step
from unit.embedder import WIDTH, Embedder, logged, text

RNG = np.random.default_rng(0)
DIRECTIONS = Directions("fake:1", RNG.normal(size=WIDTH), np.linalg.qr(RNG.normal(size=(WIDTH, WIDTH)))[0][:3])


def policy(directions: Directions | None = DIRECTIONS, embedder: Embedder | None = None) -> LearnedPolicy:
    """Goes on by the second direction alone."""
    rule = StepRule(FeatureSet(("asked.words", "asked.embedding_1"), ("answer",)), Signal(1, 1.0), (None,), (None,))
    last = StepRule(FeatureSet((), ("answer",)), None, (None,), (None,))
    looks = None if embedder is None or directions is None else Embedded(directions, embedder)
    return LearnedPolicy("threshold", (rule, last), 0.0, directions, looks)


def seen(number: int) -> Observation:
    return Observation(Question(text(number)), (Step(1, (Candidate("a", "small", "small"),), {}),), 2)


def test_numbers_are_the_projections_of_the_embedding_to_four_decimals() -> None:
    vector = Embedder()(text(3))
    found = DIRECTIONS.numbers(vector)
    assert list(found) == ["embedding_0", "embedding_1", "embedding_2"] == list(DIRECTIONS.names)
    exact = DIRECTIONS.axes @ (vector - DIRECTIONS.centre)
    np.testing.assert_allclose(list(found.values()), exact, atol=0.5e-4)
    assert all(value == round(value, 4) for value in found.values())
    assert found == DIRECTIONS.numbers(vector + 1e-9)


def test_there_is_one_zero() -> None:
    flat = Directions("m", np.zeros(2), np.array([[1.0, 0.0]]))
    assert str(flat.numbers(np.array([-1e-7, 1.0]))["embedding_0"]) == "0.0"


@pytest.mark.parametrize(
    ("centre", "axes"),
    [
        (np.zeros(3), np.zeros((2, 4))),
        (np.zeros((1, 3)), np.zeros((2, 3))),
        (np.zeros(3), np.zeros((0, 3))),
        (np.array([0.0, np.nan]), np.zeros((1, 2))),
        (np.zeros(2), np.array([[np.inf, 0.0]])),
    ],
)
def test_directions_that_are_none_are_refused(centre: Any, axes: Any) -> None:
    with pytest.raises(UsageError, match="finite numbers"):
        Directions("m", centre, axes)


def test_an_embedding_of_another_length_is_refused() -> None:
    with pytest.raises(UsageError, match="has 6 numbers, not 5"):
        DIRECTIONS.numbers(np.zeros(5))


def test_a_question_is_embedded_once() -> None:
    embedder = Embedder()
    held = Embedded(DIRECTIONS, embedder)
    assert held.numbers(text(1)) == held.numbers(text(1)) != held.numbers(text(2))
    assert embedder.asked == [text(1), text(2)]


def test_what_is_remembered_is_bounded_and_stays_right() -> None:
    held = Embedded(DIRECTIONS, Embedder())
    first = [dict(held.numbers(text(number))) for number in range(600)]
    assert len(held._known) <= 256
    assert [dict(held.numbers(text(number))) for number in range(600)] == first


def test_another_sentence_model_is_refused() -> None:
    with pytest.raises(UsageError, match="fitted with the sentence model fake:1; this one is other"):
        Embedded(DIRECTIONS, Embedder("other"))


def test_live_and_on_a_log_the_scores_are_the_same_to_the_bit() -> None:
    embedder, rows = Embedder(), logged(60)
    deciding = policy(embedder=embedder)
    (table,) = tables_from_rows(rows)
    table = embedded(table, vectors_of(rows, embedder), DIRECTIONS)
    _, scores = scored(deciding, table)
    live = [deciding.scores(seen(number)).next for number in range(60)]
    assert [value.hex() for value in live] == [float(value).hex() for value in scores.next[:, 0]]
    assert len(set(live)) > 50


def test_without_the_sentence_model_it_says_so_and_scores_nothing() -> None:
    with pytest.raises(UsageError, match="needs the sentence model fake:1"):
        policy().scores(seen(1))


def test_a_sentence_model_that_fails_is_no_zero() -> None:
    class Broken(Embedder):
        def __call__(self, text: str) -> Any:
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        policy(embedder=Broken()).scores(seen(1))


def test_a_log_without_embeddings_is_refused() -> None:
    (table,) = tables_from_rows(logged(5))
    with pytest.raises(UsageError, match="sentence embeddings, which topics lacks"):
        check_fits(policy(embedder=Embedder()), table)
    check_fits(policy(), embedded(table, {}, DIRECTIONS))


def test_the_feature_is_described() -> None:
    found = describe("asked.embedding_7")
    assert (found.unit, found.low, found.high) == ("length, of 1", -2.0, 2.0)


# --- the file


def saved(one: LearnedPolicy) -> tuple[bytes, dict[str, Any]]:
    data = model_file.dumps(one)
    return data, model_file.settings(one, data)


def test_a_file_holds_the_directions_to_the_bit_and_names_the_model() -> None:
    data, section = saved(policy())
    held = model_file.loads(data, section)
    assert section["embedding"] == "fake:1"
    assert held.directions is not None
    assert held.directions.model == "fake:1"
    assert held.directions.centre.tobytes() == DIRECTIONS.centre.tobytes()
    assert held.directions.axes.tobytes() == np.ascontiguousarray(DIRECTIONS.axes).tobytes()
    ready = replace(held, embedded=Embedded(held.directions, Embedder()))
    assert ready.scores(seen(7)) == policy(embedder=Embedder()).scores(seen(7))
    assert model_file.dumps(held) == data


def test_without_directions_nothing_is_named() -> None:
    rule = StepRule(FeatureSet(("asked.words",), ("answer",)), Constant(1.0), (None,), (None,))
    last = StepRule(FeatureSet((), ("answer",)), None, (None,), (None,))
    data, section = saved(LearnedPolicy("depth", (rule, last)))
    assert section["embedding"] is None
    assert model_file.loads(data, section).directions is None


def test_a_feature_without_its_direction_cannot_be_written() -> None:
    with pytest.raises(UsageError, match=r"no such direction for the feature asked\.embedding_1"):
        model_file.dumps(policy(None))
    with pytest.raises(UsageError, match=r"no such direction for the feature asked\.embedding_1"):
        model_file.dumps(policy(Directions("m", np.zeros(3), np.eye(3)[:1])))


@pytest.mark.parametrize("edit", ["unnamed", "no axes", "no centre", "not finite", "other width"])
def test_an_edited_file_is_refused(edit: str) -> None:
    from safetensors.numpy import load, save

    data, section = saved(policy())
    arrays = load(data)
    if edit == "unnamed":
        section["embedding"] = None
    elif edit == "no axes":
        del arrays["embedding.axes"]
    elif edit == "no centre":
        del arrays["embedding.centre"]
    elif edit == "not finite":
        arrays["embedding.centre"][0] = np.nan
    else:
        arrays["embedding.axes"] = arrays["embedding.axes"][:, :-1].copy()
    data = save(arrays)
    section["model"]["sha256"] = model_file._sha256(data).hexdigest()
    with pytest.raises(ConfigError, match="embedding"):
        model_file.loads(data, section)
