"""Certificates: every field is read, an edit shows, and each promise is put into words."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from datetime import date

import pytest
from cases import each

from cascade.conformal.certificate import ID_LENGTH, Certificate
from cascade.conformal.promise import KINDS, Promise
from cascade.errors import ConfigError

PROMISE = Promise("regret", 0.05, 0.9)
MADE_FOR = {"models": {"small": None}, "horizon": 2}
CERTIFICATE = Certificate(
    PROMISE, 0.3, 600, 21, "0" * 64, "1" * 64, "2026-11-21", level=0.09, attempts=1, made_for=MADE_FOR,
    reference="large", comparator="json", expires="2026-12-21", assumptions=("The models stay the same.",),
)  # fmt: skip
DOCUMENT = json.loads(json.dumps(CERTIFICATE.document))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"kappa": math.inf},
        {"kappa": -math.inf},
        {"kappa": 0, "losses": 3},
        {"promise": Promise("coverage", 0.1), "level": None},
        {"covers": "segment", "name": "law", "unit": "group"},
        {"attempts": None, "expires": None, "reference": None, "comparator": None, "made_for": {}},
    ],
)
def test_a_certificate_is_read_as_it_was_written(changes):
    certificate = replace(CERTIFICATE, **changes)
    read = Certificate.read(json.loads(json.dumps(certificate.document)))
    assert read == certificate
    assert read.id == certificate.id
    assert len(read.id) == ID_LENGTH


@each("name", [*(field.name for field in fields(Certificate)), "id"])
@each("value", [None, "other", 7, 0.5, -1, True, [], {}, "law", ["a"], "2027-01-01", "inf"])
def test_a_field_that_was_changed_is_refused(name, value):
    if DOCUMENT[name] == value and type(DOCUMENT[name]) is type(value):
        return
    with pytest.raises(ConfigError):
        Certificate.read({**DOCUMENT, name: value})


@each("name", DOCUMENT)
def test_no_field_may_be_missing(name):
    document = {other: value for other, value in DOCUMENT.items() if other != name}
    with pytest.raises(ConfigError) as caught:
        Certificate.read(document)
    assert [problem.partition(":")[0] for problem in caught.value.problems] == [name]


def test_every_problem_is_listed():
    document = {**DOCUMENT, "n": -1, "kappa": "high", "created": "today", "surprise": 1}
    del document["losses"]
    with pytest.raises(ConfigError) as caught:
        Certificate.read(document)
    places = {problem.partition(":")[0] for problem in caught.value.problems}
    assert places == {"n", "kappa", "created", "surprise", "losses"}


@pytest.mark.parametrize("document", [None, 3, "text", [], [DOCUMENT], {}])
def test_what_is_no_certificate_is_refused(document):
    with pytest.raises(ConfigError):
        Certificate.read(document)


@pytest.mark.parametrize(
    "changes",
    [
        {"losses": 601.0},
        {"covers": "segment"},
        {"name": "law"},
        {"level": None},
        {"promise": Promise("coverage", 0.1)},
        {"expires": "2026-11-20"},
    ],
)
def test_an_impossible_value_is_refused_though_its_id_is_right(changes):
    with pytest.raises(ConfigError):
        Certificate.read(replace(CERTIFICATE, **changes).document)


@pytest.mark.parametrize(
    ("day", "expired"), [(date(2026, 11, 20), False), (date(2026, 12, 21), False), (date(2026, 12, 22), True)]
)
def test_it_holds_until_the_end_of_its_last_day(day, expired):
    assert CERTIFICATE.expired(day) == expired
    assert not replace(CERTIFICATE, expires=None).expired(day)


COVERAGE = replace(CERTIFICATE, promise=Promise("coverage", 0.05, 0.9), losses=21.0)


@pytest.mark.parametrize(
    ("certificate", "wanted", "many"),
    [
        (CERTIFICATE, PROMISE, 0),
        (CERTIFICATE, Promise("regret", 0.1, 0.8), 0),
        (CERTIFICATE, Promise("regret", 0.04, 0.95), 2),
        (CERTIFICATE, Promise("error", 0.04, 0.95), 3),
        (COVERAGE, Promise("coverage", 0.05), 0),  # 22 of 601 is less than 5 %
        (replace(COVERAGE, losses=30.0), Promise("coverage", 0.05), 1),  # 31 of 601 is more
        (replace(COVERAGE, promise=Promise("coverage", 0.05), level=None), Promise("coverage", 0.05, 0.9), 1),
    ],
)
def test_where_it_promises_less_than_is_wanted(certificate, wanted, many):
    assert len(certificate.shortfalls(wanted)) == many


@pytest.mark.parametrize("kind", sorted(KINDS.built_in))
@pytest.mark.parametrize("confidence", [None, 0.9])
def test_each_promise_is_two_sentences(kind, confidence):
    if confidence is None and kind != "coverage":
        return
    level = None if confidence is None else 0.1
    certificate = replace(CERTIFICATE, promise=Promise(kind, 0.025, confidence), level=level)
    statement = certificate.statement()
    kept_when, lost = (
        words.replace("the reference", "large")
        for words in (certificate.promise.rules.kept_when, certificate.promise.rules.lost_when)
    )
    assert statement.count(". ") == 1
    assert all(words in statement for words in ("97.5 %", "2.5 %", kept_when, lost, "600"))
    assert ("90 %" in statement) == (confidence is not None)
    assert "law" in replace(certificate, covers="segment", name="law").statement()


def test_a_level_above_delta_is_refused():
    """Whoever edits a file can compute its hash again."""
    generous = replace(CERTIFICATE, level=0.5)
    with pytest.raises(ConfigError) as caught:
        Certificate.read(json.loads(json.dumps(generous.document)))
    assert [problem.partition(":")[0] for problem in caught.value.problems] == ["level"]
