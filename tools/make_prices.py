"""Write cascade/data/prices.json from the price map of the installed litellm (MIT): models priced by the token.

python tools/make_prices.py 2026-11-21
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from decimal import Decimal
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_MAP_FIELDS = {
    "input": "input_cost_per_token",
    "output": "output_cost_per_token",
    "cached_input": "cache_read_input_token_cost",
    "cache_write": "cache_creation_input_token_cost",
    "cache_write_1h": "cache_creation_input_token_cost_above_1hr",
    "reasoning": "output_cost_per_reasoning_token",
}
_MAP_AUDIO = {"audio_input": "input_cost_per_audio_token", "audio_output": "output_cost_per_audio_token"}
_MAP_REQUEST, _MAP_SEARCH = "input_cost_per_request", "search_context_cost_per_query"
_SERVICE_TIERS = ("priority", "flex")
_DECISIONS = "_decisions"
"""The suffix of what a chat model costs as a decision model."""
_SEARCHES = "-search-"
"""OpenAI's models of such a name search the web once for each chat completion, as its price list says; how often others
do is not told."""
_DECIDES = "evaluation"
"""The mode of a decision model, whose output is free."""
_MAP_TIERS = (128_000, 200_000, 256_000, 272_000)


def compact_map(litellm_map: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Reduce LiteLLM's map to the chat and decision models that are priced by the token, in USD per million tokens."""
    reduced: dict[str, dict[str, Any]] = {}
    for name, entry in litellm_map.items():
        decides = entry.get("mode") == _DECIDES
        if (entry.get("mode") not in {"chat", "completion", "responses"} and not decides) or name == "sample_spec":
            continue
        rates = _rates(entry, "")
        if decides and not rates.get("input"):
            continue  # the map has 0 for models that people host themselves
        if "input" not in rates or "output" not in rates:
            continue
        if entry.get(_MAP_REQUEST):
            rates["request"] = float(entry[_MAP_REQUEST])
        plain = dict(rates)
        rates["above"] = above = _above(entry, plain, "")
        tiers = {name: _service(entry, plain, above, f"_{name}") for name in _SERVICE_TIERS}
        rates["tiers"] = {name: tier for name, tier in tiers.items() if tier}
        rates["decisions"] = _service(entry, plain, above, _DECISIONS)
        rates |= {short: rate for short, field in _MAP_AUDIO.items() if (rate := _per_million(entry.get(field)))}
        sizes = entry.get(_MAP_SEARCH)
        if sizes and entry.get("litellm_provider") == "openai" and _SEARCHES in name:
            rates["search"] = {size.removeprefix("search_context_size_"): float(sizes[size]) for size in sorted(sizes)}
        if entry.get("litellm_provider") and "/" not in name:
            rates["provider"] = entry["litellm_provider"]
        reduced[name] = {short: rate for short, rate in rates.items() if rate not in ([], {}, None)}
    return reduced


def _above(entry: Mapping[str, Any], rates: Mapping[str, Any], service: str) -> list[dict[str, Any]]:
    """Return the rates of long inputs, at a service tier."""
    tiers = [(tokens, _rates(entry, f"_above_{tokens // 1000}k_tokens{service}")) for tokens in _MAP_TIERS]
    return [{"tokens": tokens, **rates, **tier} for tokens, tier in tiers if tier]


def _service(
    entry: Mapping[str, Any], plain: Mapping[str, Any], above: list[dict[str, Any]], service: str
) -> dict[str, Any] | None:
    """Return the rates of a service tier; None if a rate is missing that the model has without the tier."""
    rates = _rates(entry, service)
    longer = _above(entry, rates, service)
    whole = {"input", "output", *({"cached_input"} & plain.keys())} <= rates.keys() and len(longer) == len(above)
    return ({**rates, "above": longer} if longer else rates) if whole else None


def _per_million(amount: object) -> float | None:
    return float(Decimal(str(amount)).scaleb(6)) if isinstance(amount, int | float) else None


def _rates(entry: Mapping[str, Any], suffix: str) -> dict[str, Any]:
    rates: dict[str, Any] = {}
    for short, field in _MAP_FIELDS.items():
        amount = _per_million(entry.get(field + suffix))
        if amount is not None:
            rates[short] = amount
    for write in ("cache_write", "cache_write_1h"):
        if suffix.endswith(_DECISIONS):  # a write costs what other input does
            continue
        if rates.get(write, 0.0) <= rates.get("input", 0.0):
            rates.pop(write, None)  # no provider charges less: the map is wrong, or has 0 for what it does not know
    return rates


def main() -> None:
    """Read the map and write the table, dated as the command line says."""
    spec = find_spec("litellm")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("litellm is not installed")
    path = Path(spec.submodule_search_locations[0]) / "model_prices_and_context_window_backup.json"
    models = compact_map(json.loads(path.read_bytes()))
    head = {
        "as_of": sys.argv[1],
        "source": f"the price map of litellm {version('litellm')}",
        "unit": "USD per 10^6 tokens",
    }
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in sorted(models.items()))
    text = json.dumps(head, indent=1)[:-2] + ',\n "models": {\n' + lines + "\n }\n}\n"
    target = Path(__file__).parent.parent / "cascade" / "data" / "prices.json"
    target.write_text(text, "utf-8")
    print(f"{len(models)} models, {len(text)} bytes")


if __name__ == "__main__":
    main()
