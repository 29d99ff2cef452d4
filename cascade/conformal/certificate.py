"""A certificate: what is promised about served answers, at which threshold, and by which requests it is proven.

Its id is the start of the SHA-256 of all its other fields in canonical JSON, so that an edited field is detected. That
guards against accidents and silent edits. It is no signature: anybody can compute the hash of an invented certificate.
Trust one only after it was computed again from its data.

Canonical means: keys sorted, no space, ASCII, floats by their shortest decimal, ±∞ as the strings "inf" and "-inf".
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import date
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, WrapValidator

from cascade.conformal.path import Point
from cascade.conformal.promise import Promise
from cascade.errors import ConfigError, UsageError
from cascade.text import percent

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

ID_LENGTH = 16
"""Number of hex digits: 64 bits."""
_FLOATS = ("kappa", "bar", "losses")


def _promised(document: Any, read: Callable[[Any], Promise]) -> Promise:
    module, attribute, _ = str(document.get("kind") if isinstance(document, dict) else "").partition(":")
    if attribute and module not in sys.modules:
        raise ValueError(f"kind: a file imports no code, so import {module} before, or install it with an entry point")
    try:
        return read(document)
    except UsageError as error:
        raise ValueError(str(error)) from None


def _dated(text: str) -> str:
    if date.fromisoformat(text).isoformat() != text:
        raise ValueError("a date is written as in 2026-11-21")
    return text


Promised = Annotated[Promise, WrapValidator(_promised)]
"""A promise in a file."""
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
"""A SHA-256 in a file."""
_Day = Annotated[str, AfterValidator(_dated)]
_Threshold = Annotated[float, BeforeValidator(lambda given: float(given) if given in ("inf", "-inf") else given)]


@dataclass(frozen=True)
class Certificate:
    """A promise that is proven on n requests, with everything that it holds for.

    Attributes:
        promise: what is promised.
        kappa, bar: the threshold, and how sure an answer must be to be served (`conformal.path.Point`).
        n: the number of requests that prove it, each of another group.
        losses: how many of them are lost at the threshold; graded losses add up to a fraction.
        level: the probability, over calibrations, at which it was tested; None: on average over calibrations.
        attempts: which attempt it was on these requests, from 1 (`fitting.attempts`); None: unknown.
        unit: what is drawn at random: a "request"; a "group", and one request of it counts; or a "conversation", and
            every request of it counts.
        covers, name: "all" requests (name ""), those of the "segment" of that name, or those asked at that "level".
        reference: the model with which served answers are compared; None if labels decide what is right.
        comparator: what compares the two answers.
        data_sha256, policy_sha256: the hashes of the requests and of the policy.
        made_for: the strategy, models, prices and prompts for which it holds; None inside for unknown parts.
        created, expires: dates, ISO 8601, UTC; it holds until the end of the day `expires`, None: for ever.
        assumptions: what it rests on, in words.
    """

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid", strict=True)

    promise: Promised
    kappa: _Threshold
    n: Annotated[int, Field(ge=0)]
    losses: Annotated[float, Field(ge=0)]
    data_sha256: Sha256
    policy_sha256: Sha256
    created: _Day
    bar: _Threshold = -math.inf
    level: Annotated[float, Field(gt=0, lt=1)] | None = None
    attempts: Annotated[int, Field(ge=1)] | None = None
    unit: Literal["request", "group", "conversation"] = "request"
    covers: Literal["all", "segment", "level"] = "all"
    name: str = ""
    reference: str | None = None
    comparator: str | None = None
    made_for: Mapping[str, Any] = field(default_factory=dict)
    expires: _Day | None = None
    assumptions: tuple[str, ...] = ()

    @cached_property
    def id(self) -> str:
        """The start of the SHA-256 of all fields."""
        return digest(_fields_of(self))[:ID_LENGTH]

    @property
    def point(self) -> Point:
        """How requests are served under it."""
        return Point(self.kappa, self.bar)

    @property
    def segment(self) -> str | None:
        """The segment that it covers; None: it is not for a segment."""
        return self.name if self.covers == "segment" else None

    @property
    def document(self) -> dict[str, Any]:
        """All fields and the id as plain JSON values. `read` is the inverse."""
        return {**_fields_of(self), "id": self.id}

    @classmethod
    def read(cls, document: Any, source: str | None = None) -> Certificate:
        """Return the certificate in a document, if it is complete and unchanged.

        Raises:
            ConfigError: lists every problem: a field that is missing, unknown or of another type, an impossible value,
                or an id that the other fields do not give.
        """
        values = dict(document) if isinstance(document, dict) else {}
        signed = values.pop("id", None)
        missing = [f"{entry.name}: is missing" for entry in fields(cls) if entry.name not in values]
        try:
            certificate = _READER.validate_json(canonical(values))
        except ValidationError as error:
            raise ConfigError(dict.fromkeys([*missing, *problems_of(error)]), source) from None
        problems = missing or list(_value_problems(certificate))
        if not problems and certificate.id != signed:
            problems.append(f"id: it is {signed}, and the other fields give {certificate.id}: one was changed")
        if problems:
            raise ConfigError(problems, source)
        return certificate

    def expired(self, today: date) -> bool:
        """Whether it holds no more on a day."""
        return self.expires is not None and today.isoformat() > self.expires

    def shortfalls(self, target: Promise) -> list[str]:
        """Return, in words, where it promises less than is wanted; empty if it promises enough.

        A smaller risk, or a higher confidence, is enough. So is a confidence where a promise on average is wanted, if
        few enough are lost, which is so unless the confidence is low.
        """
        has, short = self.promise, []
        if has.kind != target.kind:
            short.append(f"it promises {has.kind}, and {target.kind} is wanted")
        if has.risk > target.risk:
            short.append(f"its risk is {has.risk:g}, and {target.risk:g} is wanted")
        if target.confidence is not None and (has.confidence or 0.0) < target.confidence:
            ours = "none, as it holds on average" if has.confidence is None else f"{has.confidence:g}"
            short.append(f"its confidence is {ours}, and {target.confidence:g} is wanted")
        lost = Fraction(self.losses) + 1
        if target.confidence is None and has.confidence is not None and lost > Fraction(repr(has.risk)) * (self.n + 1):
            short.append(f"it holds with confidence {has.confidence:g}, not on average over calibrations")
        return short

    def statement(self) -> str:
        """Return the promise in two sentences.

        >>> promise = Promise("regret", 0.05, 0.9)
        >>> print(Certificate(promise, 0.3, 600, 21, "0" * 64, "1" * 64, "2026-11-21").statement())
        With probability 90 % over the 600 requests that prove it, at least 95 % of requests are served such that the \
