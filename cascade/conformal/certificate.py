"""A certificate: what is promised about served answers, at which threshold, and which requests prove it.

Its id is the start of the SHA-256 of all its other fields in canonical JSON, so that an edited field is detected. That
guards against accidents and silent edits. It is not a signature: anybody can compute the hash of an invented
certificate. Trust one only after computing it again from its data.

Canonical means: sorted keys, no spaces, ASCII, floats as their shortest decimal, ±∞ as the strings "inf" and "-inf".
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import date
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, WrapValidator

from cascade.conformal.promise import Promise
from cascade.errors import ConfigError, UsageError
from cascade.text import percent

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

ID_LENGTH = 16
"""The number of hex digits of an id: 64 bits."""
_FLOATS = ("kappa", "losses")


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
_Threshold = Annotated[float, BeforeValidator(lambda raw: float(raw) if raw in ("inf", "-inf") else raw)]


@dataclass(frozen=True)
class Certificate:
    """A promise that is proven on n requests, with the conditions under which it holds.

    Attributes:
        promise: what is promised.
        kappa: the threshold: a walk goes on while the doubt is at least as large.
        n: the number of requests that prove it, each of another group.
        losses: how many of them are lost at the threshold; graded losses add up to a fraction.
        level: the probability, over calibrations, at which it was tested; None: on average over calibrations.
        attempts: which attempt it was on these requests, from 1 (`fitting.attempts`); None: unknown.
        unit: what is drawn at random: a "request"; a "group", of which one request counts; or a "conversation", of
            which every request counts.
        covers, name: "all" requests (name ""), those of the "segment" of that name, or those asked at that "level".
        reference: the model with which served answers are compared; None if labels decide what is right.
        comparator: what compares the two answers, or judges each by the accepted ones.
        data_sha256, policy_sha256: the hashes of the requests and of the policy.
        made_for: the strategy, models, prices and prompts for which it holds; unknown parts are None.
        created, expires: dates, ISO 8601, UTC; it holds until the end of the day `expires`, or for ever if None.
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
    def segment(self) -> str | None:
        """The segment that it covers; None if it is not for a segment."""
        return self.name if self.covers == "segment" else None

    @property
    def document(self) -> dict[str, Any]:
        """All fields and the id as plain JSON values. `read` is the inverse."""
        return {**_fields_of(self), "id": self.id}

    @classmethod
    def read(cls, document: Any, source: str | None = None) -> Certificate:
        """Return the certificate in a document, if it is complete and unchanged.

        Raises:
            ConfigError: lists every problem: a field that is missing, unknown or of a wrong type, an impossible value,
                or an id that does not match the other fields.
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
        """Return whether the certificate has expired on this day."""
        return self.expires is not None and today.isoformat() > self.expires

    def shortfalls(self, target: Promise) -> list[str]:
        """Return, in words, where it promises less than the target; empty if it promises enough.

        A smaller risk or a higher confidence is enough. If the target holds on average, a promise with a confidence is
        enough if its losses pass the test of a promise on average too, as they do unless the confidence is low.
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
        text = (
            f"{sure} {over}, at least {share} of {'such ' * (self.unit == 'group')}requests are served such that "
            f"{rules.kept_when}{compared}. On at most {rest}, {rules.lost_when}."
        )
        if rules.graded:
            text = f"{sure} {over}, the mean loss is at most {rest}: 0 where {rules.kept_when}{compared}, else more."
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
    """Return a sentence for each problem of a document: where it is, and what is wrong."""
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


# --- what a certificate is made for ---
# A change in any part makes another cascade, about which the certificate says nothing. A part that was not recorded is
# None and is not compared; `unknown` lists such parts. `serving.conditions` describes a configuration by the same ones,
# as plain JSON values:
#
#     strategy        the section of the configuration, without its prompts
#     horizon         the number of steps
#     models          by role: name, max_tokens, temperature, seed, and the agent through which it answers, if any; for
#                     a decision model also its dialect, the questions, and the hash of how cascade writes the data
#     step_models     the model that answers each step; None if several do
#     prices          by model, pico-USD per token
#     prompts_sha256  the hash of the prompts
#     own_files       the SHA-256 of each of the user's files that decides an answer; left out if there are none
#     served_by       by model: the kind of provider, and the address without user, query and keys
#     echoes          by model, the model names that its replies gave

