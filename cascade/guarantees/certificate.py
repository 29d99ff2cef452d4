"""The certificate as a document: canonical JSON, an id that is the hash of the rest, and its promise in words.

A certificate's id is the start of the SHA-256 of all its other fields, so that an edited field is detected. This
protects against accidents and silent edits. It is not a signature: anybody can compute the hash of an invented
certificate. Trust a certificate only after `calibration.verifying` has computed it again from the data.

Canonical means: keys sorted, no space, ASCII, floats by their shortest decimal, ±∞ as the strings "inf" and "-inf".
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, fields, replace
from datetime import date, timedelta
from typing import Any, TypeVar

from cascade.errors import ConfigError, UsageError
from cascade.guarantees.base import KINDS, Guarantee, get, is_known
from cascade.text import percent
from cascade.types import Certificate

_T = TypeVar("_T")

ID_LENGTH = 16
"""Number of hex digits: 64 bits, as in the ids of questions."""
_HASH = re.compile(r"[0-9a-f]{64}")


def of_segment(held: Mapping[str | None, _T], segment: str | None) -> _T | None:
    """Return the entry of a segment, else that of all segments (key None), else None.

    >>> of_segment({"law": 1}, "law"), of_segment({None: 2}, "art"), of_segment({"law": 1}, "art")
    (1, 2, None)
    """
    return held.get(segment, held.get(None))


def canonical(document: Any) -> bytes:
    """Return a JSON document in canonical form, for hashing.

    >>> canonical({"b": 0.1, "a": [None, "x"]})
    b'{"a":[null,"x"],"b":0.1}'
    """
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def digest(document: Any) -> str:
    """Return the SHA-256 of a document, 64 hex digits."""
    return hashlib.sha256(canonical(document)).hexdigest()


def number(value: float) -> float | str:
    """Return a float as a JSON value.

    >>> number(0.3), number(float("-inf"))
    (0.3, '-inf')
    """
    return str(value) if math.isinf(value) else value


def number_of(value: Any) -> float:
    """Return the float of a value that `number` made."""
    if value in {"inf", "-inf"}:
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is not a number")
    return float(value)


def make(unsigned: Certificate) -> Certificate:
    """Return a certificate with its id, computed from its other fields."""
    return replace(unsigned, calibration_id=_id_of(unsigned))


def to_document(certificate: Certificate) -> dict[str, Any]:
    """Return a certificate as plain JSON values. `from_document` is the inverse."""
    found = {name.name: getattr(certificate, name.name) for name in fields(certificate)}
    found["kappa"] = number(certificate.kappa)
    below = certificate.abstain_below
    found["abstain_below"] = None if below is None else number(below)
    found["made_for"] = json.loads(canonical(dict(certificate.made_for)))
    found["assumptions"] = list(certificate.assumptions)
    return found


def from_document(document: Any, source: str | None = None) -> Certificate:
    """Return the certificate in a document, if it is complete and unchanged.

    Raises:
        ConfigError: lists every problem: a field that is missing, unknown or of another type, an impossible value, or
            an id that does not match the other fields.
    """
    if not isinstance(document, dict):
        raise ConfigError(["a certificate is an object with named fields"], source)
    problems = list(_field_problems(document))
    if problems:
        raise ConfigError(problems, source)
    certificate = _read(document)
    problems = list(_value_problems(certificate))
    if not problems and certificate.calibration_id != _id_of(certificate):
        gives = f"but the other fields give {_id_of(certificate)}: the certificate was changed after it was made"
        problems = [f"calibration_id: it is {certificate.calibration_id}, {gives}"]
    if problems:
        raise ConfigError(problems, source)
    return certificate


def _id_of(certificate: Certificate) -> str:
    document = to_document(certificate)
    del document["calibration_id"]
    return digest(document)[:ID_LENGTH]


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    try:
        number_of(value)
    except (ValueError, OverflowError):
        return False
    return True


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_date(value: Any) -> bool:
    try:
        return isinstance(value, str) and date.fromisoformat(value).isoformat() == value
    except ValueError:
        return False


def _is_sha256(value: Any) -> bool:
    return isinstance(value, str) and _HASH.fullmatch(value) is not None


def _maybe(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or check(value)


_CHECKS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "kind": (is_known, f"one of {', '.join(KINDS.built_in)}, or an installed package's"),
    "alpha": (_is_number, "a number"),
    "n": (_is_int, "a whole number"),
    "calibration_id": (_is_text, "a text"),
    "delta": (_maybe(_is_number), "a number or null"),
    "k": (_maybe(_is_int), "a whole number or null"),
    "kappa": (_is_number, 'a number, "inf" or "-inf"'),
    "abstain_below": (_maybe(_is_number), 'a number, "inf", "-inf" or null'),
    "keeps_everything": (_is_bool, "true or false"),
    "data_sha256": (_is_sha256, "64 hex digits"),
    "policy_sha256": (_is_sha256, "64 hex digits"),
    "made_for": (lambda value: isinstance(value, dict), "an object"),
    "created": (_is_date, "a date, as in 2026-11-21"),
    "expires": (_maybe(_is_date), "a date or null"),
    "assumptions": (lambda value: isinstance(value, list) and all(map(_is_text, value)), "a list of texts"),
    "segment": (_maybe(_is_text), "a text or null"),
    "unit": (lambda value: value in {"question", "group"}, '"question" or "group"'),
    "reference": (_maybe(_is_text), "a text or null"),
    "comparator": (_maybe(_is_text), "a text or null"),
}
_ASKED_CHECKS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    **{name: _CHECKS[name] for name in ("kind", "alpha", "delta")},
    "abstain": (_is_bool, "true or false"),
    "by_segment": (_is_bool, "true or false"),
    "tested_before": (_maybe(_is_int), "a whole number or null"),
}


def asked_document(asked: Guarantee) -> dict[str, Any]:
    """Return the requested guarantee as plain JSON values. `asked_of` is the inverse."""
    return asdict(asked)


def asked_of(document: Any) -> Guarantee:
    """Return the requested guarantee in a document.

    >>> asked_of(asked_document(Guarantee("coverage", 0.05, by_segment=True))).by_segment
    True
    """
    if not isinstance(document, dict):
        raise ConfigError(["it is an object with named fields"])
    problems = list(_field_problems(document, _ASKED_CHECKS, "a request"))
    if problems:
        raise ConfigError(problems)
    try:
        return Guarantee(**document)
    except UsageError as error:
        raise ConfigError([str(error)]) from None


def _field_problems(
    document: Mapping[str, Any],
    checks: Mapping[str, tuple[Callable[[Any], bool], str]] = _CHECKS,
    whose: str = "a certificate",
) -> Iterator[str]:
    yield from (f"{name}: is missing" for name in checks if name not in document)
    yield from (f"{name}: {whose} has no such field" for name in document if name not in checks)
    for name, (fits, wanted) in checks.items():
        try:
            wrong = name in document and not fits(document[name])
        except TypeError:  # a list or an object instead of a name
            wrong = True
        if wrong:
            yield f"{name}: it is {wanted}"


def _read(document: Mapping[str, Any]) -> Certificate:
    below = document["abstain_below"]
    return Certificate(
        **{
            **document,
            "alpha": float(document["alpha"]),
            "delta": None if document["delta"] is None else float(document["delta"]),
            "kappa": number_of(document["kappa"]),
            "abstain_below": None if below is None else number_of(below),
            "assumptions": tuple(document["assumptions"]),
        }
    )


def _value_problems(certificate: Certificate) -> Iterator[str]:
    if certificate.n < 0:
        yield f"n: {certificate.n} questions"
    if certificate.k is not None and not 0 <= certificate.k <= certificate.n + 1:
        yield f"k: {certificate.k} is not a rank among {certificate.n} questions"
    for name in ("alpha", "delta"):
        share = getattr(certificate, name)
        if share is not None and not 0 < share < 1:
            yield f"{name}: {share:g} does not lie between 0 and 1"
    if certificate.expires is not None and certificate.expires < certificate.created:
        yield f"expires: {certificate.expires} is before {certificate.created}, the day it was made"


def expiry(created: date, days: int | None) -> str | None:
    """Return the last day on which a certificate is valid.

    >>> expiry(date(2026, 11, 21), 30), expiry(date(2026, 11, 21), None)
    ('2026-12-21', None)
    """
    return None if days is None else (created + timedelta(days=days)).isoformat()


def expired(certificate: Certificate, today: date) -> bool:
    """Whether a certificate has expired."""
    return certificate.expires is not None and today.isoformat() > certificate.expires


def shortfalls(certificate: Certificate, wanted: Guarantee) -> list[str]:
    """Return, in words, how a certificate promises less than requested; empty if it promises enough.

    A lower alpha or delta than requested is enough. A promise with delta also counts as one on average over
    calibrations if its rank is low enough, which is the case unless delta is large.
    """
    found = []
    if certificate.kind != wanted.kind:
        found.append(f"it promises {certificate.kind}, but {wanted.kind} is requested")
    if certificate.alpha > wanted.alpha:
        found.append(f"its alpha is {certificate.alpha:g}, but {wanted.alpha:g} is requested")
    if wanted.delta is not None and (certificate.delta is None or certificate.delta > wanted.delta):
        held = "none: it holds on average over calibrations" if certificate.delta is None else f"{certificate.delta:g}"
        found.append(f"its delta is {held}, but {wanted.delta:g} is requested")
    if wanted.delta is None and certificate.delta is not None and not _holds_on_average(certificate):
        found.append(f"it holds for most calibrations (delta {certificate.delta:g}), not on average over them")
    return found


def _holds_on_average(certificate: Certificate) -> bool:
    from cascade.conformal.split import allowed_rank

    return certificate.k is not None and certificate.k <= allowed_rank(certificate.n, certificate.alpha)


def statement(certificate: Certificate, *, is_reference: bool = False) -> str:
    """Return the promise in one sentence, and its limits in one or two more.

    Args:
        certificate: what is promised.
        is_reference: whether the policy always asks the reference alone, so that the promise is certain.

    >>> print(statement(Certificate("coverage", 0.1, 200, "", k=20, kappa=0.3)))
    With probability at least 90 % over the calibration and a fresh question, a right answer is among those kept, or \
