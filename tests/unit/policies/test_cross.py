"""Members that decide as one: ranks, the same live and on a log, and their file."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load as arrays_of
from safetensors.numpy import save as bytes_of

from cascade.config import load, policy_section
from cascade.errors import ConfigError, UsageError
from cascade.factory import build_policy, policy_of, read_policy
from cascade.policies.artifact import MODEL_FILE, POLICY_FILE, PolicyArtifact, write
from cascade.policies.cross import CrossPolicy, dumps, loads, ranks, settings
from cascade.policies.reading import read
from unit.policies import cross_made, learned_made

POLICY = cross_made.policy(np.random.default_rng(3))
DATA = dumps(POLICY)
SECTION = settings(POLICY, DATA, 7, [{"chosen": "net benefit"}] * 3)


# --- ranks


def test_a_rank_counts_ties_and_itself() -> None:
    values = np.array([-math.inf, 0.2, 0.5, 0.5, math.inf])
    assert ranks(values, np.array([-math.inf, 0.1, 0.2, 0.5, 0.6, math.inf, math.nan])).tolist() == [
        count / 6 for count in (2, 2, 3, 5, 5, 6, 6)
    ]


def test_without_questions_every_rank_is_one() -> None:
    assert ranks(np.empty(0), np.array([-1.0, 1.0])).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("ties", [False, True])
def test_a_rank_of_a_like_value_is_a_p_value(ties: bool) -> None:
    """P(p ≤ u) ≤ u, and without ties it is ⌊u·(n + 1)⌋ / (n + 1): over all orders of n + 1 values."""
    rng = np.random.default_rng(0)
    values = rng.integers(0, 6, size=20).astype(float) if ties else rng.normal(size=20)
    found = np.array([ranks(np.sort(np.delete(values, at)), values[at]) for at in range(20)])
    for share in np.arange(1, 21) / 20:
        below = float((found <= share + 1e-12).mean())
        assert below <= share + 1e-12
        assert ties or below == pytest.approx(share)


# --- deciding


def test_live_and_on_a_log_the_scores_are_the_same_to_the_bit() -> None:
    for seed in range(6):
        rng = np.random.default_rng(seed)
        policy, seen = cross_made.policy(rng, 2 + seed % 4), learned_made.walks(rng, 60)
        batch = policy.batch(seen.history)
        assert batch.confidence is None
        for row, steps in enumerate(seen.steps):
            for number in range(1, len(steps) + 1):
                live = policy.scores(seen.observation(row, number))
                assert float(batch.scores.next[row, number - 1]).hex() == float(live.next).hex()
                present = seen.history.answer[row, number - 1] >= 0
                assert tuple(batch.scores.candidates[row, number - 1][present]) == live.candidates
                assert live.confidences is None
        beyond = ~(np.arange(seen.horizon) < seen.history.steps[:, None])
        assert (batch.scores.next[beyond] == -np.inf).all()
        assert (batch.scores.candidates[seen.history.answer < 0] == -np.inf).all()


def test_every_answer_is_kept_and_the_last_step_is_the_last() -> None:
    seen = learned_made.walks(np.random.default_rng(1), 40)
    scores = POLICY.batch(seen.history).scores
    assert (scores.candidates[seen.history.answer >= 0] == np.inf).all()
    assert (scores.next[:, -1] == -np.inf).all()
    there = seen.history.steps > 1
    assert ((scores.next[there, 0] > 0) & (scores.next[there, 0] <= 1)).all()


def test_the_mean_rank_never_exceeds_any_bound_on_its_members() -> None:
    """What the proof rests on: the mean of ranks at the lowest scores is no more than the lowest mean of ranks."""
    rng = np.random.default_rng(4)
    values = [np.sort(rng.normal(size=17)) for _ in range(5)]
    walks = rng.normal(size=(300, 6, 5))  # questions, steps, members
    each = sum(ranks(values[k], walks[:, :, k]) for k in range(5)) / 5
    at_lowest = sum(ranks(values[k], walks[:, :, k].min(axis=1)) for k in range(5)) / 5
    assert (at_lowest <= each.min(axis=1)).all()


def test_it_says_what_it_looks_at() -> None:
    assert POLICY.reads == tuple(sorted({name for one in POLICY.members for name in one.reads}))
    assert set(POLICY.needs) == {name for one in POLICY.members for name in one.needs}
    assert (POLICY.sources, POLICY.horizon, POLICY.asks) == (learned_made.PAIR, 4, ())
    assert POLICY.fitted_on.strangers(("base", "guide")) == []
    assert POLICY.fitted_on.strangers(("base", "other")) == ["other"]


def test_what_does_not_fit_is_refused() -> None:
    rng = np.random.default_rng(5)
    one, values = POLICY.members[0], POLICY.critical[0]
    ladder, judge = cross_made.member(rng, learned_made.LADDER), learned_made.policy(rng)
    cases: list[tuple[tuple[Any, ...], tuple[Any, ...], str]] = [
        ((one,), (values,), "at least two members"),
        ((one, one), (values,), "critical values for each"),
        ((one, ladder), (values, values), "same steps and sources"),
        ((one, judge), (values, values), "must keep every answer; its members must have no confidences"),
        ((one, one), (np.array([0.2, 0.1]), values), "ascending"),
        ((one, one), (np.array([0.2, np.nan]), values), "ascending"),
    ]
    for members, critical, said in cases:
        with pytest.raises(UsageError, match=said):
            CrossPolicy(members, critical, 0.1)


# --- its file


def test_a_policy_comes_back_as_it_was() -> None:
    for seed in range(10):
        one = cross_made.policy(np.random.default_rng(seed), 2 + seed % 4)
        data = dumps(one)
        again = loads(data, settings(one, data, 0))
        assert again.kappa == one.kappa
        assert all(map(np.array_equal, again.critical, one.critical))
        seen = learned_made.walks(np.random.default_rng(9), 30).history
        assert np.array_equal(again.batch(seen).scores.next, one.batch(seen).scores.next)
        assert dumps(again) == data


def test_the_settings_survive_being_read() -> None:
    assert policy_section(SECTION, held=True).model_dump(mode="json") == SECTION
    assert json.loads(json.dumps(SECTION)) == SECTION


def test_a_directory_is_read_as_the_policy_in_it(tmp_path: Path) -> None:
    write(tmp_path, PolicyArtifact(SECTION, files={MODEL_FILE: DATA}))
    held = read_policy(tmp_path)
    assert isinstance(held.policy, CrossPolicy)
    assert (held.policy.kappa, len(held.policy.members)) == (0.1, 3)


def test_any_byte_that_is_changed_is_refused(tmp_path: Path) -> None:
    write(tmp_path, PolicyArtifact(SECTION, files={MODEL_FILE: DATA}))
    rng = np.random.default_rng(0)
    for _ in range(200):
        changed = bytearray(DATA)
        changed[int(rng.integers(len(DATA)))] ^= int(rng.integers(1, 256))
        (tmp_path / MODEL_FILE).write_bytes(bytes(changed))
        with pytest.raises(ConfigError):
            read(tmp_path)


def test_it_cannot_be_written_out() -> None:
    with pytest.raises(ConfigError, match="cannot be given by its settings"):
        policy_section(SECTION)
    with pytest.raises(ConfigError, match="in its directory"):
        policy_of(policy_section(SECTION, held=True))


def problems(change: Callable[[dict[str, Any]], Any], **fields: Any) -> str:
    """Return what is said of the policy's arrays after a change, under the hash that they then have."""
    arrays = dict(arrays_of(DATA))
    change(arrays)
    data = bytes_of(arrays)
    with pytest.raises(ConfigError) as caught:
        loads(data, settings(POLICY, data, 7) | fields)
    return "\n".join(caught.value.problems)


