"""A certificate as a document: what it says survives, what was changed is refused, its promise is said in words."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from typing import Any

import pytest
from cases import each

from cascade.errors import ConfigError
from cascade.guarantees.base import Guarantee
from cascade.guarantees.certificate import (
    asked_document,
    asked_of,
    canonical,
    digest,
    expired,
    expiry,
    from_document,
    make,
    shortfalls,
    statement,
    to_document,
)
from cascade.types import Certificate

WHOLE = make(
    Certificate(
        kind="coverage",
        alpha=0.1,
        n=200,
        calibration_id="",
        k=20,
        kappa=0.1 + 0.2,
        data_sha256="a" * 64,
        policy_sha256="b" * 64,
        made_for={"models": {"base": {"name": "klein ü", "seed": None}}, "prices": None},
        created="2026-11-21",
        expires="2027-01-01",
        assumptions=("One.", "Two."),
    )
)
SINGLE = make(replace(WHOLE, kind="error", delta=0.1, k=None, abstain_below=-math.inf, kappa=math.inf))
BOTH = make(replace(SINGLE, kind="regret"))


@pytest.mark.parametrize("one", [WHOLE, SINGLE, BOTH, make(replace(WHOLE, segment="a", kappa=-math.inf, k=0))])
def test_a_certificate_is_what_its_document_says(one: Certificate) -> None:
    text = json.dumps(to_document(one), allow_nan=False)
    assert from_document(json.loads(text)) == one
    assert len(one.calibration_id) == 16


def test_the_id_is_that_of_everything_else() -> None:
    document = to_document(WHOLE)
    del document["calibration_id"]
    assert digest(document)[:16] == WHOLE.calibration_id
    assert make(WHOLE) == WHOLE
    assert make(replace(WHOLE, kappa=0.3)).calibration_id != WHOLE.calibration_id


OTHER: dict[str, Any] = {
    "kind": "regret",
    "alpha": 0.05,
    "n": 201,
    "calibration_id": "0" * 16,
    "delta": 0.1,
    "k": 19,
    "kappa": 0.3,
    "abstain_below": 0.5,
    "keeps_everything": True,
    "data_sha256": "c" * 64,
    "policy_sha256": "d" * 64,
    "made_for": {},
    "created": "2026-11-20",
    "expires": None,
    "assumptions": ["One."],
    "segment": "a",
    "unit": "group",
    "reference": "large",
    "comparator": "text",
}


def test_every_field_is_covered_by_the_id() -> None:
    assert set(OTHER) == set(to_document(WHOLE))


@each("name", sorted(OTHER))
def test_a_changed_field_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="changed after it was made"):
        from_document(to_document(WHOLE) | {name: OTHER[name]})


@each(
    "name, value",
    [
        ("kind", "covers"),
        ("kind", ["coverage"]),
        ("alpha", "0.1"),
        ("alpha", 1.5),
        ("alpha", True),
        ("n", 2.5),
        ("n", -1),
        ("k", 300),
        ("kappa", None),
        ("kappa", "nan"),
        ("kappa", {}),
        ("kappa", 10**400),
        ("data_sha256", "a" * 63),
        ("data_sha256", "A" * 64),
        ("made_for", []),
        ("created", "yesterday"),
        ("created", "20261121"),
        ("expires", "2026-01-01"),
        ("assumptions", "One."),
        ("assumptions", [1]),
        ("group", 7),
    ],
)
def test_a_field_of_another_form_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as error:
        from_document(to_document(WHOLE) | {name: value}, "some.json")
    assert any(problem.startswith(f"{name}:") for problem in error.value.problems)
    assert "some.json" in str(error.value)


def test_every_missing_and_every_unknown_field_is_named() -> None:
    document = to_document(WHOLE)
    del document["alpha"], document["n"]
    with pytest.raises(ConfigError) as error:
        from_document(document | {"signature": "x"})
    assert {problem.split(":")[0] for problem in error.value.problems} == {"alpha", "n", "signature"}


@pytest.mark.parametrize("document", [None, [], "x", 3])
def test_what_is_no_object_is_refused(document: Any) -> None:
    with pytest.raises(ConfigError):
        from_document(document)


def test_canonical_json_is_the_same_however_it_was_written() -> None:
    assert canonical({"b": [1.5, None], "a": "ü"}) == canonical(json.loads('{ "a":"\\u00fc", "b":[15e-1,null] }'))
    with pytest.raises(ValueError):
        canonical({"a": math.nan})


@pytest.mark.parametrize(
    ("today", "past"), [("2026-12-31", False), ("2027-01-01", False), ("2027-01-02", True), ("2030-01-01", True)]
)
def test_it_holds_until_the_end_of_its_last_day(today: str, past: bool) -> None:
    assert expired(WHOLE, date.fromisoformat(today)) is past


def test_without_an_end_it_never_expires() -> None:
    assert expiry(date(2026, 12, 31), 1) == "2027-01-01"
    assert not expired(replace(WHOLE, expires=None), date(9999, 1, 1))


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (
            WHOLE,
            [
                "at least 90 %",
                "over the calibration and a fresh question",
                "90.05 %",
                "2.11 %",
                "may lie below",
                "is not counted as a miss",
            ],
        ),
        (
            SINGLE,
            ["the answer served is not wrong", "on 200 questions", "at most 10 % of the repetitions"],
        ),
        (BOTH, ["the reference alone"]),
        (replace(WHOLE, alpha=0.025, k=5), ["97.5 %"]),
        (replace(WHOLE, segment="tenant 1"), ["For segment tenant 1: "]),
        (replace(WHOLE, k=0, keeps_everything=True, n=5), ["every answer of every step is kept", "5 calibration"]),
    ],
)
def test_the_promise_is_said_in_words(one: Certificate, words: list[str]) -> None:
    said = statement(one)
    assert all(word in said for word in words), said


def test_a_promise_for_most_calibrations_is_not_said_to_be_a_mean() -> None:
    assert "mean over calibrations" not in statement(SINGLE)
    assert "mean over calibrations" in statement(WHOLE)


PAC = replace(WHOLE, delta=0.1, k=15)


@each(
    "one, wanted, lacking",
    [
        (WHOLE, Guarantee("coverage", 0.1), []),
        (WHOLE, Guarantee("coverage", 0.2), []),
        (WHOLE, Guarantee("coverage", 0.05), ["alpha"]),
        (WHOLE, Guarantee("coverage", 0.05, 0.1), ["alpha", "delta is none"]),
        (PAC, Guarantee("coverage", 0.1, 0.1), []),
        (PAC, Guarantee("coverage", 0.1, 0.05), ["delta"]),
        (PAC, Guarantee("coverage", 0.1), []),
        (replace(PAC, delta=0.9, k=25), Guarantee("coverage", 0.1), ["not on average"]),
    ],
)
def test_what_a_certificate_lacks_is_said(one: Certificate, wanted: Guarantee, lacking: list[str]) -> None:
    found = shortfalls(one, wanted)
    assert len(found) == len(lacking), found
    assert all(word in said for word, said in zip(lacking, found, strict=True)), found


def test_a_promise_for_most_calibrations_is_none_that_a_calibration_brings_a_threshold() -> None:
    # Where calibrations may end without a certificate, few may bring a threshold that keeps the promise.
    assert "would certify a threshold that breaks this promise" in statement(SINGLE)
    assert "keeps this promise" not in statement(SINGLE)


def test_where_the_threshold_is_the_highest_its_law_is_a_lower_bound() -> None:
    said = statement(replace(WHOLE, kappa=math.inf))
    assert "a single one, of 200 questions, gives at least 90.05 % on average, and may lie below 90 %." in said
    assert "scores the next step above every answer, or as certain. No threshold is cheaper, though the" in said
    assert "standard deviation" not in said


@pytest.mark.parametrize(
    "asked",
    [
        Guarantee("coverage", 0.1, by_segment=True),
    ],
)
def test_what_was_asked_for_is_what_its_document_says(asked: Guarantee) -> None:
    assert asked_of(json.loads(canonical(asked_document(asked)))) == asked
    with pytest.raises(ConfigError):
        asked_of(asked_document(asked) | {"delta": 2})


def test_the_statement_survives_any_kind() -> None:
    make_one: Callable[[str], Certificate] = lambda kind: replace(BOTH, kind=kind)  # noqa: E731
    assert all(statement(make_one(kind)) for kind in ("coverage", "regret", "error"))


def test_who_always_asks_the_reference_takes_no_chance() -> None:
    regret = Certificate("regret", 0.1, 200, "", delta=0.1, kappa=-math.inf)
    assert (
        statement(regret, is_reference=True)
        == "it always asks the reference, so it cannot be worse than the reference."
    )
    assert "at most 10 % of the repetitions" in statement(regret)