MadeFor: TypeAlias = Mapping[str, Any]
MOVES = "-latest"
"""The end of a model's name that its vendor moves from version to version."""
SETTINGS = ("max_tokens", "temperature", "seed")
"""The settings of a model that decide its answers."""
_BY_NAME: Mapping[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "prices": ("the price of {}", lambda _old, _new: False),
    "own_files": ("the file of {}", lambda old, _new: old is None),
    "served_by": ("the provider of {}", lambda old, new: old is None or new is None),
    "echoes": ("the name that {} answers by", lambda _old, _new: False),
}
"""The parts compared name by name, if both cascades have the name: a label, and a test for values not on record."""


def differences(then: MadeFor, now: MadeFor, subject: str = "the certificate") -> list[str]:
    """Return the differences between two cascades, a sentence each; `subject` was made for the first.

    >>> small = {"models": {"base": {"name": "small", "seed": None}}}
    >>> differences(small, {"models": {"base": {"name": "large", "seed": 1}}})
    ['base is large; the certificate was made for small']
    """
    return [f"{label} is {_text(new)}; {subject} was made for {_text(old)}" for label, old, new in _compared(then, now)]


def _compared(then: MadeFor, now: MadeFor) -> Iterator[tuple[str, Any, Any]]:
    """Yield the parts that differ: a label, the value of the first cascade, and that of the second."""

    def on_record(name: str) -> bool:
        return then.get(name) is not None and now.get(name) is not None

    if on_record("strategy"):  # it names the models of a ladder in their order
        yield from _innermost("strategy", then["strategy"], now["strategy"])
    else:
        before, after = then.get("step_models") or (), now.get("step_models") or ()
        same_models = len(before) == len(after) and {*before} - {None} == {*after} - {None}
        if same_models and any(None not in pair and pair[0] != pair[1] for pair in zip(before, after, strict=True)):
            yield "the order of the models", _in_order(before), _in_order(after)
        if on_record("horizon") and then["horizon"] != now["horizon"]:
            yield "the number of steps", then["horizon"], now["horizon"]
    if on_record("models"):
        yield from _models(then, now)
    if on_record("prompts_sha256") and then["prompts_sha256"] != now["prompts_sha256"]:
        yield "the hash of the prompts", then["prompts_sha256"][:8], now["prompts_sha256"][:8]
    for section, (label, unsaid) in _BY_NAME.items():
        old, new = then.get(section) or {}, now.get(section) or {}
        for name in sorted(old.keys() & new.keys()):
            was, here = old[name], new[name]
            changed = not {*here} <= {*was} if section == "echoes" else was != here
            if changed and not unsaid(was, here):
                yield label.format(name), was or "unknown", here or "unknown"


