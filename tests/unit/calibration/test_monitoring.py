"""Logged audits: which are taken, in which order, and against which certificate they are held."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest

from cascade.calibration.calibrating import calibrate_policy
from cascade.calibration.fingerprint import shown
from cascade.calibration.monitoring import Logged, _drawn_of_groups, logged, watch
from cascade.config import policy_section
from cascade.episodes.schema import GUIDE_ONLY
from cascade.episodes.tabulate import tables_from_rows
from cascade.errors import UsageError
from cascade.factory import policy_of
from cascade.guarantees.base import Guarantee
from cascade.policies.artifact import PolicyArtifact
from cascade.types import Certificate
from unit.calibration.logs import POLICY as PLAIN
from unit.calibration.logs import log
from unit.cli.certified import hard_rows

SECTION = policy_section({"kind": "threshold", "keep": "both", "when": "p_yes"})
POLICY = policy_of(SECTION)


def certified() -> PolicyArtifact:
    tables = tables_from_rows(hard_rows(99, range(0, 40, 2)))
    return calibrate_policy(tables, POLICY, SECTION, Guarantee("coverage", 0.1)).artifact


def test_an_episodes_date_is_that_of_its_earliest_row() -> None:
    def row(created_at: str | None, split: str | None = None, name: str = "q", dataset: str | None = "d") -> dict:
        return {"dataset": dataset, "episode_id": name, "created_at": created_at, "split": split}

    nine = datetime(2026, 11, 21, 9, tzinfo=UTC)
    assert logged([row("2026-11-21T10:00:00Z"), row("2026-11-21T10:00:00+01:00", "audit"), row(None)]) == {
        ("d", "q"): Logged(nine, "audit")
    }
    assert logged([row("2026-11-21T09:00:00")]) == {("d", "q"): Logged(nine, None)}  # UTC where it does not say
    assert logged([row("yesterday"), row("")]) == {("d", "q"): Logged(None, None)}
    assert set(logged([row(None, dataset=None), row(None), row(None, name="other")])) == {
        ("log", "q"),
        ("d", "q"),
        ("d", "other"),
    }


def test_data_sets_are_taken_together_in_the_order_of_asking() -> None:
    late = hard_rows(10, range(10), about="a", dataset="one", signals={"p_yes": 0.95})
    early = [one | {"episode_id": f"b{one['episode_id']}"} for one in hard_rows(30, [], about="b", dataset="two")]
    tables = tables_from_rows([*late, *early])
    about = logged([*late, *early])
    assert len(about) == 40
    found = watch(certified(), POLICY, tables, about)
    (one,) = found.watched
    assert one.monitor is not None
    assert (found.audits, one.monitor.audits, one.monitor.misses) == (40, 40, 10)
    # both logs start at the same minute, so the misses stand among the first twenty audits
    shifted = {key: Logged(datetime(2027 if key[0] == "one" else 2026, 1, 1, tzinfo=UTC), None) for key in about}
    after = watch(certified(), POLICY, tables, shifted).watched[0].monitor
    assert after is not None
    assert after.misses == 10
    assert after.e_value != pytest.approx(one.monitor.e_value)


def test_a_question_is_held_against_the_threshold_of_its_group() -> None:
    rows = [one | {"segment": ("a", "b")[int(one["episode_id"][1:]) % 2]} for one in hard_rows(198, range(0, 80, 2))]
    guarantee = Guarantee("coverage", 0.1, by_segment=True)
    artifact = calibrate_policy(tables_from_rows(rows), POLICY, SECTION, guarantee).artifact
    kappa = {one.segment: one.kappa for one in artifact.certificates}
    assert np.isinf(kappa["b"])
    assert kappa["a"] < 0.5
    # a doubt of a half: group a goes on and is right, group b stops and is missed, no certificate covers a new one
    audits = hard_rows(30, range(30), about="audit", signals={"p_yes": 0.5})
    audits = [one | {"segment": ("a", "b", "new")[int(one["episode_id"][1:]) % 3]} for one in audits]
    found = watch(artifact, POLICY, tables_from_rows(audits), logged(audits))
    assert {one.certificate.segment: one.misses for one in found.watched} == {"a": 0, "b": 10}
    assert {one.audits for one in found.watched} == {10}
    assert (found.audits, found.uncovered, found.uncounted) == (30, 10, 0)
    assert {one.monitor.level for one in found.watched} == {0.05 / 2}


def test_an_audit_without_the_reference_on_record_says_nothing_about_regret() -> None:
    table = log(200)
    one = Certificate("regret", 0.1, 200, "x", delta=0.1, kappa=0.0, made_for={"shown": shown(table)})
    artifact = PolicyArtifact({}, certificates=(one,))
    walk = table.walks[GUIDE_ONLY]
    unknown = np.arange(200) % 4 == 0
    held = replace(table, walks={GUIDE_ONLY: replace(walk, known=walk.known & ~unknown)})
    found = watch(artifact, PLAIN, [held], {})
    whole = watch(artifact, PLAIN, [table.take(~unknown)], {})
    assert (found.uncounted, found.watched[0].audits) == (50, 150)
    assert found.watched[0].misses == whole.watched[0].misses
    lost = replace(table, walks={GUIDE_ONLY: replace(walk, known=np.zeros(200, dtype=np.bool_))})
    with pytest.raises(UsageError, match="has no walk"):
        watch(artifact, PLAIN, [lost], {})


def test_without_a_certificate_there_is_nothing_to_watch() -> None:
    rows = hard_rows(5, [])
    with pytest.raises(UsageError, match="no certificate yet"):
        watch(PolicyArtifact({"kind": "threshold"}), POLICY, tables_from_rows(rows), logged(rows))


def test_of_each_group_one_audit_counts_and_it_need_not_be_the_first() -> None:
    table = log(400, groups=[f"user {row // 4}" for row in range(400)])
    place, counted = np.zeros(400, dtype=np.int64), np.arange(400) % 4 < 3
    drawn = _drawn_of_groups(table, place, counted)
    assert not (drawn & ~counted).any()
    assert drawn.reshape(100, 4).sum(axis=1).tolist() == [1] * 100
    assert all(20 < many < 47 for many in drawn.reshape(100, 4)[:, :3].sum(axis=0))
