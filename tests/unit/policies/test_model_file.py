"""A learned policy's file: the same bytes for the same policy, read as it was written, or refused with every reason."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from cases import each
from safetensors.numpy import load as arrays_of
from safetensors.numpy import save as bytes_of

from cascade.errors import ConfigError, UsageError
from cascade.factory import read_policy
from cascade.policies.artifact import MODEL_FILE, POLICY_FILE, PolicyArtifact, write
from cascade.policies.design import Design
from cascade.policies.estimators import Constant, Linear, Logistic, Signal
from cascade.policies.features import FeatureSet
from cascade.policies.learned import METHODS, LearnedPolicy, StepRule
from cascade.policies.learned_config import LearnedConfig
from cascade.policies.model_file import dumps, load, loads, save, settings
from cascade.policies.reading import read
from unit.policies import learned_made as made

RNG = np.random.default_rng(11)
POLICY = made.policy(RNG)
DATA = dumps(POLICY)
SECTION = settings(POLICY, DATA, {"chosen": "net_benefit", "cost_at_matched_coverage_usd": 0.0123})


DOUBT = Signal(0, -1.0)


def small(onward: Any = DOUBT, **fields: Any) -> LearnedPolicy:
    """Return a policy of two steps that goes on while P(yes) is low."""
    features = FeatureSet(("p_yes",), made.PAIR)
    design = Design(np.zeros(1), np.ones(1), np.zeros(1), np.ones(1), np.array([]), np.empty((0, 2)))
    chance = Logistic(Linear(design, np.ones(1), 0.0))
    nobody = (None, None)
    rules = (StepRule(features, onward, nobody, nobody), StepRule(features, None, nobody, (chance, None), chance))
    return LearnedPolicy("threshold", rules, **fields)


def read_again(change: Callable[[dict[str, Any]], None], section: Mapping[str, Any] | None = None) -> LearnedPolicy:
    """Return what is read of the small policy's arrays after a change to them, under the hash that they then have."""
    arrays = dict(arrays_of(dumps(small())))
    change(arrays)
    data = bytes_of(arrays)
    return loads(data, settings(small(), data) | dict(section or {}))


