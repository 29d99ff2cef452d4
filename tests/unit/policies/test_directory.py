"""Policy directories: written whole, read back the same, and refused with every problem if anything was changed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from property.examples import times

from cascade import files
from cascade.conformal.certificate import Certificate, digest
from cascade.conformal.path import Scores
from cascade.conformal.promise import Promise
from cascade.errors import ConfigError, UsageError
from cascade.policies import directory as module
from cascade.policies.directory import CERTIFICATE_FILE, MODEL_FILE, POLICY_FILE, PolicyDirectory, Requests, hashed
from cascade.policies.policy import Depth, Policy, ReferenceOnly, Threshold
from cascade.registry import Registry, subclass_of
from cascade.table import Log, Node

PLAN = (Node("small", 0, "a/small", ()), Node("middle", 1), Node("large", 2, "a/large", (0,)))
PROMISE = Promise("agreement", 0.05, 0.9)
ILL_FORMED: list[Any] = ["0.9", 1.0, 1, None, "", "one", "1.0.", "1,1", [], {}]


@dataclass(frozen=True)
class Weighing(Policy):
    """A policy with numbers of its own."""

    kind: ClassVar[str] = "weighing"
    weights: NDArray[np.float64]
    scale: NDArray[np.float32]
    nodes: tuple[int, ...] | None = None

    def scores(self, log: Log) -> Scores:
        return Scores(np.zeros(log.answer.shape))

    def tensors(self) -> Mapping[str, NDArray[Any]]:
        return {"weights": self.weights, "scale": self.scale}

    @classmethod
    def read(cls, settings: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> Weighing:
        return cls(tensors["weights"], tensors["scale"], settings["nodes"])


WEIGHING = Weighing(np.arange(6.0).reshape(2, 3).T, np.array(0.1, dtype=np.float32), nodes=(0, 2))


@pytest.fixture(autouse=True)
def rooms(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {**module.ROOMS.built_in, "weighing": f"{__name__}:Weighing"}
    monkeypatch.setattr(module, "ROOMS", Registry("policy", "cascade.none", known, subclass_of(Policy)))


def directory(policy: Policy = WEIGHING, **changes: Any) -> PolicyDirectory:
    """Return a directory with a certificate."""
    requests = Requests(hashed(["f"]), hashed(["c", "d"]), hashed(["x", "y", "z"]))
    bare = PolicyDirectory(PLAN, policy, PROMISE, {}, requests)
    given = {"level": 0.1, "attempts": 1, **changes}
    return bare.certified(Certificate(PROMISE, 0.3, 60, 0, "0" * 64, bare.policy_sha256, "2026-11-21", **given))


def same(read: PolicyDirectory, wanted: PolicyDirectory) -> bool:
    """Return whether two directories have the same contents; arrays have no equality of their own."""
    parts = [(side.plan, side.promise, side.certificates, side.requests, side.policy_sha256) for side in (read, wanted)]
    return parts[0] == parts[1] and read.policy.nodes == wanted.policy.nodes


POLICIES: list[Policy] = [
    WEIGHING,
    Threshold("p_yes", -1.0),
    Threshold("reply_tokens", 1.0, None, (1, 2)),
    Depth(),
    Depth((0, 2)),
    ReferenceOnly(),
]


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@pytest.mark.parametrize("certified", [True, False])
def test_a_directory_is_read_as_it_was_written(policy, certified, tmp_path):
    written = directory(policy) if certified else PolicyDirectory(PLAN, policy)
    written.write(tmp_path / "deep" / "er")
    read = PolicyDirectory.read(tmp_path / "deep" / "er")
    assert same(read, written)
    assert type(read.policy) is type(policy)
    if policy is not WEIGHING:
        assert read == written
    for name, values in policy.tensors().items():
        np.testing.assert_array_equal(read.policy.tensors()[name], values)
        assert (read.policy.tensors()[name].dtype, read.policy.tensors()[name].shape) == (values.dtype, values.shape)
    assert (tmp_path / "deep" / "er" / MODEL_FILE).exists() == bool(policy.tensors())
    first = {path.name: path.read_bytes() for path in (tmp_path / "deep" / "er").iterdir()}
    read.write(tmp_path / "again")
    assert {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()} == first


def test_another_policy_replaces_all_of_the_one_before(tmp_path):
    directory().write(tmp_path)
    directory(Depth()).write(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [CERTIFICATE_FILE, POLICY_FILE]
    assert PolicyDirectory.read(tmp_path) == directory(Depth())


def test_certificates_of_segments_and_of_levels_have_names():
    whole = directory(Depth())
    (only,) = whole.certificates.values()
    segments = whole.certified(*[replace(only, covers="segment", name=name) for name in ("law", "art")])
    levels = whole.certified(
        *[replace(only, covers="level", name=f"{risk}", promise=replace(PROMISE, risk=risk)) for risk in (0.1, 0.2)]
    )
    assert [*segments._problems(whole.policy_sha256)] == [*levels._problems(whole.policy_sha256)] == []


@pytest.mark.parametrize(
    ("changes", "many"),
    [
        ({"plan": ()}, 2),
        ({"plan": PLAN[::-1]}, 2),
        ({"plan": (PLAN[0], PLAN[0])}, 2),
        ({"promise": replace(PROMISE, risk=0.1)}, 1),
        ({"promise": None}, 1),
        ({"requests": Requests(hashed(["x"]), (), hashed(["x", "y"]))}, 1),
        ({"policy": Depth((1,))}, 1),
    ],
)
def test_what_does_not_fit_together_is_not_written(changes, many, tmp_path):
    with pytest.raises(ConfigError) as caught:
        replace(directory(Depth()), **changes).write(tmp_path / "here")
    assert len(caught.value.problems) == many
    assert not (tmp_path / "here").exists()


def test_certificates_of_two_sorts_or_under_another_name_are_not_written(tmp_path):
    whole = directory(Depth())
    (only,) = whole.certificates.values()
    law = replace(only, covers="segment", name="law")
    for certificates in ({"": only, "law": law}, {"art": law}, {"law": only}):
        with pytest.raises(ConfigError):
            replace(whole, certificates=certificates).write(tmp_path)


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError):
        directory().write(tmp_path / "file")


# --- tampering ---


def rewritten(file: Path, change: Any, *, sign: bool) -> None:
    """Change a JSON file; with `sign`, give it the hash of its new contents."""
    document = json.loads(file.read_text())
    change(document)
    if sign:
        document["sha256"] = digest({name: value for name, value in document.items() if name != "sha256"})
    file.write_text(json.dumps(document))


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of each value in a document."""
    if isinstance(value, dict):
        return [path, *(deep for name, each in value.items() for deep in leaves(each, (*path, name)))]
    if isinstance(value, list):
        return [path, *(deep for at, each in enumerate(value) for deep in leaves(each, (*path, at)))]
    return [path]


