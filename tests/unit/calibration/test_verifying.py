"""A certificate is believed only after it was made again from the data, or held against fresh questions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cascade.calibration.calibrating import calibrate_policy
from cascade.calibration.scores import Sample, sample_of
from cascade.calibration.verifying import Verdict, on_fresh, verify
from cascade.config import load
from cascade.episodes.table import EpisodeTable
from cascade.guarantees.base import Guarantee
from cascade.guarantees.certificate import digest, make, to_document
from cascade.policies.artifact import CERTIFICATE_FILE, PolicyArtifact, Seen, write
from cascade.policies.reading import read
from cascade.types import Certificate
from unit.calibration.logs import POLICY, SECTION, config, log

TODAY = date(2026, 11, 21)
ASKED = {
    "coverage": Guarantee("coverage", 0.1),
    "pac": Guarantee("coverage", 0.1, 0.1),
    "segments": Guarantee("coverage", 0.1, by_segment=True),
    "error": Guarantee("error", 0.5, 0.1),
    "abstain": Guarantee("error", 0.3, 0.1, abstain=True),
    "regret": Guarantee("regret", 0.3, 0.1),
}


@cache
def full(n: int, seed: int = 0) -> EpisodeTable:
    """Return a log in three segments."""
    return log(n, seed, segments=["ab"[row % 2] if row % 10 else "c" for row in range(n)])


def made(folder: Path, table: EpisodeTable, guarantee: Guarantee, **more: Any) -> PolicyArtifact:
    done = calibrate_policy([table], POLICY, SECTION, guarantee, today=TODAY, **({"config": config()} | more))
    write(folder, done.artifact)
    return done.artifact


def said(verdict: Verdict, name: str) -> tuple[bool, str]:
    found = [check for check in verdict.checks if check.name == name]
    assert found, verdict
    return all(check.ok for check in found), "; ".join(check.said for check in found)


@pytest.mark.parametrize("name", sorted(ASKED))
def test_a_certificate_is_made_again_from_its_data(tmp_path: Path, name: str) -> None:
    table = full(800)
    artifact = made(tmp_path, table.take(np.arange(600)), ASKED[name])
    shuffled = table.take(np.random.default_rng(7).permutation(800))
    verdict = verify(tmp_path, [shuffled], TODAY, config(budget={"per_question": 0.003}))
    assert verdict.ok, verdict
    assert "give the same thresholds" in said(verdict, "threshold")[1]
    assert "fresh questions" in said(verdict, "fresh")[1]
    assert any(check.name == "path" for check in verdict.checks) == (artifact.path is not None)
    assert read(tmp_path).asked == ASKED[name]


def resealed(folder: Path, **fields: Any) -> None:
    """Forge a certificate: other fields, and every hash computed anew."""
    artifact = read(folder)
    forged = [make(replace(one, **fields)) for one in artifact.certificates]
    document: dict[str, Any] = json.loads((folder / CERTIFICATE_FILE).read_text("utf-8"))
    del document["sha256"]
    document["certificates"] = [to_document(one) for one in forged]
    document["asked"] |= {name: value for name, value in fields.items() if name in document["asked"]}
    (folder / CERTIFICATE_FILE).write_text(json.dumps(document | {"sha256": digest(document)}), "utf-8")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"kappa": 0.9}, "kappa is 0.9 in the certificate"),
        ({"n": 2_000}, "n is 2000"),
        ({"alpha": 0.05}, "k is 30 in the certificate, but the data give 15"),
        ({"keeps_everything": True}, "keeps_everything is True"),
        ({"data_sha256": "0" * 64}, "their answers, costs"),
    ],
)
def test_a_forged_certificate_is_seen_through(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    table = full(300)
    made(tmp_path, table, ASKED["coverage"])
    assert verify(tmp_path, [table], TODAY).ok
    resealed(tmp_path, **fields)
    verdict = verify(tmp_path, [table], TODAY)
    assert said(verdict, "file")[0]  # every hash is right
    fine, words_found = said(verdict, "threshold")
    assert not fine
    assert words in words_found


def test_a_forged_share_of_questions_that_no_step_answers_is_seen_through(tmp_path: Path) -> None:
    table = full(300)
    artifact = made(tmp_path, table, ASKED["coverage"])
    assert artifact.unanswered == np.count_nonzero(~table.arrays.correct.any(axis=(1, 2)))
    for unanswered, fine in ((artifact.unanswered + 1, False), (None, True)):  # older certificates do not say it
        write(tmp_path, replace(artifact, unanswered=unanswered))
        assert said(verify(tmp_path, [table], TODAY), "threshold")[0] is fine


def test_what_an_older_certificate_does_not_say_of_the_models_the_log_does(tmp_path: Path) -> None:
    names = ("small", "large", "third", "last")
    rungs = replace(full(300), models={name: (name,) for name in names}, step_models=names)
    artifact = made(tmp_path, rungs, ASKED["coverage"], config=None)
    then = {**artifact.certificates[0].made_for, "step_models": None}
    write(tmp_path, replace(artifact, certificates=(make(replace(artifact.certificates[0], made_for=then)),)))
    for order, fine in ((names, True), (names[::-1], False)):
        ladder = {"models": dict(zip(names, names, strict=True)), "strategy": {"kind": "ladder", "models": order}}
        ok, words = said(verify(tmp_path, [rungs], TODAY, load(ladder)), "cascade")
        assert ok is fine
        assert ("the order of the models is last, then third" in words) is not fine


def test_a_forged_path_is_seen_through(tmp_path: Path) -> None:
    table = full(900)
    artifact = made(tmp_path, table, ASKED["error"])
    assert artifact.path is not None
    kept = replace(artifact, path=artifact.path[-1:], certificates=())
    certificates = [make(replace(one, policy_sha256=kept.policy_sha256)) for one in artifact.certificates]
    write(tmp_path, replace(kept, certificates=tuple(certificates)))
    verdict = verify(tmp_path, [table], TODAY)
    assert said(verdict, "file")[0]
    assert not said(verdict, "path")[0]
    for forged in ({}, {**(artifact.ordered_for or {}), "alpha": "x"}, {**(artifact.ordered_for or {}), "kind": []}):
        odd = replace(kept, ordered_for=forged)
        again = [make(replace(one, policy_sha256=odd.policy_sha256)) for one in artifact.certificates]
        write(tmp_path, replace(odd, certificates=tuple(again)))
        assert not said(verify(tmp_path, [table], TODAY), "path")[0]


def test_a_path_may_have_been_ordered_for_another_promise(tmp_path: Path) -> None:
    table = full(1_200)
    first = made(tmp_path, table.take(np.arange(600)), ASKED["abstain"])
    later = table.take(np.arange(600, 1_200))
    artifact = made(tmp_path, later, Guarantee("regret", 0.35, 0.2, abstain=True), held=first)
    assert artifact.ordered_for == first.ordered_for
    verdict = verify(tmp_path, [table], TODAY)
    assert verdict.ok, verdict
    assert "other questions order the same" in said(verdict, "path")[1]
    missing = verify(tmp_path, [later], TODAY)
    assert "this order is not recomputed" in said(missing, "path")[1]


@pytest.mark.parametrize("delta", [None, 0.1])
def test_segments_that_are_too_small_for_a_certificate_are_found_so_again(tmp_path: Path, delta: float | None) -> None:
    table = log(60, segments=["a"] * 40 + [f"g{row // 3}" for row in range(20)])
    artifact = made(tmp_path, table, Guarantee("coverage", 0.1, delta, by_segment=True))
    assert [(one.segment, one.n) for one in artifact.certificates] == [("a", 40)]
    assert len(artifact.questions) == 60
    verdict = verify(tmp_path, [table], TODAY)
    assert verdict.ok, verdict
    assert "the 60 questions that set it give the same" in said(verdict, "threshold")[1]


def test_a_question_of_two_segments_counts_in_both_again(tmp_path: Path) -> None:
    table = log(60, segments=[f"g{row // 30}" for row in range(60)])
    twice = replace(table, questions=(*table.questions[:57], *table.questions[:3]))
    artifact = made(tmp_path, twice, ASKED["segments"])
    assert [one.n for one in artifact.certificates] == [30, 30]
    assert len(artifact.questions) == 57
    verdict = verify(tmp_path, [twice], TODAY)
    assert verdict.ok, verdict


def test_what_was_asked_for_must_be_on_record(tmp_path: Path) -> None:
    artifact = made(tmp_path, full(100), ASKED["coverage"])
    write(tmp_path, replace(artifact, asked=None))
    verdict = verify(tmp_path, [full(100)], TODAY)
    assert said(verdict, "threshold") == (False, "the file does not name the requested guarantee: calibrate again")


def test_a_path_ordered_after_another_is_ordered_again(tmp_path: Path) -> None:
    table = full(1_200)
    first = made(tmp_path, table.take(np.arange(500)), ASKED["error"])
    second = made(tmp_path, table.take(np.arange(500, 1_200)), ASKED["abstain"], held=first)
    assert set(first.seen.selection) <= set(second.seen.training)
    assert not set(first.seen.selection) & set(second.seen.selection)
    verdict = verify(tmp_path, [table], TODAY)
    assert verdict.ok, verdict
    assert "other questions order the same" in said(verdict, "path")[1]


def test_a_file_that_was_edited_ends_the_check(tmp_path: Path) -> None:
    made(tmp_path, full(100), ASKED["coverage"])
    file = tmp_path / CERTIFICATE_FILE
    file.write_text(file.read_text("utf-8").replace('"n": 100', '"n": 101'), "utf-8")
    verdict = verify(tmp_path, [full(100)], TODAY)
    assert [check.name for check in verdict.checks] == ["file"]
    assert not verdict.ok
    assert "changed after it was made" in verdict.checks[0].said


def test_a_directory_without_a_certificate_is_not_verified(tmp_path: Path) -> None:
    write(tmp_path, PolicyArtifact(SECTION.model_dump(mode="json")))
    assert not verify(tmp_path, [full(10)], TODAY).ok
    assert not verify(tmp_path / "nowhere", [full(10)], TODAY).ok


def test_a_policy_of_no_known_kind_is_not_verified(tmp_path: Path) -> None:
    write(tmp_path, PolicyArtifact({"kind": "thresholds"}))
    verdict = verify(tmp_path, [full(10)], TODAY)
    assert "thresholds" in said(verdict, "file")[1]


@pytest.mark.parametrize(("today", "fine"), [("2026-12-21", True), ("2026-12-22", False)])
def test_an_expired_certificate_fails(tmp_path: Path, today: str, fine: bool) -> None:
    made(tmp_path, full(100), ASKED["coverage"], expires_days=30)
    verdict = verify(tmp_path, [full(100)], date.fromisoformat(today))
    assert said(verdict, "expiry")[0] is fine
    assert "2026-12-21" in said(verdict, "expiry")[1]
    assert verdict.ok is fine


def test_a_log_of_another_model_fails(tmp_path: Path) -> None:
    made(tmp_path, full(100), ASKED["coverage"])
    other = replace(full(100), models={"base": ("small",), "guide": ("larger",)})
    fine, words = said(verify(tmp_path, [other], TODAY), "cascade")
    assert not fine
    assert "in the log, guide is larger; the certificate was made for large" in words


def test_a_configuration_of_another_cascade_fails(tmp_path: Path) -> None:
    made(tmp_path, full(100), ASKED["coverage"])
    verdict = verify(tmp_path, [full(100)], TODAY, config(strategy={"rounds": 2}))
    fine, words = said(verdict, "cascade")
    assert not fine
    assert "as configured, the strategy is" in words


def test_what_is_not_on_record_is_said(tmp_path: Path) -> None:
    made(tmp_path, full(100), ASKED["coverage"], config=None)
    fine, words = said(verify(tmp_path, [full(100)], TODAY), "cascade")
    assert fine
    assert "not recorded, and not checked: the strategy, the prices" in words


def test_a_log_without_models_is_not_said_to_be_compared(tmp_path: Path) -> None:
    made(tmp_path, full(100), ASKED["coverage"])
    silent = replace(full(100), models={})
    assert "not compared, since the log does not say" in said(verify(tmp_path, [silent], TODAY), "cascade")[1]
    assert "not compared" not in said(verify(tmp_path, [full(100)], TODAY), "cascade")[1]
    assert (
        said(verify(tmp_path, [silent], TODAY), "seen")[1]
        == "no question of this log was used to choose or fit the policy"
    )


@pytest.mark.parametrize(
    ("name", "words"),
    [("coverage", "the 100 questions that set it give the same"), ("segments", "judgements or segments")],
)
def test_other_segments_matter_to_promises_by_segment_alone(tmp_path: Path, name: str, words: str) -> None:
    made(tmp_path, full(100), ASKED[name])
    verdict = verify(tmp_path, [replace(full(100), segments=("d",) * 100)], TODAY)
    assert words in said(verdict, "threshold")[1]
    assert verdict.ok is (name == "coverage")


def test_questions_that_made_the_policy_are_set_aside(tmp_path: Path) -> None:
    table = full(300)
    before = PolicyArtifact({}, Seen(training=table.questions[:50]))
    made(tmp_path, table.take(np.arange(50, 200)), ASKED["coverage"], held=before)
    verdict = verify(tmp_path, [table], TODAY)
    assert verdict.ok
    assert "50 questions" in said(verdict, "seen")[1]
    assert "of 100 fresh questions" in said(verdict, "fresh")[1]


def test_calibration_questions_that_made_the_policy_fail(tmp_path: Path) -> None:
    table = full(200)
    artifact = made(tmp_path, table, ASKED["coverage"])
    known = replace(artifact, seen=Seen(training=table.questions[:3]), certificates=())
    forged = [make(replace(one, policy_sha256=known.policy_sha256)) for one in artifact.certificates]
    write(tmp_path, replace(known, certificates=tuple(forged)))
    fine, words = said(verify(tmp_path, [table], TODAY), "seen")
    assert not fine
    assert words.startswith("3 calibration questions")


def test_the_same_questions_with_other_answers_fail(tmp_path: Path) -> None:
    table = full(200)
    made(tmp_path, table, ASKED["coverage"])
    wrong = replace(table, arrays=replace(table.arrays, correct=~table.arrays.correct))
    assert not said(verify(tmp_path, [wrong], TODAY), "threshold")[0]


def test_some_of_the_calibration_questions_prove_nothing(tmp_path: Path) -> None:
    table = full(300)
    made(tmp_path, table.take(np.arange(200)), ASKED["coverage"])
    some = verify(tmp_path, [table.take(np.arange(100, 300))], TODAY)
    assert some.ok
    assert said(some, "threshold") == (
        True,
        "100 of 200 calibration questions are in this log: the threshold cannot be computed again",
    )
    nothing = verify(tmp_path, [table.take(np.arange(100))], TODAY)
    assert not nothing.ok


# --- held to account on fresh questions


def told(certificates: Sequence[Certificate], table: EpisodeTable) -> list[tuple[bool, str]]:
    return [tuple(one) for one in on_fresh(certificates, sample_of(table, POLICY))]


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("coverage", {"kappa": float("inf")}),
        ("pac", {"kappa": float("inf")}),
        ("error", {"alpha": 0.2}),
        ("regret", {"alpha": 0.1}),
    ],
)
def test_a_broken_promise_is_refuted(tmp_path: Path, name: str, fields: dict[str, Any]) -> None:
    table = full(1_400)
    artifact = made(tmp_path, table.take(np.arange(600)), ASKED[name])
    fresh = table.take(np.arange(600, 1_400))
    assert all(ok for ok, _ in told(artifact.certificates, fresh))
    broken = told([replace(artifact.certificates[0], **fields)], fresh)
    assert not all(ok for ok, _ in broken)
    assert any("is refuted" in words for _, words in broken)


def test_fresh_questions_of_segments_without_a_certificate_test_nothing(tmp_path: Path) -> None:
    table = log(200, segments=["a" if row % 10 else f"s{row % 5}{row}" for row in range(200)])
    artifact = made(tmp_path, table, ASKED["segments"])
    (words,) = [text for _, text in told(artifact.certificates, log(200, 1, segments=table.segments))]
    assert words.startswith("segment a:")
    assert "of 180 fresh questions lost" in words


def test_what_is_unknown_is_not_held_against_a_promise(tmp_path: Path) -> None:
    table = full(400)
    artifact = made(tmp_path, table, ASKED["coverage"])
    fresh = full(400, 1)
    unknown = replace(fresh, arrays=replace(fresh.arrays, complete=np.zeros(400, dtype=np.bool_)))
    lost = [int(told(artifact.certificates, one)[0][1].split()[0]) for one in (fresh, unknown)]
    assert lost[0] == lost[1] > 0


@pytest.mark.parametrize("name", ["coverage", "pac", "error"])
def test_where_unlogged_calls_would_decide_the_check_fails(tmp_path: Path, name: str) -> None:
    """0.5.0 verified a broken promise on a log that lacks most of the calls."""
    artifact = made(tmp_path, full(400), ASKED[name])
    fresh = full(400, 1)
    arrays, on = fresh.arrays, np.arange(fresh.arrays.horizon) < 1
    (one,) = artifact.certificates
    for rows in (0, 360):
        ends = np.arange(400) < rows
        kept = ~ends[:, None] | on
        cut = replace(
            arrays,
            answer=np.where(kept[:, :, None], arrays.answer, -1),
            correct=arrays.correct & kept[:, :, None] & ~ends[:, None, None],
            cost=np.where(kept, arrays.cost, 0),
            steps=np.where(ends, 1, arrays.steps),
            complete=arrays.complete & ~ends,
        )
        ((fine, words),) = told([one], replace(fresh, arrays=cut))
        undecided = "is refuted if what is unknown counts against it, and is not if nothing unknown does" in words
        assert (fine, undecided) == (rows == 0, rows > 0), words


def test_a_kept_promise_is_seldom_refuted() -> None:
    asked, whole = Guarantee("coverage", 0.1), sample_of(log(1_200), POLICY)
    refuted = []
    for seed in range(200):
        order = np.random.default_rng(seed).permutation(1_200)
        mine, fresh = (
            Sample(whole.table.take(rows), whole.scores.take(rows), whole.levels.take(rows))
            for rows in (order[:50], order[50:250])
        )
        (found,) = asked.rules.calibrate(mine, asked, None)
        one = Certificate("coverage", 0.1, found.n, "", k=found.k, kappa=found.kappa)
        refuted += [not ok for ok, _ in on_fresh([one], fresh)]
    # 200 tests at 5 %: 20 or more would come with a probability of 0.3 %. It is 5: the questions come from a pool of
    # 1,200. A binomial test at alpha, which knows nothing of the luck of the calibration, refutes 32.
    assert 0 < sum(refuted) < 20