def problems(change: Callable[[dict[str, Any]], Any], **section: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        read_again(change, section)
    return "\n".join(caught.value.problems)


def keep(_: object) -> None:
    """Change nothing."""


def same_scores(one: LearnedPolicy, other: LearnedPolicy) -> bool:
    seen = made.walks(np.random.default_rng(5), 40)
    a, b = one.batch(seen.history), other.batch(seen.history)
    equal = [np.array_equal(x, y) for x, y in zip(a.scores, b.scores, strict=True)]
    return all(equal) and np.array_equal(a.confidence, b.confidence, equal_nan=True)  # type: ignore[arg-type]


def test_a_policy_comes_back_as_it_was() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        one = made.policy(rng, made.LADDER if seed % 2 else made.PAIR)
        again = loads(dumps(one), settings(one, dumps(one)))
        assert (again.method, again.kappa, again.sources) == (one.method, one.kappa, one.sources)
        assert [rule.features for rule in again.rules] == [rule.features for rule in one.rules]
        if not seed % 2:
            assert same_scores(one, again)
        assert dumps(again) == dumps(one)


def test_the_same_policy_is_the_same_bytes() -> None:
    twice = [dumps(made.policy(np.random.default_rng(4))) for _ in range(2)]
    assert twice[0] == twice[1]
    shuffled = dict(sorted(arrays_of(DATA).items(), reverse=True))
    assert bytes_of(shuffled) == DATA
    assert settings(POLICY, DATA) == settings(POLICY, DATA)
    assert b"__metadata__" not in DATA  # its order is not fixed


def test_scorers_of_one_design_share_it_again() -> None:
    again = read_again(keep)
    rule = again.rules[1]
    assert isinstance(rule.incumbent, Logistic)
    assert isinstance(rule.confidence[0], Logistic)
    assert rule.incumbent.linear.design is rule.confidence[0].linear.design


def test_every_method_has_settings_that_are_read() -> None:

    assert get_args(LearnedConfig.model_fields["method"].annotation) == METHODS


def test_the_settings_survive_being_read() -> None:
    """Calibrating again writes the settings as they were read: the policy's hash stays."""
    from cascade.config import policy_section

    assert policy_section(SECTION, held=True).model_dump(mode="json") == SECTION
    assert json.loads(json.dumps(SECTION)) == SECTION


# --- refused


def test_any_byte_that_is_changed_is_refused() -> None:
    rng = np.random.default_rng(0)
    for _ in range(500):
        place, other = int(rng.integers(len(DATA))), int(rng.integers(1, 256))
        edited = DATA[:place] + bytes([DATA[place] ^ other]) + DATA[place + 1 :]
        with pytest.raises(ConfigError, match="it is another file, or it was changed after it was made"):
            loads(edited, SECTION)


def test_whatever_a_file_holds_it_is_refused_or_a_policy() -> None:
    """Edited files with the hash that they then have: no error but ConfigError, and no score that is not a number."""
    rng = np.random.default_rng(1)
    data, seen = dumps(small()), made.walks(rng, 5)
    refused = 0
    for _ in range(1_500):
        edited = bytearray(data)
        for _ in range(int(rng.integers(1, 4))):
            edited[int(rng.integers(len(data)))] = int(rng.integers(256))
        cut = bytes(edited[: int(rng.integers(len(data) // 2, len(data) + 1))] if rng.random() < 0.2 else edited)
        try:
            found = loads(cut, settings(small(), cut))
        except ConfigError:
            refused += 1
        else:
            assert not np.isnan(found.batch(seen.history).scores.next).any()
    assert 300 < refused < 1_500


@pytest.mark.parametrize("size", [0, 7, 8, 100, -1])
def test_a_truncated_file_is_refused(size: int) -> None:
    cut = DATA[:size]
    with pytest.raises(ConfigError, match="not a safetensors file"):
        loads(cut, settings(POLICY, cut))


@each(
    "change, said",
    [
        (lambda held: held.pop("layout"), "layout: is missing"),
        (lambda held: held.update(layout=np.array(0)), "layout: it is 0, and this release reads 1"),
        (lambda held: held.update(layout=np.array(2)), "its form is 2, and this release reads up to 1"),
        (lambda held: held.update(odd=np.zeros(1)), "odd: it has no such tensor"),
        (
            lambda held: held.update({"step3.next.constant.number": np.array(0.5)}),
            "step3.next.constant.number: it has no",
        ),
        (
            lambda held: held.update({"step1.later.constant.number": np.array(0.5)}),
            "step1.later.constant.number: it has no",
        ),
        (lambda held: held.update({"step1.next.constant.number": np.array(0.5)}), "there must be one scorer here"),
        (lambda held: held.update({"step1.include.0.forest.x": np.array(0.5)}), "there are forest"),
        (
            lambda held: held.update({"step1.include.2.constant.number": np.array(0.5)}),
            "include.2.constant.number: it has no",
        ),
        (
            lambda held: held.update({"step2.next.constant.number": np.array(0.5)}),
            "step2.next: it must be at every step",
        ),
        (
            lambda held: held.update({"step1.incumbent.constant.number": np.array(0.5)}),
            "it must not be at the first step",
        ),
        (lambda held: [held.pop(name) for name in list(held) if ".next." in name], "step1.next: it must be at every"),
        (lambda held: held.pop("step1.next.signal.sign"), "step1.next.signal.sign: is missing"),
        (lambda held: held.update({"step1.next.signal.feature": np.array(1)}), "feature must be one of 1"),
        (
            lambda held: held.update({"step2.incumbent.logistic.linear.weights": np.array([math.nan])}),
            "step2.incumbent.logistic.linear.weights: its numbers must be finite",
        ),
        (
            lambda held: held.update({"step2.incumbent.logistic.linear.weights": np.ones(1, dtype=np.float32)}),
            "its type must be float64, not float32",
        ),
    ],
)
def test_tensors_that_make_no_policy_are_refused(change: Callable[[dict[str, Any]], Any], said: str) -> None:
    assert said in problems(change)


def feature(**fields: Any) -> dict[str, Any]:
    return {"step": 1, "name": "p_yes", "unit": "probability", "low": 0.0, "high": 1.0} | fields


@pytest.mark.parametrize(
    ("features", "said"),
    [
        ([feature(unit="nats"), feature(step=2)], "p_yes was nats from 0 to 1, and is probability from 0 to 1"),
        ([feature(high=None), feature(step=2)], "p_yes was probability from 0 to ∞, and is"),
        ([feature(name="p_yess"), feature(step=2)], "p_yess was probability from 0 to 1, and is unknown"),
        ([feature(), feature(step=3)], "step: 3 is beyond the 2 steps"),
        ([feature(), feature(), feature(step=2)], "p_yes appears 2 times"),
        (
            [feature(name="repeats[judge]", unit="0 or 1"), feature(step=2)],
            "names a place that is not one of",
        ),
        ([feature()], "feature must be one of 0|its shape must be"),
    ],
)
def test_features_that_are_others_here_are_refused(features: list[dict[str, Any]], said: str) -> None:
    import re

    found = problems(keep, features=features)
    assert re.search(said if "|" in said else re.escape(said), found)


def test_all_reasons_are_reported_at_once() -> None:
    def spoil(held: dict[str, Any]) -> None:
        held["odd"] = np.zeros(1)
        held["layout"] = np.array(0)
        held["step1.next.signal.sign"] = np.array(3.0)

    said = problems(spoil)
    assert all(part in said for part in ("odd: it has no such tensor", "layout: it is 0", "sign 1 or −1"))
    edited = DATA[:-1] + bytes([DATA[-1] ^ 1])
    with pytest.raises(ConfigError) as caught:
        loads(edited, SECTION | {"features": [*SECTION["features"], feature(unit="nats")]})
    assert len(caught.value.problems) >= 2  # the feature, and the hash


@pytest.mark.parametrize(
    ("onward", "said"),
    [
        (Signal(4), "feature must be one of 1"),
        (Constant(math.nan), "its numbers must be finite"),
        (Linear(Design(np.zeros(1), np.zeros(1), np.zeros(1), np.ones(1), np.array([]), np.array([])), np.ones(1), 0.0),
         "scale must be above 0"),
    ],
)  # fmt: skip
def test_a_policy_that_could_not_be_read_again_is_not_written(onward: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        dumps(small(onward))


def test_a_file_by_itself(tmp_path: Path) -> None:
    made_of = save(tmp_path / "model.safetensors", POLICY)
    assert made_of == sha256(DATA).hexdigest()
    assert same_scores(load(tmp_path / "model.safetensors", SECTION, made_of), POLICY)
    with pytest.raises(ConfigError, match="changed after it was made"):
        load(tmp_path / "model.safetensors", SECTION, "0" * 64)
    with pytest.raises(ConfigError, match="it cannot be read: No such file"):
        load(tmp_path / "nowhere", SECTION, made_of)


# --- in a directory


def directory(folder: Path, policy: LearnedPolicy = POLICY) -> Path:
    data = dumps(policy)
    held = PolicyArtifact(settings(policy, data, {"n": 500}), files={MODEL_FILE: data})
    write(folder, held, files={"README.md": b"# A policy\n"})
    return folder


def edit(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    document = json.loads((folder / POLICY_FILE).read_text())
    change(document["policy"])
    (folder / POLICY_FILE).write_text(json.dumps(document))


def test_a_directory_holds_a_learned_policy(tmp_path: Path) -> None:
    held = read_policy(directory(tmp_path))
    assert isinstance(held.policy, LearnedPolicy)
    assert same_scores(held.policy, POLICY)
    assert held.artifact.files == {MODEL_FILE: DATA}
    assert (tmp_path / "README.md").read_text() == "# A policy\n"


def test_the_same_policy_is_the_same_directory(tmp_path: Path) -> None:
    for name in ("one", "two"):
        directory(tmp_path / name, made.policy(np.random.default_rng(11)))
    for file in (POLICY_FILE, MODEL_FILE):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_the_numbers_of_another_policy_are_another_policy(tmp_path: Path) -> None:
    other = made.policy(np.random.default_rng(12))
    one, two = read(directory(tmp_path / "one")), read(directory(tmp_path / "two", other))
    assert one.policy_sha256 != two.policy_sha256
    (tmp_path / "one" / MODEL_FILE).write_bytes(dumps(other))
    with pytest.raises(ConfigError, match=r"model.safetensors: its SHA-256 is .* it is another file"):
        read(tmp_path / "one")


def test_a_directory_without_its_numbers_is_refused(tmp_path: Path) -> None:
    (directory(tmp_path) / MODEL_FILE).unlink()
    with pytest.raises(ConfigError, match="it cannot be read: No such file"):
        read_policy(tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda held: held["model"].update(file="../elsewhere"), "numbers are in model.safetensors"),
        (lambda held: held.pop("model"), "numbers are in model.safetensors"),
        (lambda held: held["model"].update(sha256="0" * 64), "it is another file"),
        (lambda held: held.update(on_missing="zero"), "policy.on_missing"),
        (lambda held: held.update(method="guess"), "policy.method"),
        (lambda held: held.update(horizon=0), "policy.horizon"),
        (lambda held: held.update(more=1), "policy.more: there is no such setting"),
        (lambda held: held["features"][0].pop("unit"), "policy.features[0].unit: is missing"),
        (lambda held: held["features"][0].update(step=9), "9 is beyond the 4 steps"),
        (lambda held: held.update(horizon=5), "step4.next: it must be at every step but the last"),
        (lambda held: held.update(sources=["base"]), "policy.features of step"),
    ],
)
def test_settings_that_were_edited_are_refused(tmp_path: Path, change: Callable[[Any], Any], said: str) -> None:
    edit(directory(tmp_path), change)
    with pytest.raises(ConfigError) as caught:
        read_policy(tmp_path)
    assert said in "\n".join(caught.value.problems)
