"""Converts a model's price from LiteLLM's fields (USD per token) to cascade's settings (USD per million tokens)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from cascade.money import LITELLM_RATES, LITELLM_REQUEST, LITELLM_SEARCH, LITELLM_TIERS

_SHORT = {field: short for short, field in LITELLM_RATES.items()}
_RATE = re.compile(rf"({'|'.join(_SHORT)})(?:_above_([0-9]+)k_tokens)?(?:_({'|'.join(LITELLM_TIERS)}))?")
_SIZE = "search_context_size_"
_RATES = frozenset({*LITELLM_RATES, "request"})
_PER_MILLION = _RATES | {"above", "tiers", "search"}
"""The names of cascade's own price settings."""


def is_litellm(name: object) -> bool:
    """Whether LiteLLM has a price field of this name."""
    return isinstance(name, str) and (bool(_RATE.fullmatch(name)) or name in {LITELLM_REQUEST, LITELLM_SEARCH})


def from_litellm(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a price in LiteLLM's fields, USD per token, as the settings of `schema.PriceConfig`.

    A missing rate for long prompts is taken from short prompts at the same tier.

    Raises:
        ValueError: the fields are wrong; one line for each problem.

    >>> from_litellm({"input_cost_per_token": 1e-6, "output_cost_per_token_flex": "2e-06"})
    {'input': 1.0, 'tiers': {'flex': {'output': 2.0}}}
    """
    problems = [
        f"{name} is in USD per million tokens, LiteLLM's {next(filter(is_litellm, given))} in USD per token: use "
        f"only one of them"
        for name in given
        if name in _PER_MILLION
    ]
    made: dict[str, Any] = {name: value for name, value in given.items() if not is_litellm(name)}
    tiers: dict[str, dict[str, Any]] = {}
    longer: dict[tuple[str, int], dict[str, Any]] = {}
    for name, value in given.items():
        part = _RATE.fullmatch(str(name))
        if part is not None:
            short, length, tier = part.groups()
            place = made if tier is None else tiers.setdefault(tier, {})
            place = place if length is None else longer.setdefault((tier or "", 1_000 * int(length)), {})
            problems += _put(place, _SHORT[short], name, value, 6)
        elif name == LITELLM_REQUEST:
            problems += _put(made, "request", name, value, 0)
        elif name == LITELLM_SEARCH and isinstance(value, Mapping):
            made["search"] = {}
            for size, amount in value.items():
                problems += _put(made["search"], str(size).removeprefix(_SIZE), f"{name}.{size}", amount, 0)
        elif name == LITELLM_SEARCH:
            problems.append(f"{name} has a price for each of {_SIZE}low, {_SIZE}medium and {_SIZE}high")
    if problems:
        raise ValueError("\n".join(problems))
    for (tier, tokens), rates in sorted(longer.items()):
        place = tiers.setdefault(tier, {}) if tier else made
        plain = {name: value for name, value in place.items() if name in _RATES}
        place["above"] = [*place.get("above", ()), {"tokens": tokens, **plain, **rates}]
    return {**made, "tiers": tiers} if tiers else made


def _put(place: dict[str, Any], short: str, name: str, value: object, digits: int) -> Iterator[str]:
    """Store an amount under its name, in USD per power of ten; yield its problems."""
    try:
        amount = Decimal(str(value)) if isinstance(value, int | float | str) and not isinstance(value, bool) else None
    except InvalidOperation:
        amount = None
    if amount is None or not amount.is_finite() or amount < 0:
        yield f"{name} is a number of USD, 0 or more, not {value!r}"
    else:
        place[short] = float(amount.scaleb(digits))