def test_what_is_wrong_with_the_numbers_is_reported() -> None:
    values = np.array([0.3, 0.1])
    changes: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
        (lambda held: held.pop("member1.critical"), "member1.critical: is missing"),
        (lambda held: held.update({"member1.critical": values}), "critical values must be ascending numbers"),
        (
            lambda held: held.update({"member1.critical": np.array([np.nan])}),
            "member1.critical: its entries must be num",
        ),
        (
            lambda held: held.update({"member1.critical": values.astype(np.float32)}),
            "its type must be float64, not float32",
        ),
        (lambda held: held.pop("member0.layout"), "member0.layout: is missing"),
        (lambda held: held.update({"member3.critical": values}), "member3.critical: it has no such tensor"),
        (lambda held: held.update({"critical": values}), "critical: it has no such tensor"),
    ]
    for change, said in changes:
        assert said in problems(change)


def test_members_are_in_one_file() -> None:
    other = {**SECTION["members"][0], "model": {"file": MODEL_FILE, "sha256": "0" * 64}}
    with pytest.raises(ConfigError, match=r"members\[0\].model.sha256: all members must be in one file"):
        loads(DATA, SECTION | {"members": [other, *SECTION["members"][1:]]})


def test_a_policy_that_cannot_be_read_again_is_not_written() -> None:
    design = learned_made.design(np.random.default_rng(0), 1)
    broken = learned_made.linear(np.random.default_rng(0), design)
    broken = replace(broken, intercept=math.nan)
    rules = POLICY.members[0].rules
    one = replace(POLICY.members[0], rules=(replace(rules[0], next=broken), *rules[1:]))
    with pytest.raises(UsageError, match="cannot be written"):
        dumps(replace(POLICY, members=(one, *POLICY.members[1:])))


def test_a_file_that_another_section_names_is_refused(tmp_path: Path) -> None:
    write(tmp_path, PolicyArtifact(SECTION, files={MODEL_FILE: DATA}))
    document = json.loads((tmp_path / POLICY_FILE).read_text())
    document["policy"]["members"].pop()
    (tmp_path / POLICY_FILE).write_text(json.dumps(document))
    with pytest.raises(ConfigError, match="no such tensor"):
        read_policy(tmp_path)


def test_a_strategy_that_it_does_not_fit_refuses_it_once(tmp_path: Path) -> None:
    write(tmp_path, PolicyArtifact(SECTION, files={MODEL_FILE: DATA}))
    models = {"models": {"base": "small", "guide": "large"}, "provider": "fake", "policy": str(tmp_path)}
    assert isinstance(build_policy(load(models | {"strategy": {"kind": "base_guide", "rounds": 4}})), CrossPolicy)
    with pytest.raises(ConfigError) as told:
        build_policy(load(models | {"strategy": {"kind": "base_guide", "rounds": 2}}))
    assert [said.partition(";")[0] for said in told.value.problems] == [
        "policy.horizon: it was fitted on 4 steps, and the strategy has 2"
    ]