answer served is right, or the reference is wrong too. On at most 5 %, the answer served is wrong, and the reference \
alone is right.
        """
        promise, rules = self.promise, self.promise.rules
        units = {"request": "requests", "group": "requests, one of each group,", "conversation": "whole conversations"}
        whose = {"all": "", "segment": f"Segment {self.name}: ", "level": f"Level {self.name}: "}[self.covers]
        sure = "On average" if promise.confidence is None else f"With probability {percent(promise.confidence)}"
        over = f"over the {self.n:,} {units[self.unit]} that prove it"
        share, rest = percent(promise.risk, rest=True), percent(promise.risk)
        compared = "" if self.comparator is None else f", as {self.comparator} compares them"
        silent = "" if self.bar == -math.inf else ", or nothing is served"
        text = (
            f"{sure} {over}, at least {share} of requests are served such that {rules.kept}{compared}{silent}. "
            f"On at most {rest}, {rules.lost}."
        )
        return whose + (text if self.reference is None else text.replace("the reference", self.reference))


def canonical(document: Any) -> bytes:
    """Return a JSON document in canonical form, for hashing.

    >>> canonical({"b": 0.1, "a": [None, "x"]})
    b'{"a":[null,"x"],"b":0.1}'
    """
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def digest(document: Any) -> str:
    """Return the SHA-256 of a document, 64 hex digits."""
    return hashlib.sha256(canonical(document)).hexdigest()


def plain(record: DataclassInstance) -> dict[str, Any]:
    """Return the fields of a record by name."""
    return {attribute.name: getattr(record, attribute.name) for attribute in fields(record)}


def _fields_of(certificate: Certificate) -> dict[str, Any]:
    values = plain(certificate)
    for name in _FLOATS:
        values[name] = str(float(values[name])) if math.isinf(values[name]) else float(values[name])
    made_for = json.loads(canonical(dict(certificate.made_for)))
    values |= {"promise": plain(certificate.promise), "made_for": made_for}
    return values | {"assumptions": list(certificate.assumptions)}


def problems_of(error: ValidationError) -> list[str]:
    """Return a sentence for each problem of a document: the place in it, and what is wrong."""
    problems = [(".".join(map(str, problem["loc"])), problem) for problem in error.errors(include_url=False)]
    return [f"{path or 'it'}: {_SAYS.get(problem['type'], problem['msg'])}" for path, problem in problems]


_SAYS = {"missing": "is missing", "unexpected_keyword_argument": "there is no such field"}


def _value_problems(certificate: Certificate) -> Iterator[str]:
    if certificate.losses > certificate.n:
        yield f"losses: {certificate.losses:g} of {certificate.n} requests"
    if (certificate.covers == "all") != (not certificate.name):
        yield f"name: it is {certificate.name!r}, for a certificate that covers {certificate.covers}"
    if (certificate.promise.confidence is None) != (certificate.level is None):
        yield "level: a promise with a confidence has one, and no other"
    delta = certificate.promise.delta
    if delta is not None and certificate.level is not None and certificate.level > delta:
        yield f"level: {certificate.level:g} is more than 1 − confidence, {delta:g}"
    if certificate.expires is not None and certificate.expires < certificate.created:
        yield f"expires: {certificate.expires} is before {certificate.created}, the day it was made"


_READER = TypeAdapter(Certificate)