@pytest.mark.parametrize("name", [POLICY_FILE, CERTIFICATE_FILE])
@pytest.mark.parametrize("value", [None, "other", 7, [], {}, "__delete__"])
def test_a_changed_field_is_refused_wherever_it_is(name, value, tmp_path):
    whole = directory()
    whole.write(tmp_path)
    original = (tmp_path / name).read_bytes()
    for path in leaves(json.loads(original))[1:]:

        def change(document: Any, path: tuple[Any, ...] = path) -> None:
            for part in path[:-1]:
                document = document[part]
            if value == "__delete__":
                del document[path[-1]]
            else:
                document[path[-1]] = value

        rewritten(tmp_path / name, change, sign=False)
        if json.loads((tmp_path / name).read_text()) != json.loads(original):
            with pytest.raises(ConfigError):
                PolicyDirectory.read(tmp_path)
        rewritten(tmp_path / name, lambda _: None, sign=True)
        with contextlib.suppress(ConfigError):  # who signs an invention again is not found out
            PolicyDirectory.read(tmp_path).write(tmp_path / "again")
        (tmp_path / name).write_bytes(original)
    assert same(PolicyDirectory.read(tmp_path), whole)


@pytest.mark.parametrize("name", [POLICY_FILE, CERTIFICATE_FILE, MODEL_FILE])
def test_every_flipped_byte_is_refused_or_changes_nothing(name, tmp_path):
    whole = directory()
    whole.write(tmp_path)
    original = (tmp_path / name).read_bytes()
    refused = 0
    for at in range(len(original)):
        flipped = original[at] ^ (1 << at % 8)
        (tmp_path / name).write_bytes(original[:at] + bytes([flipped]) + original[at + 1 :])
        try:
            read = PolicyDirectory.read(tmp_path)
        except ConfigError:
            refused += 1
        else:  # one blank for another
            assert name != MODEL_FILE
            assert same(read, whole)
    assert refused > 0.95 * len(original)