no step would have given one. That is a mean over calibrations: a single one, of 200 questions, gives 90.05 % ± \
2.11 % (one standard deviation; more where scores tie), and may lie below 90 %. A calibration that certifies nothing \
is not counted as a miss.
    """
    if certificate.keeps_everything:
        return (
            "every answer of every step is kept, so that no threshold can miss one. "
            f"{certificate.n} calibration questions were too few for any threshold."
        )
    kind = get(certificate.kind)
    if is_reference and kind.reference_keeps_it:
        return f"{_whom(certificate)}it always asks the reference, so it cannot be worse than the reference."
    return f"{_whom(certificate)}{kind.describe(certificate)} {_caveat(certificate)}"


def _whom(certificate: Certificate) -> str:
    return "" if certificate.segment is None else f"For segment {certificate.segment}: "


def _caveat(certificate: Certificate) -> str:
    """Return the limits of a promise in words. A calibration without a certificate breaks no promise."""
    one = certificate
    n = f"{one.n} groups, one question of each" if one.unit == "group" else f"{one.n} questions"
    if one.delta is not None:
        return (
            f"If the calibration were repeated, each time on {n}, at most {percent(one.delta)} of the repetitions "
            f"would certify a threshold that breaks this promise.{_besides(one)}"
        )
    nothing = f"A calibration that certifies nothing is not counted as a {get(one.kind).worst}."
    if one.k is None:
        return f"That is a mean over calibrations on {n}: a single one may fall short of it. {nothing}"
    a, b = one.n + 1 - one.k, one.k
    mean, spread = a / (a + b), math.sqrt(a * b / ((a + b) ** 2 * (a + b + 1)))
    if one.kappa == math.inf:  # critical values tie there, so the distribution is a lower bound
        return (
            f"That is a mean over calibrations: a single one, of {n}, gives at least {mean * 100:.2f} % on "
            f"average, and may lie below {percent(one.alpha, rest=True)}. The threshold is the highest possible: a "
            "question goes on only where the policy scores the next step above every answer, or as certain. No "
            f"threshold is cheaper, though the coverage may be higher than promised. {nothing}"
        )
    return (
        f"That is a mean over calibrations: a single one, of {n}, gives {mean * 100:.2f} % ± "
        f"{spread * 100:.2f} % (one standard deviation; more where scores tie), and may lie below "
        f"{percent(one.alpha, rest=True)}. {nothing}"
    )


def _besides(one: Certificate) -> str:
    """Return a sentence on whether delta is for one segment or for all of them."""
    if one.segment is None:
        return ""
    return " That is for this segment by itself: the probability that any segment's promise is broken may be higher."
