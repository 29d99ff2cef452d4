"""Converts the configuration of a LiteLLM proxy: the models, the names of their keys, fallbacks, time limits.

Settings without a counterpart are listed by their paths. Keys, and addresses that contain keys, are never shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pydantic import ValidationError

from cascade.config.prices import from_litellm, is_litellm
from cascade.config.schema import PriceConfig
from cascade.errors import ConfigError
from cascade.money import PriceTable

_VARIABLE = "os.environ/"
_PLAIN = ("max_tokens", "temperature", "seed")
_KNOWN = frozenset({"model", "api_key", "api_base", *_PLAIN})
_SAYS_NOTHING = frozenset({"id", "mode"})
"""Fields of `model_info`; `mode` is read separately."""
_OBSERVING = {"share": 0.1, "alpha": 0.1}
"""The modes of a new gateway, with the default values: a tenth of the requests is drawn, and a tenth may differ."""
_RETRIES = 2
"""The number of retries that cascade makes."""
_SECTIONS = frozenset({"model_list", "router_settings", "litellm_settings"})
_NOT_CHAT = frozenset({"embedding", "image_generation", "audio_transcription", "audio_speech", "rerank", "moderation"})


class Carried(NamedTuple):
    """A configuration of cascade as plain values, and sentences about the settings left out."""

    config: dict[str, Any]
    left: tuple[str, ...]


def carried(document: Mapping[str, Any]) -> Carried:
    """Return cascade's configuration for a LiteLLM proxy's.

    Each model keeps its alias, so clients can keep using it. The ladder has the cheapest and the most expensive model,
    or the first and the last if prices are unknown. The gateway starts in the mode observe: the most expensive model
    serves until a promotion.

    Raises:
        ConfigError: the configuration has no model that cascade can call.

    >>> listed = {"model_name": "fast", "litellm_params": {"model": "openai/gpt-4o-mini", "api_key": "os.environ/A"}}
    >>> carried({"model_list": [listed]}).config["models"]
    {'fast': {'model': 'openai/gpt-4o-mini', 'api_key_env': 'A'}}
    """
    made = _Carrying()
    listed = document.get("model_list")
    for number, entry in enumerate(listed if isinstance(listed, list) else ()):
        made.take(f"model_list[{number}]", entry)
    if not made.models:
        raise ConfigError(["model_list: no model in it could be carried over", *made.left])
    for section in ("router_settings", "litellm_settings"):
        made.settings(section, _object(document.get(section)))
    for name in sorted(document.keys() - _SECTIONS):
        inside = document[name]
        names = [f"{name}.{one}" for one in inside] if isinstance(inside, Mapping) else [name]
        made.left += [f"{one}{_ADVICE.get(one, '')}" for one in names]
    config: dict[str, Any] = {"models": made.models, "strategy": made.ladder()}
    if len(config["strategy"]["models"]) > 1:
        config["modes"] = dict(_OBSERVING)
    if made.timeout_s is not None:
        config["timeouts"] = {"per_call_s": made.timeout_s}
    return Carried({**config, "provider": "litellm"}, tuple(made.left))


_ADVICE = {
    "general_settings.master_key": ": make a key of cascade's own: cascade serve --new-key NAME",
    "general_settings.database_url": ": cascade keeps traces and budgets in stores of its own (traces, budget.store)",
}


@dataclass
class _Carrying:
    """The settings converted so far."""

    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    timeout_s: float | None = None
    _spare: set[str] = field(default_factory=set)

    def take(self, where: str, entry: object) -> None:
        """Convert a deployment. A second deployment of an alias becomes a fallback of the first."""
        alias, given = _object(entry).get("model_name"), _object(_object(entry).get("litellm_params"))
        model = given.get("model")
        if not isinstance(alias, str) or not isinstance(model, str) or "*" in alias + model:
            self.left.append(f"{where}: it names no one model")
            return
        mode = _object(_object(entry).get("model_info")).get("mode")
        if mode in _NOT_CHAT:
            self.left.append(f"{where}: {alias} answers no chat requests")
            return
        info = _object(_object(entry).get("model_info"))
        made = {"model": model, **dict(self._settings(where, given)), **self._price(where, given, info)}
        self.left += [
            f"{where}.model_info.{name}" for name in info if name not in _SAYS_NOTHING and not is_litellm(name)
        ]
        if any(one["model"] == model for one in self.models.values()):
            self.left.append(f"{where}: {model} appears twice; cascade calls each model at one address")
            return
        if alias not in self.models:
            self.models[alias] = made
            return
        place = next(name for number in range(2, 1_000) if (name := f"{alias}_{number}") not in self.models)
        self.models[place] = made
        self._spare.add(place)
        self.models[alias]["fallbacks"] = [*self.models[alias].get("fallbacks", ()), place]
        self.left.append(f"{where}: requests for {alias} are not spread: {place} answers where {alias} is down")

    def _settings(self, where: str, given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        key, base = given.get("api_key"), given.get("api_base")
        if isinstance(key, str) and key.startswith(_VARIABLE):
            yield "api_key_env", key.removeprefix(_VARIABLE)
        elif key is not None:
            self.left.append(f"{where}.litellm_params.api_key: put the key into a variable, and name it as api_key_env")
        if isinstance(base, str) and base.startswith(_VARIABLE):
            self.left.append(f"{where}.litellm_params.api_base: write the address that {base} refers to as api_base")
        elif base is not None:
            yield "api_base", base
        for name in _PLAIN:
            if given.get(name) is not None:
                yield name, given[name]
        self.left += [f"{where}.litellm_params.{name}" for name in given if name not in _KNOWN and not is_litellm(name)]

    def _price(self, where: str, given: Mapping[str, Any], info: Mapping[str, Any]) -> dict[str, Any]:
        """Return the price; `litellm_params` takes precedence over `model_info`."""
        told = {name: value for name, value in {**info, **given}.items() if is_litellm(name)}
        if not told:
            return {}
        try:
            made = from_litellm(told)
            if {"input", "output"} <= made.keys():
                return {"price": PriceConfig.model_validate(made).model_dump(mode="json", exclude_defaults=True)}
            self.left += [f"{where}: {name}: a price needs rates of input and output" for name in told]
        except ValidationError as error:
            self.left += [
                f"{where}: its price: {'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()
            ]
        except ValueError as error:
            self.left += [f"{where}: {line}" for line in str(error).splitlines()]
        return {}

    def settings(self, where: str, given: Mapping[str, Any]) -> None:
        """Convert the proxy's own settings: fallbacks, retries, time limits."""
        for name, value in given.items():
            if name == "fallbacks":
                self._fallbacks(f"{where}.fallbacks", value)
            elif name == "num_retries":
                if value != _RETRIES:
                    self.left.append(f"{where}.num_retries: cascade tries again {_RETRIES} times at most, by a budget")
            elif name in {"timeout", "request_timeout"} and isinstance(value, int | float) and value > 0:
                self.timeout_s = float(value)
            else:
                self.left.append(f"{where}.{name}")

    def _fallbacks(self, where: str, value: object) -> None:
        for one in value if isinstance(value, list) else ():
            for alias, others in _object(one).items():
                found = [name for name in others if name in self.models] if isinstance(others, list) else []
                if alias not in self.models or not isinstance(others, list) or len(found) < len(others):
                    self.left.append(f"{where}: {alias}: a model that it names was not carried over")
                if alias in self.models and found:
                    known = [*self.models[alias].get("fallbacks", ()), *found]
                    self.models[alias]["fallbacks"] = list(dict.fromkeys(name for name in known if name != alias))

    def ladder(self) -> dict[str, Any]:
        """Return a ladder of the cheapest and the most expensive model."""
        aliases = [name for name in self.models if name not in self._spare]
        costs = {name: _cost(self.models[name]) for name in aliases}
        known = [name for name in aliases if costs[name] is not None]
        if len(known) == len(aliases):
            aliases = sorted(aliases, key=lambda name: costs[name] or 0.0)
        else:
            self.left.append("strategy: the order of the models' prices is not known; put the cheapest first")
        return {"kind": "ladder", "models": list(dict.fromkeys([aliases[0], aliases[-1]]))}


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _cost(entry: Mapping[str, Any]) -> float | None:
    """Return the highest cost of a call with 1,000 tokens in and 1,000 out; None without a price."""
    given = entry.get("price")
    price = PriceTable.bundled().price(entry["model"]) if given is None else PriceConfig.model_validate(given).price()
    return None if price is None else price.bound_nano_usd(1_000, 1_000)
