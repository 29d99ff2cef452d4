"""What a policy directory promised before, and what of it a new calibration takes over.

Without `--guarantee` every part that is not given stays as it was; with it the promise is asked for anew. Either way
it is said what changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import date
from typing import Any, NamedTuple

from cascade.api.policies import GivenPolicy
from cascade.calibration.fingerprint import unknown
from cascade.errors import ConfigError
from cascade.guarantees.base import Guarantee
from cascade.guarantees.words import dollars
from cascade.money import Price
from cascade.policies.artifact import PolicyArtifact, read

_UNSAID = "say it with --guarantee"


class Promise(NamedTuple):
    """What is promised, and for how many days; None: without end."""

    asked: Guarantee
    days: int | None


def held_before(given: GivenPolicy, *, anew: bool) -> PolicyArtifact | None:
    """Return what a policy directory holds; None where there is none, or no certificate in it.

    Args:
        given: the policy.
        anew: whether the promise is asked for anew, so that a file that cannot be read may be written over.

    Raises:
        ConfigError: what was promised is not known, and nothing else is asked for.
    """
    if given.directory is None:
        return None
    try:
        held = read(given.directory)
    except ConfigError as error:
        if anew:
            return None
        raise ConfigError([*error.problems, f"so what it promised is not known; {_UNSAID}"], error.source) from None
    if held.certificates and held.asked is None and not anew:
        raise ConfigError([f"what it promised is not on record; {_UNSAID}"], str(given.directory))
    return held if held.certificates else None


def days_held(held: PolicyArtifact) -> int | None:
    """Return for how many days the certificates were made; None where they do not expire."""
    first = held.certificates[0]
    if first.expires is None:
        return None
    return (date.fromisoformat(first.expires) - date.fromisoformat(first.created)).days


def changes(before: Promise, now: Promise) -> str:
    """Return in one line what was promised, and what of it changes.

    >>> changes(Promise(Guarantee("coverage", 0.03), None), Promise(Guarantee("coverage", 0.05), None))
    'promised before: coverage, alpha 0.03; changed: alpha 0.03 -> 0.05'
    """
    was, will = _parts(before), _parts(now)
    changed = [f"{name} {was[name] or 'none'} -> {will[name] or 'none'}" for name in was if was[name] != will[name]]
    said = ", ".join(_said(was))
    return f"promised before: {said}; changed: {', '.join(changed)}" if changed else f"promised as before: {said}"


def _parts(promise: Promise) -> dict[str, str]:
    """Return each part in words; empty where there is none."""
    asked = promise.asked
    shares = {name: "" if one is None else f"{one:g}" for name, one in (("alpha", asked.alpha), ("delta", asked.delta))}
    money = {"budget": asked.budget_nano_usd, "most": asked.most_nano_usd}
    return {
        "guarantee": asked.kind,
        **shares,
        **{name: "" if amount is None else dollars(amount) for name, amount in money.items()},
        "by group": "yes" if asked.by_group else "",
        "by segment": "yes" if asked.by_segment else "",
        "together": "yes" if asked.together else "",
        "abstaining": "yes" if asked.abstain else "",
        "days": "" if promise.days is None else str(promise.days),
    }


def _said(parts: Mapping[str, str]) -> Iterator[str]:
    for name, value in parts.items():
        if value:
            yield value if name == "guarantee" else name if value == "yes" else f"{name} {value}"


def lost(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Return what was on record of the cascade and is no longer, in words; None where nothing is lost."""
    gone = [name for name in unknown(now) if name not in unknown(before)]
    if not gone:
        return None
    return f"no longer on record, for the log is of another cascade: {', '.join(gone)}; give --config"


def prices_held(made_for: Mapping[str, Any]) -> dict[str, Price | None]:
    """Return the prices that a certificate was made at, by model."""
    return {model: None if price is None else _price(price) for model, price in (made_for.get("prices") or {}).items()}


def _price(held: Mapping[str, Any]) -> Price:
    above = tuple((int(tokens), _price(price)) for tokens, price in held["above"])
    return replace(Price(**{name: value for name, value in held.items() if name != "above"}), above=above)
