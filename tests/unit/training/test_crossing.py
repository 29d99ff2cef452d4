"""Cross-calibration as a whole: no question is set aside, each certifies a member that has not seen it."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cascade.calibration import crossing
from cascade.calibration.calibrating import calibrate_policy
from cascade.calibration.monitoring import watch
from cascade.calibration.samples import folds, rows_a_group
from cascade.calibration.scores import history_of, play, sample_of
from cascade.calibration.verifying import Verdict, verify
from cascade.conformal.arrays import Bools
from cascade.episodes.table import EpisodeTable
from cascade.errors import NotCertifiedError, UsageError
from cascade.factory import read_policy
from cascade.guarantees.base import Guarantee, get
from cascade.guarantees.certificate import digest, make, statement, to_document
from cascade.policies import cross as cross_file
from cascade.policies.artifact import CERTIFICATE_FILE, MODEL_FILE, PolicyArtifact, Threshold, write
from cascade.policies.cross import CrossPolicy, ranks
from cascade.policies.reading import read
from cascade.text import percent
from cascade.training.crossing import Crossed, check_crossable, fit_crossed
from unit.calibration.logs import config, log

COVERAGE, SOLVABLE = Guarantee("coverage", 0.1), Guarantee("solvable", 0.1)
DAY = date(2026, 11, 21)
QUICK = "threshold"


@cache
def table(n: int = 250, seed: int = 0) -> EpisodeTable:
    return log(n, seed, groups=[f"g{row // 2}" for row in range(n)])


def drawn() -> Bools:
    """Return which questions certify: one of each group of two."""
    found = np.zeros(table().n, dtype=np.bool_)
    found[rows_a_group(table())] = True
    return found


def fit(rows: EpisodeTable, guarantee: Guarantee = COVERAGE, **more: Any) -> Crossed:
    return fit_crossed([rows], guarantee, **{"method": QUICK, "today": DAY} | more)


@cache
def fitted(kind: str = "coverage") -> Crossed:
    return fit(table(), Guarantee(kind, 0.1))


def written(found: Crossed, folder: Path) -> dict[str, bytes]:
    write(folder, found.artifact)
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def said(verdict: Verdict, name: str) -> tuple[bool, str]:
    (check,) = [check for check in verdict.checks if check.name == name]
    return check.ok, check.said


# --- what it gives


@pytest.mark.parametrize("kind", ["coverage", "solvable"])
def test_every_question_ranks_for_the_member_that_has_not_seen_it(kind: str) -> None:
    done, rows = fitted(kind), table()
    fold = folds(rows, 5, 0)
    assert len(done.policy.members) == len(done.choices) == 5
    for number, (member, critical) in enumerate(zip(done.policy.members, done.policy.critical, strict=True)):
        fold_rows, mine = np.flatnonzero(fold == number), rows.take(np.flatnonzero((fold == number) & drawn()))
        counted = mine.arrays.solvable if kind == "solvable" else np.ones(mine.n, dtype=np.bool_)
        assert np.array_equal(critical, np.sort(sample_of(mine, member).critical()[counted]))
        assert done.choices[number].n == rows.n - fold_rows.size
        mine = rows.take(fold_rows)  # those that do not certify train no member of their fold either
        assert not set(done.choices[number].sample.table.questions) & set(mine.questions)
        assert not set(done.choices[number].sample.table.groups) & set(mine.groups)


def test_a_fold_changes_nothing_of_its_member() -> None:
    """Truth, signals and costs of a fold may be anything: the member fitted without it stays the same to the bit."""
    rows = table()
    mine = folds(rows, 5, 0) == 2
    arrays = replace(
        rows.arrays,
        correct=np.where(mine[:, None, None], ~rows.arrays.correct, rows.arrays.correct),
        cost=np.where(mine[:, None], 3 * rows.arrays.cost, rows.arrays.cost),
    )
    signals = {name: np.where(mine[:, None], -values, values) for name, values in rows.signals.items()}
    paid = np.where(mine[:, None], 3 * rows.paid, rows.paid)
    policies = [done.policy for done in (fitted(), fit(replace(rows, arrays=arrays, signals=signals, paid=paid)))]
    alone = [CrossPolicy((one.members[2],) * 2, (one.critical[0],) * 2, 0.1) for one in policies]
    files = [cross_file.dumps(replace(one, critical=(np.empty(0),) * 2)) for one in alone]
    assert files[0] == files[1]
    others = [cross_file.dumps(replace(one, critical=(np.empty(0),) * 5)) for one in policies]
    assert others[0] != others[1]


def test_the_certificate_says_both_bounds() -> None:
    (certificate,) = fitted().artifact.certificates
    assert (certificate.kind, certificate.alpha, certificate.kappa, certificate.k) == ("coverage", 0.2, 0.1, None)
    assert (certificate.n, certificate.delta, certificate.keeps_everything) == (125, None, False)
    assert "at least 80 %" in statement(certificate)
    assert "may fall short of it" in statement(certificate)
    assert crossing.bound(0.1) in certificate.assumptions
    assert "at least 80 % are covered" in crossing.bound(0.1)
    assert "As a rule 90 % or more" in crossing.bound(0.1)
    assert fitted().artifact.asked == Guarantee("coverage", 0.2)
    assert set(fitted().artifact.seen.training) == set(table().questions)
    assert set(fitted().artifact.questions) == set(table().take(drawn()).questions)


def test_the_figures_are_those_of_members_on_questions_that_they_have_not_seen() -> None:
    done, rows = fitted(), table()
    fold = folds(rows, 5, 0)
    cost, n = np.full(rows.n, np.nan), int(drawn().sum())
    for number, (member, critical) in enumerate(zip(done.policy.members, done.policy.critical, strict=True)):
        mine = np.flatnonzero((fold == number) & drawn())
        sample = sample_of(rows.take(mine), member)
        scores = sample.scores._replace(next=ranks(critical, sample.scores.next))
        cost[mine] = play(sample.table, scores, Threshold(0.1)).cost
    assert done.calibrated.realised.cost_nano_usd == np.nanmean(cost)
    (segment,) = done.calibrated.segments
    assert segment.found.misses == round((1 - done.calibrated.realised.coverage) * n)
    assert 0.02 < segment.found.misses / n < 0.1  # a rank counts itself, so that the share stays below alpha


def test_the_same_log_and_seed_give_the_same_bytes_in_any_order(tmp_path: Path) -> None:
    order = np.random.default_rng(3).permutation(250)
    first = written(fitted(), tmp_path / "one")
    assert written(fit(table().take(order)), tmp_path / "two") == first
    assert written(fit(table(), seed=1), tmp_path / "three") != first


def test_what_is_written_is_what_was_fitted(tmp_path: Path) -> None:
    write(tmp_path, fitted().artifact)
    held = read_policy(tmp_path)
    assert held.artifact == fitted().artifact
    again, then = sample_of(table(), held.deciding), sample_of(table(), fitted().policy)
    assert np.array_equal(again.scores.next, then.scores.next)
    assert held.deciding.kappa == fitted().policy.kappa == 0.1


def test_fresh_questions_calibrate_it_anew_and_its_own_do_not(tmp_path: Path) -> None:
    write(tmp_path, fitted().artifact)
    held = read_policy(tmp_path, certificates=False)
    anew = calibrate_policy([table(200, 9)], held.policy, held.section, COVERAGE, held=held.artifact)
    write(tmp_path, anew.artifact)
    assert read_policy(tmp_path).artifact.certificates[0].alpha == 0.1
    assert verify(tmp_path, [table(200, 9)]).ok
    with pytest.raises(UsageError, match="were used to make this policy"):
        calibrate_policy([table()], held.policy, held.section, COVERAGE, held=held.artifact)


def test_a_log_of_another_cascade_is_refused() -> None:
    with pytest.raises(UsageError, match="another cascade"):
        fit(table(), config=config(strategy={"kind": "base_guide", "rounds": 2}))


# --- refused


def test_all_that_does_not_go_with_it_is_said_at_once() -> None:
    with pytest.raises(UsageError) as told:
        check_crossable(Guarantee("error", 0.5, 0.1), ["--embed", "--init"])
    for words in (
        "coverage and solvable alone, not error",
        "no delta",
        "twice 0.5",
        "be combined with --embed, --init",
    ):
        assert words in str(told.value)


@pytest.mark.parametrize(
    ("guarantee", "words"),
    [
        (Guarantee("coverage", 0.1, by_segment=True), "one threshold for all segments"),
        (Guarantee("coverage", 0.1, 0.1), "no delta"),
        (Guarantee("f1", 0.1), "not f1"),
        (Guarantee("budget", budget_nano_usd=1, most_nano_usd=2), "not budget; has no budget"),
    ],
)
def test_promises_without_a_bound_are_refused(guarantee: Guarantee, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        fit(table(), guarantee)


def test_too_few_questions_certify_nothing_and_are_told_how_many_would() -> None:
    with pytest.raises(NotCertifiedError, match="46 would be enough") as told:
        fit(log(45))
    assert told.value.needed_n == 46
    assert fit(log(46)).artifact.certificates


def test_records_that_end_early_certify_nothing_where_they_are_many() -> None:
    critical = [np.concatenate([np.full(3, -np.inf), np.zeros(20)])] * 5
    with pytest.raises(NotCertifiedError, match="15 are missed at every threshold") as told:
        crossing.demand(critical, 0.1, get("coverage"))
    assert told.value.needed_n is None
    crossing.demand(critical, 0.2, get("coverage"))


# --- checked again


def test_the_certificate_is_made_again_from_its_data(tmp_path: Path) -> None:
    rows = log(400, 0, groups=[f"g{row // 2}" for row in range(400)])
    write(tmp_path, fit(rows.take(np.arange(300)), SOLVABLE).artifact)
    shuffled = rows.take(np.random.default_rng(7).permutation(400))
    verdict = verify(tmp_path, [shuffled], DAY, config())
    assert verdict.ok, verdict
    assert "the same folds and critical values" in said(verdict, "threshold")[1]
    assert "fit again with the seed 0" in said(verdict, "seen")[1]
    assert "fresh questions lost" in said(verdict, "fresh")[1]
    part = verify(tmp_path, [rows.take(np.arange(200))], DAY)
    assert "cannot be computed again" in said(part, "threshold")[1]


def forged(folder: Path, found: Crossed, policy: CrossPolicy | None = None, seed: int = 0, **fields: Any) -> None:
    """Write the directory with other numbers or another certificate, and every hash computed anew."""
    settings, files = found.artifact.policy, found.artifact.files
    if policy is not None or seed:
        numbers = cross_file.dumps(policy or found.policy)
        settings, files = cross_file.settings(policy or found.policy, numbers, seed), {MODEL_FILE: numbers}
    bare = replace(found.artifact, policy=settings, files=files)
    (old,) = found.artifact.certificates
    one = make(replace(old, policy_sha256=bare.policy_sha256, **fields))
    asked = replace(found.artifact.asked or COVERAGE, alpha=one.alpha, kind=one.kind)
    write(folder, replace(bare, certificates=(one,), asked=asked))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"alpha": 0.1}, "alpha is 0.1 in the certificate, but the policy and the data give 0.2"),
        ({"kappa": 0.05}, "kappa is 0.05"),
        ({"n": 2_000}, "n is 2000"),
        ({"data_sha256": "0" * 64}, "their answers, costs"),
    ],
)
def test_a_forged_certificate_is_seen_through(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    forged(tmp_path, fitted(), **fields)
    verdict = verify(tmp_path, [table()], DAY)
    assert said(verdict, "file")[0]  # every hash is right
    assert not verdict.ok
    assert words in said(verdict, "threshold")[1]


def test_forged_critical_values_and_folds_are_seen_through(tmp_path: Path) -> None:
    critical = fitted().policy.critical
    lower = replace(fitted().policy, critical=(np.sort(critical[0] - 1), *critical[1:]))
    forged(tmp_path, fitted(), lower)
    assert "critical values of member 0 differ from" in said(verify(tmp_path, [table()], DAY), "threshold")[1]
    forged(tmp_path, fitted(), seed=5)
    assert "critical values of member" in said(verify(tmp_path, [table()], DAY), "threshold")[1]
    fewer = CrossPolicy(fitted().policy.members[:3], critical[:3], 0.1)
    forged(tmp_path, fitted(), fewer)
    assert "3 members" in said(verify(tmp_path, [table()], DAY), "threshold")[1]


def test_a_certificate_that_pretends_to_be_of_questions_set_aside_is_seen_through(tmp_path: Path) -> None:
    forged(tmp_path, fitted(), alpha=0.1, k=25)
    verdict = verify(tmp_path, [table()], DAY)
    assert not verdict.ok
    assert "k is 25 in the certificate, but the policy and the data give None" in said(verdict, "threshold")[1]
    forged(tmp_path, fitted(), n=249)
    document = json.loads((tmp_path / CERTIFICATE_FILE).read_text())
    document["questions"] = sorted([*document["questions"], "other"])
    del document["sha256"]
    (tmp_path / CERTIFICATE_FILE).write_text(json.dumps(document | {"sha256": digest(document)}))
    verdict = verify(tmp_path, [table()], DAY)
    assert "calibration questions were also used to choose or fit the policy" in said(verdict, "seen")[1]


def test_audits_watch_the_rate_that_is_proven(tmp_path: Path) -> None:
    write(tmp_path, fitted().artifact)
    held = read_policy(tmp_path)
    found = watch(held.artifact, held.policy, [table(200, 9)], {})
    (one,) = found.watched
    assert one.monitor is not None
    assert (one.monitor.null, one.monitor.alpha) == ("risk", 0.2)
    assert not one.monitor.alarmed


# --- what it promises


@pytest.mark.long
def test_what_is_covered_is_more_than_proven_and_no_less_than_the_rule() -> None:
    """Fits on 60 questions each, held against others; one threshold, so that only the ranks are at work."""
    fresh, covered = log(1_000, 10_000), []
    for seed in range(25):
        policy = fit(log(60, seed), method="depth").policy
        sample = sample_of(fresh, policy)
        covered.append(float(play(fresh, sample.scores, Threshold(policy.kappa)).covered.mean()))
    assert np.mean(covered) > 0.9
    assert min(covered) > 0.8


def test_percentages_of_a_bound_are_exact() -> None:
    assert [percent(2 * share, rest=True) for share in (0.05, 0.07, 0.15)] == ["90 %", "86 %", "70 %"]


def test_a_directory_without_a_certificate_is_not_crossed() -> None:
    assert not crossing.is_crossed(PolicyArtifact({"kind": "learned"}))
    (one,) = fitted().artifact.certificates
    assert to_document(one)["k"] is None
    assert read is not None


def test_a_policy_that_is_calibrated_anew_is_verified_as_what_it_then_is(tmp_path: Path) -> None:
    """A budget has no rank, as cross-calibration has none."""
    asked, fresh = Guarantee("budget", budget_nano_usd=10**9, most_nano_usd=10**9), table(200, 9)
    held = fitted().artifact
    again = calibrate_policy([fresh], fitted().policy, held.policy, asked, held=held, today=DAY)
    write(tmp_path, again.artifact)
    assert verify(tmp_path, [fresh], DAY).ok


def test_it_is_played_on_a_log_of_fewer_steps() -> None:
    whole = history_of(table(50, 9))
    first = {name: getattr(whole, name)[:, :1] for name in ("answer", "confidence", "cost", "tokens")}
    signals = {name: values[:, :1] for name, values in whole.signals.items()}
    short = replace(whole, **first, signals=signals, steps=np.minimum(whole.steps, 1))
    expected = fitted().policy.batch(whole).scores.next[:, :1]
    assert np.array_equal(fitted().policy.batch(short).scores.next, expected)
