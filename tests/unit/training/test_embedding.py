"""Directions of the training questions' embeddings, offered to a fit, and kept only by a policy that looks at them."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cascade import factory
from cascade.calibration.scores import scored
from cascade.episodes.table import EpisodeTable, embedded, vectors_of
from cascade.episodes.tabulate import tables_from_rows
from cascade.errors import ConfigError
from cascade.factory import read_policy
from cascade.guarantees.base import Guarantee
from cascade.orchestrator import Orchestrator
from cascade.policies import model_file
from cascade.policies.artifact import Seen, write
from cascade.policies.config import DirectoryConfig
from cascade.policies.design import Embedded
from cascade.providers.fake import FakeProvider
from cascade.strategies import embedding as strategy
from cascade.training.dividing import MOST_DIRECTIONS, ROWS_EACH, Embedding, Init, directions
from cascade.training.fitting import Fitted, fit_policy
from cascade.types import Question
from unit.embedder import Embedder, answers, config, logged, text

ROWS = logged(500)
REGRET = Guarantee("regret", 0.1, 0.1)


@pytest.fixture(scope="module")
def table() -> EpisodeTable:
    return tables_from_rows(ROWS)[0]


@pytest.fixture(scope="module")
def embedding() -> Embedding:
    return Embedding(Embedder(), vectors_of(ROWS, Embedder()))


def fit(table: EpisodeTable, embedding: Embedding | None, guarantee: Guarantee = REGRET, **more: Any) -> Fitted:
    return fit_policy(
        [table],
        guarantee,
        config=config(),
        embedding=embedding,
        calibration_share=0.3,
        today=date(2026, 11, 21),
        **more,
    )


@pytest.fixture(scope="module")
def fitted(table: EpisodeTable, embedding: Embedding) -> Fitted:
    return fit(table, embedding)


# --- directions


def test_they_are_where_the_questions_differ_most() -> None:
    rng = np.random.default_rng(1)
    hidden = np.linalg.qr(rng.normal(size=(10, 10)))[0]
    spread = np.array([9.0, 3.0, *[0.01] * 8])
    vectors = rng.normal(size=(400, 10)) * spread @ hidden.T + 2.0
    found = directions(vectors, "m")
    assert found is not None
    assert (found.model, found.axes.shape) == ("m", (4, 10))
    assert abs(found.axes[0] @ hidden[:, 0]) > 0.99
    assert abs(found.axes[1] @ hidden[:, 1]) > 0.99
    np.testing.assert_allclose(found.axes @ found.axes.T, np.eye(4), atol=1e-12)
    np.testing.assert_allclose(found.centre, vectors.mean(axis=0))
    largest = found.axes[np.arange(4), np.abs(found.axes).argmax(axis=1)]
    assert (largest > 0).all()


def test_turning_every_vector_round_turns_no_direction() -> None:
    vectors = np.random.default_rng(2).normal(size=(250, 5))
    one, other = directions(vectors, "m"), directions(-vectors, "m")
    assert one is not None
    assert other is not None
    np.testing.assert_allclose(one.axes, other.axes, atol=1e-12)


@pytest.mark.parametrize(("n", "many"), [(0, 0), (99, 0), (100, 1), (299, 2), (5_000, MOST_DIRECTIONS)])
def test_there_is_one_for_a_hundred_questions_at_most_eight(n: int, many: int) -> None:
    found = directions(np.random.default_rng(3).normal(size=(n, 20)), "m")
    assert (0 if found is None else len(found.names)) == many


def test_questions_without_a_text_are_left_out() -> None:
    vectors = np.random.default_rng(4).normal(size=(300, 6))
    with_gaps = np.insert(vectors, [0, 100], np.nan, axis=0)
    one, other = directions(vectors, "m"), directions(with_gaps, "m")
    assert one is not None
    assert other is not None
    assert other.axes.tobytes() == one.axes.tobytes()
    assert directions(np.full((300, 6), np.nan), "m") is None
    assert directions(np.empty((300, 0)), "m") is None


# --- a fit


def test_what_a_question_is_about_is_learned_where_nothing_else_tells(table: EpisodeTable, fitted: Fitted) -> None:
    bare = fit(table, None)
    assert bare.policy.directions is None
    assert bare.policy.method == "reference"  # half of the questions need the large model, and nothing says which
    assert fitted.choice.chosen.name.endswith(", embeddings")
    assert fitted.policy.directions is not None
    assert any(name.startswith("asked.embedding_") for name in fitted.policy.rules[0].features.names)
    assert fitted.calibrated.realised.length < 1.7
    assert fitted.calibrated.realised.error < 0.1


def test_the_directions_come_from_the_training_questions_alone(table: EpisodeTable, embedding: Embedding) -> None:
    coverage = Guarantee("coverage", 0.1)
    one = fit(table, embedding, coverage, method="net_benefit")
    certifying = set(one.artifact.questions)
    vectors = {name: -9 * value if name in certifying else value for name, value in embedding.vectors.items()}
    other = fit(table, embedding._replace(vectors=vectors), coverage, method="net_benefit")
    assert one.policy.directions is not None
    assert other.policy.directions is not None
    assert model_file.dumps(other.policy) == model_file.dumps(one.policy)


def test_it_is_served_as_it_is_played_on_the_log(
    table: EpisodeTable, fitted: Fitted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, fitted.artifact)
    monkeypatch.setattr(strategy, "sentence_model", Embedder)
    assert fitted.policy.directions is not None
    played = embedded(table, vectors_of(ROWS, Embedder()), fitted.policy.directions)
    _, scores = scored(fitted.policy, played)
    served = config().model_copy(update={"policy": DirectoryConfig(kind="directory", path=str(tmp_path))})
    lengths = set[tuple[int, ...]]()
    with Orchestrator.from_config(served, providers={"fake": FakeProvider(answers)}) as orchestrator:
        for number in range(120):
            answer = orchestrator.ask(Question(text(number)))
            row = table.ids.index(ROWS[2 * number]["episode_id"])
            first = answer.steps[0]  # which may be the last model: a policy that buys may pass the first by
            assert first.decision is not None
            assert float(first.decision.next_score).hex() == float(scores.next[row, first.number - 1]).hex()
            assert (answer.certificate, answer.warnings) == (fitted.artifact.certificates[0], ())
            lengths.add(tuple(one.number for one in answer.steps))
    assert len(lengths) > 1


def test_to_serve_it_the_same_sentence_model_is_required(
    fitted: Fitted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, fitted.artifact)
    monkeypatch.setattr(strategy, "sentence_model", lambda: Embedder("other:2"))
    with pytest.raises(ConfigError, match="fitted with the sentence model fake:1; this one is other:2"):
        read_policy(tmp_path)


def test_a_policy_that_does_not_look_needs_no_sentence_model(
    table: EpisodeTable, embedding: Embedding, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simple = fit(table, embedding, method="depth")
    assert (simple.policy.directions, simple.policy.embedded) == (None, None)
    write(tmp_path, simple.artifact)

    def absent() -> Any:
        raise AssertionError("it was loaded")

    monkeypatch.setattr(strategy, "sentence_model", absent)
    assert factory.read_policy(tmp_path).artifact.policy["embedding"] is None


def test_candidates_without_embeddings_are_as_they_are_without_the_option(
    table: EpisodeTable, embedding: Embedding
) -> None:
    noise = np.random.default_rng(0).normal(size=(table.n, 2))
    table = replace(table, signals={"reply_mean_logprob": noise})
    bare, offered = fit(table, None), fit(table, embedding)
    names = [one.name for one in bare.choice.judged]
    learned = [name for name in names if not name.startswith(("fixed", "threshold", "the reference"))]
    assert len(learned) == 4
    assert [one.name for one in offered.choice.judged] == names + [f"{name}, embeddings" for name in learned]
    for name in names:
        assert offered.choice.of(name).matched == bare.choice.of(name).matched


def test_a_fit_that_starts_from_another_looks_from_where_that_one_did(
    table: EpisodeTable, embedding: Embedding, fitted: Fitted
) -> None:
    more = logged(500, 500)
    later = tables_from_rows(more)[0]
    vectors = vectors_of(more, Embedder())
    again = fit(later, Embedding(Embedder(), vectors), init=Init(fitted.policy, Seen(table.questions)))
    assert again.policy.directions is not None
    assert fitted.policy.directions is not None
    assert again.policy.directions.axes.tobytes() == fitted.policy.directions.axes.tobytes()


def test_too_few_texts_are_said(table: EpisodeTable, embedding: Embedding) -> None:
    some = fit(table.take(np.arange(120)), embedding, Guarantee("coverage", 0.3))
    assert any(f"the text of fewer than {ROWS_EACH} training questions" in note for note in some.notes)
    assert some.policy.directions is None


def test_it_is_attached_only_to_what_looks_at_it(fitted: Fitted, embedding: Embedding) -> None:
    found = fitted.policy.directions
    assert found is not None
    bare = replace(fitted.policy, directions=None, embedded=None)
    attached = embedding.attached(bare, found)
    assert attached.directions is found
    assert isinstance(attached.embedded, Embedded)