@given(st.binary(max_size=200), st.sampled_from([POLICY_FILE, CERTIFICATE_FILE, MODEL_FILE]), st.floats(0, 1))
@times(8)
def test_bytes_that_are_put_in_or_cut_off_are_refused(tmp_path_factory, junk, name, share):
    folder = tmp_path_factory.mktemp("policy")
    whole = directory()
    whole.write(folder)
    data = (folder / name).read_bytes()
    at = round(share * len(data))
    for changed in (data[:at] + junk + data[at:], data[:at], junk):
        (folder / name).write_bytes(changed)
        with contextlib.suppress(ConfigError):
            assert same(PolicyDirectory.read(folder), whole)


@pytest.mark.parametrize("form", ["1.1", "2.0", "10.0", *ILL_FORMED])
@pytest.mark.parametrize("name", [POLICY_FILE, CERTIFICATE_FILE])
def test_another_format_is_refused(form, name, tmp_path):
    directory().write(tmp_path)
    rewritten(tmp_path / name, lambda document: document.update(format=form), sign=True)
    with pytest.raises(ConfigError, match="format"):
        PolicyDirectory.read(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        *(
            {"kind": kind}
            for kind in ("treshold", "os:system", "cascade.policies.policy:Threshold", "builtins.print", "")
        ),
        {"settings": {"signal": "p_yes"}},
        {"settings": {"signal": 3, "sign": 1.0, "tie": None}},
        {"settings": {"signal": "x", "sign": "down", "tie": None}},
        {"settings": {"signal": "x", "sign": 1.0, "tie": None, "more": 1}},
        {"settings": {"signal": "x", "sign": 1.0, "tie": None, "nodes": [1]}},
        *(
            {"nodes": nodes}
            for nodes in (["tiny"], ["small", "tiny"], [], [0], "small", ["large", "small"], ["small"] * 2)
        ),
    ],
)
def test_what_a_policy_cannot_be_is_refused_though_its_hash_is_right(changes, tmp_path):
    """A kind is a known name and no import path; settings and nodes are those of the policy and its plan."""
    PolicyDirectory(PLAN, Threshold("p_yes", -1.0, nodes=(0, 1))).write(tmp_path)
    rewritten(tmp_path / POLICY_FILE, lambda document: document.update(changes), sign=True)
    with pytest.raises(ConfigError):
        PolicyDirectory.read(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        '{"format": "1.0", "format": "1.0"}', '{"format": NaN}', '{"format": 1e999}', "null", "",
        '{"schema_version": 1, "policy": {"kind": "threshold"}}',  # of an older release
        *('{"format": "1.0", "settings": ' + "[" * depth + "]" * depth + "}" for depth in (50, 150, 400, 900, 100_000)),
        "[" * 100_000,
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", [POLICY_FILE, CERTIFICATE_FILE])
def test_what_is_no_json_of_cascade_is_refused(text, name, tmp_path):
    directory().write(tmp_path)
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError):
        PolicyDirectory.read(tmp_path)


@pytest.mark.parametrize("name", [POLICY_FILE, CERTIFICATE_FILE, MODEL_FILE])
def test_a_missing_or_a_huge_file_is_refused(name, tmp_path, monkeypatch):
    directory().write(tmp_path)
    data = (tmp_path / name).read_bytes()
    (tmp_path / name).unlink()
    with pytest.raises(ConfigError):
        PolicyDirectory.read(tmp_path)
    (tmp_path / name).write_bytes(data)
    monkeypatch.setattr(files, "MOST_BYTES", len(data) - 1)
    with pytest.raises(ConfigError):
        PolicyDirectory.read(tmp_path)


def test_the_problems_of_all_files_are_in_one_message(tmp_path):
    directory().write(tmp_path)
    rewritten(tmp_path / POLICY_FILE, lambda document: document.update(kind="none", nodes=["tiny"]), sign=True)
    rewritten(tmp_path / CERTIFICATE_FILE, lambda document: document["certificates"][""].update(n=-1), sign=True)
    with pytest.raises(ConfigError) as caught:
        PolicyDirectory.read(tmp_path)
    places = {tuple(problem.split(": ")[:2]) for problem in caught.value.problems}
    assert places == {(POLICY_FILE, "kind"), (POLICY_FILE, "nodes"), (CERTIFICATE_FILE, "certificates.all.n")}
    assert caught.value.source == str(tmp_path)


def test_the_numbers_of_another_policy_are_refused(tmp_path):
    directory().write(tmp_path)
    directory(replace(WEIGHING, weights=np.ones((3, 2)))).write(tmp_path / "other")
    (tmp_path / MODEL_FILE).write_bytes((tmp_path / "other" / MODEL_FILE).read_bytes())
    with pytest.raises(ConfigError):
        PolicyDirectory.read(tmp_path)
