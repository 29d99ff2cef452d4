"""A policy directory: read as it was written, or refused with every reason; and the policy that it makes."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cascade import files as file_module
from cascade.conformal.served import PathPoint
from cascade.engine import decide
from cascade.errors import ConfigError, UsageError
from cascade.guarantees.base import Guarantee
from cascade.guarantees.certificate import digest, make, to_document
from cascade.policies.artifact import (
    CERTIFICATE_FILE,
    POLICY_FILE,
    CalibratedPolicy,
    PolicyArtifact,
    Seen,
    Threshold,
    write,
)
from cascade.policies.base import Observation, Policy
from cascade.policies.reading import read
from cascade.policies.threshold import ThresholdPolicy
from cascade.safety import read_bounded
from cascade.types import Certificate
from unit.made import RIVER, candidate, step

BARE = PolicyArtifact(
    policy={"kind": "threshold", "threshold": 0.3, "when": "p_yes"},
    seen=Seen(training=("b", "a"), selection=("c",)),
    path=(PathPoint(math.inf, math.inf), PathPoint(0.25), PathPoint(-math.inf)),
    ordered_for={"kind": "error", "alpha": 0.1, "seed": 0},
)


def certificate(of: PolicyArtifact = BARE, **fields: Any) -> Certificate:
    blank = Certificate("error", 0.1, 30, "", delta=0.1, kappa=0.25, abstain_below=-math.inf)
    known = {"data_sha256": "d" * 64, "policy_sha256": of.policy_sha256, "created": "2026-11-21"}
    return make(replace(blank, **(known | fields)))


def certified(*segments: str | None) -> PolicyArtifact:
    made = tuple(certificate(segment=segment) for segment in segments or (None,))
    asked = None if segments else Guarantee("error", 0.1, 0.1, abstain=True)  # segments do not go with error
    return replace(BARE, certificates=made, questions=("x",), asked=asked)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    one = certified("a", "b", None)
    write(tmp_path / "deep" / "policy", one)
    found = read(tmp_path / "deep" / "policy")
    assert found == replace(one, seen=Seen(("a", "b"), ("c",)))
    assert found.policy_sha256 == one.policy_sha256


def test_the_same_artefact_is_the_same_bytes(tmp_path: Path) -> None:
    write(tmp_path / "one", certified())
    shuffled = replace(certified(), policy=dict(reversed(BARE.policy.items())), seen=Seen(("a", "b"), ("c",)))
    write(tmp_path / "two", shuffled)
    assert files(tmp_path / "one") == files(tmp_path / "two")
    assert set(files(tmp_path / "one")) == {POLICY_FILE, CERTIFICATE_FILE}  # and nothing half-written beside them


def test_a_policy_without_a_certificate_is_one(tmp_path: Path) -> None:
    write(tmp_path, BARE)
    assert set(files(tmp_path)) == {POLICY_FILE}
    assert read(tmp_path).certificates == ()
    with pytest.raises(UsageError, match="no certificate yet"):
        read(tmp_path).calibrated(ThresholdPolicy())


def test_a_model_card_stays_with_its_policy_alone(tmp_path: Path) -> None:
    write(tmp_path, certified(), files={"README.md": b"card"})
    write(tmp_path, replace(certified(), certificates=(certificate(kappa=0.5),)))
    assert read(tmp_path).certificates[0].kappa == 0.5
    assert {"README.md"} <= set(files(tmp_path))
    write(tmp_path, replace(certified(), policy={"kind": "fixed"}, certificates=()))
    assert set(files(tmp_path)) == {POLICY_FILE}
    write(tmp_path, BARE, files={"README.md": b"another"})
    assert files(tmp_path)["README.md"] == b"another"


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, certified())
    before = files(tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(UsageError, match="space"):
        write(tmp_path, replace(certified(), questions=("x", "y")))
    assert files(tmp_path) == before


# --- what is refused


def test_an_edit_of_one_byte_is_refused_or_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path, certified())
    file, whole = tmp_path / CERTIFICATE_FILE, read(tmp_path)
    text = file.read_bytes()
    refused = 0
    for place in range(0, len(text), 2):
        before, byte, after = text[:place], text[place], text[place + 1 :]
        for edited in (before + bytes([byte ^ 1]) + after, *([before + after] if place % 8 == 0 else [])):
            file.write_bytes(edited)
            try:
                found = read(tmp_path)
            except ConfigError as error:
                assert error.problems  # noqa: PT017 - the reason is what counts
                refused += 1
            else:
                assert found == whole
                assert json.loads(edited) == json.loads(text)  # a blank outside of every text has come or gone
    assert refused > len(text) / 2


def test_what_no_step_answered_is_written_where_it_is_known(tmp_path: Path) -> None:
    for unanswered in (None, 0, 7):
        write(tmp_path, replace(certified(), unanswered=unanswered))
        assert read(tmp_path).unanswered == unanswered
        document = json.loads((tmp_path / CERTIFICATE_FILE).read_text("utf-8"))
        assert ("unanswered" in document) is (unanswered is not None)


@pytest.mark.parametrize("digit", [b"0", b"9"])
def test_every_edit_of_a_digit_of_the_policy_is_refused(tmp_path: Path, digit: bytes) -> None:
    write(tmp_path, certified())
    file = tmp_path / POLICY_FILE
    text = file.read_bytes()
    for place in (place for place, byte in enumerate(text) if chr(byte).isdigit() and text[place : place + 1] != digit):
        file.write_bytes(text[:place] + digit + text[place + 1 :])
        with pytest.raises(ConfigError):
            read(tmp_path)


def edited(folder: Path, name: str, change: Callable[[dict[str, Any]], object]) -> list[str]:
    """Return the problems after a change of a document."""
    document = json.loads((folder / name).read_text("utf-8"))
    change(document)
    (folder / name).write_text(json.dumps(document), "utf-8")
    with pytest.raises(ConfigError) as error:
        read(folder)
    assert name in str(error.value)
    return list(error.value.problems)


def resealed(document: dict[str, Any]) -> None:
    del document["sha256"]
    document["sha256"] = digest(document)


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        (POLICY_FILE, lambda d: d.update(extra=1), "extra: there is no such field"),
        (POLICY_FILE, lambda d: d.pop("seen"), "seen: is missing"),
        (POLICY_FILE, lambda d: d.update(schema_version=0), "schema_version: it is 0"),
        (POLICY_FILE, lambda d: d.update(schema_version=True), "schema_version: it is True"),
        (POLICY_FILE, lambda d: d.update(policy=[]), "policy: has an invalid value"),
        (POLICY_FILE, lambda d: d.update(seen={"training": []}), "seen: has an invalid value"),
        (POLICY_FILE, lambda d: d["seen"].update(training=[1]), "seen: has an invalid value"),
        (POLICY_FILE, lambda d: d.update(ordered_for=[]), "ordered_for: has an invalid value"),
        (POLICY_FILE, lambda d: d.update(path=[]), "path: has an invalid value"),
        (POLICY_FILE, lambda d: d.update(path=[[0.1]]), "path: has an invalid value"),
        (POLICY_FILE, lambda d: d.update(path=[["x", 0.1]]), "path: has an invalid value"),
        (POLICY_FILE, lambda d: d.update(path=[[[], 0.1]]), "path: has an invalid value"),
        (CERTIFICATE_FILE, lambda d: d.update(certificates={}), "certificates: has an invalid value"),
        (CERTIFICATE_FILE, lambda d: d.update(questions="x"), "questions: has an invalid value"),
        (CERTIFICATE_FILE, lambda d: d.update(unanswered=-1), "unanswered: has an invalid value"),
        (CERTIFICATE_FILE, lambda d: d.update(unanswered=True), "unanswered: has an invalid value"),
        (CERTIFICATE_FILE, lambda d: d.pop("asked"), "asked: is missing"),
        (CERTIFICATE_FILE, lambda d: d.update(asked=[]), "asked: has an invalid value"),
        (CERTIFICATE_FILE, lambda d: d["asked"].update(by_segment=1), "asked.by_segment: it is true or false"),
        (CERTIFICATE_FILE, lambda d: d["asked"].update(more=1), "asked.more: a request has no such field"),
        (CERTIFICATE_FILE, lambda d: d["asked"].update(by_segment=True), "Segments go with coverage"),
        (CERTIFICATE_FILE, lambda d: d["questions"].append("y"), "sha256: it does not match the rest"),
        (CERTIFICATE_FILE, lambda d: d["certificates"][0].update(n=31), "calibration_id"),
    ],
)
def test_a_change_is_named(tmp_path: Path, name: str, change: Callable[[dict[str, Any]], object], said: str) -> None:
    write(tmp_path, certified())
    assert any(said in problem for problem in edited(tmp_path, name, change))


@pytest.mark.parametrize("name", [POLICY_FILE, CERTIFICATE_FILE])
def test_what_a_newer_release_wrote_is_not_called_damaged(tmp_path: Path, name: str) -> None:
    """0.6: "restore the file as it was", of a file with which nothing is wrong."""
    write(tmp_path, certified())
    (problem,) = edited(tmp_path, name, lambda held: held.update(schema_version=2, fresh={}))
    assert problem.startswith("a newer release of cascade wrote it (its form is 2, and this release reads up to 1)")
    assert "Upgrade cascade: pip install --upgrade" in problem
    assert "or make the policy again with this release" in problem
    assert "restore" not in problem


def test_all_problems_are_named_at_once(tmp_path: Path) -> None:
    write(tmp_path, certified("a", None))

    def change(document: dict[str, Any]) -> None:
        document["certificates"][0]["n"] = 31
        document["certificates"][1]["kind"] = "all"

    found = edited(tmp_path, CERTIFICATE_FILE, change)
    assert [problem.split(":")[0] for problem in found] == [
        "certificates[0].calibration_id",
        "certificates[1].kind",
        "sha256",
    ]


def test_certificates_of_another_policy_are_refused(tmp_path: Path) -> None:
    write(tmp_path, certified())
    stolen = to_document(certificate(policy_sha256="0" * 64))
    found = edited(tmp_path, CERTIFICATE_FILE, lambda d: (d.update(certificates=[stolen]), resealed(d)))
    assert len(found) == 1
    assert "another policy" in found[0]


def test_a_policy_that_was_changed_voids_its_certificates(tmp_path: Path) -> None:
    write(tmp_path, certified())
    document = json.loads((tmp_path / POLICY_FILE).read_text("utf-8"))
    document["policy"]["when"] = "uncertain"
    (tmp_path / POLICY_FILE).write_text(json.dumps(document), "utf-8")
    with pytest.raises(ConfigError, match="changed since"):
        read(tmp_path)


def test_two_certificates_for_the_same_questions_are_refused(tmp_path: Path) -> None:
    write(tmp_path, certified())
    two = [to_document(certificate()), to_document(certificate(kappa=0.9))]
    found = edited(tmp_path, CERTIFICATE_FILE, lambda d: (d.update(certificates=two), resealed(d)))
    assert any("another certificate for the same questions" in problem for problem in found)


@pytest.mark.parametrize(
    ("asked", "fields", "said"),
    [
        (Guarantee("error", 0.2, 0.1, abstain=True), {}, "alpha is 0.1"),
        (Guarantee("error", 0.1, 0.2, abstain=True), {}, "delta is 0.1"),
        (Guarantee("error", 0.1, 0.1), {}, "abstain_below is -inf"),
        (
            Guarantee("coverage"),
            {"kind": "coverage", "delta": None, "abstain_below": None, "segment": "a"},
            "segment is a",
        ),
        (
            Guarantee("coverage", by_segment=True),
            {"kind": "coverage", "delta": None, "abstain_below": None},
            "segment is None",
        ),
    ],
)
def test_a_certificate_of_something_else_than_was_asked_for_is_refused(
    tmp_path: Path, asked: Guarantee, fields: dict[str, Any], said: str
) -> None:
    write(tmp_path, replace(BARE, certificates=(certificate(**fields),), questions=("x",), asked=asked))
    with pytest.raises(ConfigError) as error:
        read(tmp_path)
    (problem,) = error.value.problems
    assert problem.startswith("certificates[0]: it differs from the request:")
    assert said in problem


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff\xfe",
        b"[1, 2]",
        b"{",
        b'{"a": 1, "a": 1}',
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": 1e999}',
        b"[" * 100_000,
        b'"' + b"9" * 10,
    ],
)
def test_what_is_no_such_document_is_refused(tmp_path: Path, text: bytes) -> None:
    write(tmp_path, certified())
    for name in (POLICY_FILE, CERTIFICATE_FILE):
        before = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(text)
        with pytest.raises(ConfigError):
            read(tmp_path)
        (tmp_path / name).write_bytes(before)


def test_a_file_of_another_size_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, certified())
    with (tmp_path / CERTIFICATE_FILE).open("ab") as stream:
        stream.truncate(10 << 30)  # sparse: it takes no room

    def unread(path: Path, most_bytes: int) -> bytes | None:
        assert path.name != CERTIFICATE_FILE
        return read_bounded(path, most_bytes)

    monkeypatch.setattr(file_module, "read_bounded", unread)
    with pytest.raises(ConfigError, match="10,737,418,240 bytes or more"):
        read(tmp_path)


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such policy directory; cascade fit LOG"):
        read(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"there is no policy\.json in this directory; cascade fit LOG"):
        read(tmp_path)
    (tmp_path / "policy.json").write_text("{}")
    with pytest.raises(ConfigError, match="it is a file, not a policy directory"):
        read(tmp_path / "policy.json")


def test_nothing_beyond_the_size_limit_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, certified())
    monkeypatch.setattr(file_module, "MOST_BYTES", 10)
    with pytest.raises(ConfigError, match="more than 10 are not read"):
        read(tmp_path)


# --- the policy that it makes


def observations() -> Iterator[Observation]:
    for p_yes in (None, 0.1, 0.5, 0.99):
        shown = step(1, candidate("Rhine"), candidate("Danube", "guide"), signals={"p_yes": p_yes})
        yield Observation(RIVER, (shown,), 3)


def test_a_calibrated_policy_scores_as_its_policy_does() -> None:
    inner = ThresholdPolicy(keep="both", when="p_yes")
    calibrated = certified().calibrated(inner)
    assert calibrated.kappa == 0.25
    assert calibrated.abstain_below == -math.inf
    assert calibrated.reads == ("p_yes",)
    for seen in observations():
        assert calibrated.scores(seen) == inner.scores(seen)
        assert decide(calibrated, seen) == decide(replace(inner, kappa=0.25), seen)


def test_where_everything_is_kept_nothing_stops_it() -> None:
    kept = replace(BARE, certificates=(certificate(kappa=-math.inf, keeps_everything=True, abstain_below=None),))
    calibrated = kept.calibrated(ThresholdPolicy(keep="judged"))
    assert calibrated.keeps_everything
    for seen in observations():
        decision = decide(calibrated, seen)
        assert decision.keep == (0, 1)
        assert decision.proceed


def test_each_segment_has_its_threshold() -> None:
    some = replace(BARE, certificates=(certificate(segment="a", kappa=0.5), certificate(segment=None, kappa=0.75)))
    calibrated = some.calibrated(ThresholdPolicy())
    assert [calibrated.for_segment(segment).kappa for segment in ("a", "b", None)] == [0.5, 0.75, 0.75]
    assert calibrated.for_segment("b") is calibrated
    assert calibrated.for_segment("a").for_segment("b").kappa == 0.75
    alone = CalibratedPolicy(ThresholdPolicy(), Threshold(0.5))
    assert alone.for_segment("a") is alone


def test_a_segment_without_any_certificate_keeps_everything() -> None:
    some = replace(BARE, certificates=(certificate(segment="a", kappa=0.5),))
    calibrated = some.calibrated(ThresholdPolicy())
    assert calibrated.for_segment("b").keeps_everything
    assert not calibrated.for_segment("a").keeps_everything


def test_a_policy_without_signals_reads_none() -> None:
    class Plain(Policy):
        kappa = 0.0

    assert CalibratedPolicy(Plain(), Threshold(0.5)).reads == ()