def _innermost(path: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the innermost values that differ, each with its path. Named items of lists are compared one by one."""
    by_name = _by_own_name(old), _by_own_name(new)
    if by_name[0] and by_name[1] and [*by_name[0]] == [*by_name[1]]:
        old, new = by_name
    if isinstance(old, Mapping) and isinstance(new, Mapping) and old.get("kind") == new.get("kind"):
        for name in dict.fromkeys([*old, *new]):
            yield from _innermost(f"{path}.{name}", old.get(name), new.get(name))
    elif old != new:
        yield path, old, new


def _by_own_name(items: Any) -> Mapping[str, Any] | None:
    """Return a list's entries by name; None if one has no name of its own."""
    listed = items if isinstance(items, list | tuple) else ()
    named = {entry["name"]: entry for entry in listed if isinstance(entry, Mapping) and "name" in entry}
    return named if len(named) == len(listed) else None


def _models(then: MadeFor, now: MadeFor) -> Iterator[tuple[str, Any, Any]]:
    old, new = then["models"], now["models"]
    if old.keys() - new.keys() and new.keys() - old.keys():  # in a ladder each model is its own role
        yield "the list of models", models_said(then), models_said(now)
        return
    for role in sorted(old.keys() | new.keys()):
        was, here = old.get(role, {"name": None}), new.get(role, {"name": None})
        if was["name"] != here["name"]:
            yield role, was["name"], here["name"]
        elif _has_settings(was) and _has_settings(here):
            yield from (
                (f"{role}.{name}", was.get(name), here.get(name))
                for name in (*SETTINGS, "agent", "settings")
                if was.get(name) != here.get(name)
            )
            yield from _innermost(f"{role}.decision", was.get("decision"), here.get("decision"))


def _has_settings(settings: Mapping[str, Any]) -> bool:
    """Whether a model's settings are on record; a seed on record may still be None."""
    return settings.get("max_tokens") is not None


def moving(cascade: MadeFor) -> tuple[str, ...]:
    """Return an assumption for each model whose name may mean another model tomorrow.

    >>> moving({"models": {"judge": {"name": "typesafe/jev-latest"}, "guide": {"name": "large"}}})
    ('typesafe/jev-latest is a name that its vendor may give to another model: it means the same one.',)
    """
    names = dict.fromkeys(str(model.get("name")) for model in (cascade.get("models") or {}).values())
    moves = [name for name in names if name.partition("@")[0].endswith(MOVES)]
    return tuple(
        [f"{name} is a name that its vendor may give to another model: it means the same one." for name in moves]
    )


def _in_order(names: Iterable[str | None]) -> str:
    return ", then ".join([name or "any" for name in names])


def models_said(cascade: MadeFor) -> str:
    """Return the models of a cascade as text, those of a ladder in their order; empty if not recorded.

    >>> models_said({"models": {"base": {"name": "small"}, "guide": {"name": "large"}}})
    'base small, guide large'
    >>> models_said({"models": {"a": {"name": "a"}, "b": {"name": "b"}}, "step_models": ["b", "a"]})
    'b, then a'
    """
    models, order = cascade.get("models") or {}, cascade.get("step_models") or [None]
    if None not in order and {*order} == {*models}:
        return _in_order(order)
    named = {role: model["name"] for role, model in models.items()}
    return ", ".join([name if role == name else f"{role} {name}" for role, name in named.items()])


def _text(value: Any) -> str:
    """Return a value as text: a price as its rates, a section as its kind, a list as its items."""
    if isinstance(value, Mapping) and "input" in value:
        rates = [f"{name} {rate / 1e6:g}" for name, rate in value.items() if rate and isinstance(rate, int)]
        above = [f"above {value['above']}"] if value.get("above") else []
        return ", ".join(["USD per million", *rates, *above])
    if isinstance(value, Mapping) and "address" in value:
        return " at ".join([str(text) for text in (value["provider"], value["address"]) if text is not None])
    if isinstance(value, Mapping):
        return str(value.get("kind", value.get("name", dict(value))))
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value)) or "none"
    return "none" if value is None else str(value)


def unknown(cascade: MadeFor) -> list[str]:
    """Return the parts of a cascade that were not recorded; a change in them would not be noticed.

    >>> unknown({"strategy": None, "models": None, "prices": {}, "prompts_sha256": "00"})
    ['the strategy', 'the models', 'where the models are served']
    """
    models, strategy = cascade.get("models") or {}, cascade.get("strategy")
    ladder = len(models) > 1 and all(role == model["name"] for role, model in models.items())
    lacks = {
        "the strategy": strategy is None,
        "the models": cascade.get("models") is None,
        "the prices": cascade.get("prices") is None,
        "the order of the models": strategy is None and ladder and not all(cascade.get("step_models") or [None]),
        "the models’ settings": not all(map(_has_settings, models.values())),
        "where the models are served": not all((cascade.get("served_by") or {"": None}).values()),
        "the prompts": cascade.get("prompts_sha256") is None,
    }
    return [name for name, missing in lacks.items() if missing]


def renaming(logged: MadeFor, configured: MadeFor) -> str:
    """Return a hint to give a log's models their configured names, if there are as many and all differ; else ""."""
    old, new = logged.get("step_models") or (), configured.get("step_models") or ()
    if None in old or None in new or len(old) != len(new) or {*old} & {*new}:
        return ""
    renamed = " ".join([f"--rename {was}={here}" for was, here in zip(old, new, strict=True)])
    return f"If these are the same models under other names: cascade import LOG -o NEW {renamed}" if old else ""
