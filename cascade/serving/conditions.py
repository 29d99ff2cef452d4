"""The cascade that a configuration describes, and whether a certificate holds for it (`conformal.certificate`)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from cascade.conformal.certificate import SETTINGS, Certificate, MadeFor, differences, digest, renaming
from cascade.conformal.promise import Promise
from cascade.errors import UsageError
from cascade.factory import address
from cascade.money import Price
from cascade.plans.agents import AGENTS
from cascade.plans.prompts import load
from cascade.plans.verdict import example_verdicts
from cascade.providers.decision import described
from cascade.providers.registry import REPLAY
from cascade.safety import read_bounded, redact

if TYPE_CHECKING:
    from cascade.config import CascadeConfig
    from cascade.config.schema import ModelConfig
    from cascade.plans.prompts import Prompts

_MOST_FILE_BYTES = 16 << 20
_RATES = ("input", "output", "cached_input", "reasoning", "request")


def made_for(config: CascadeConfig, templates: Prompts | None = None) -> MadeFor:
    """Return the cascade that a configuration describes.

    `templates` are the prompts that the strategy was built with; by default those now on disk.
    """
    strategy, prices, written = config.strategy, config.prices(), templates or load(config.strategy.prompts)
    roles = [strategy.role(entry, config.models[entry].id) for entry in strategy.entries]
    used = {role: config.models[entry] for entry, role in zip(strategy.entries, roles, strict=True)}
    files = _own_files(config, list(used.values()))
    return {
        "strategy": strategy.described(roles),
        "horizon": strategy.horizon,
        "models": {role: _settings(entry, written) for role, entry in used.items()}
        | {name: {"name": name} | dict.fromkeys(SETTINGS) for name in strategy.free_calls},
        "step_models": strategy.step_roles(roles),
        "prices": {entry.id: _price(prices[entry.id], entry.settings.get("service_tier")) for entry in used.values()},
        "prompts_sha256": digest(asdict(written)),
        **({"own_files": files} if files else {}),
        "served_by": {entry.id: _served_by(config, entry) for entry in used.values()},
        "echoes": None,
    }


def _settings(entry: ModelConfig, written: Prompts) -> dict[str, Any]:
    agent = {} if entry.agent is None else {"agent": entry.agent}
    sent = {"settings": dict(entry.settings)} if entry.settings else {}
    decides = {} if entry.decides is None else {"decision": described(entry.decides, example_verdicts(written))}
    return {"name": entry.id, **{name: getattr(entry, name) for name in SETTINGS}, **agent, **sent, **decides}


def _own_files(config: CascadeConfig, used: Sequence[ModelConfig]) -> Mapping[str, str | None]:
    """Return the SHA-256 of each of the user's files that decides an answer, by a description of the file.

    It is None if the file cannot be read, or is too long to be code.
    """
    agents = {entry.agent for entry in used if entry.agent is not None}
    files = {**config.strategy.own_files, **{f"the agent {agent}": AGENTS.file(agent) for agent in agents}}
    digests = dict[str, str | None]()
    for name, path in sorted(files.items()):
        data = None
        with suppress(OSError):
            data = None if path is None else read_bounded(path, _MOST_FILE_BYTES)
        digests[name] = None if data is None else hashlib.sha256(data).hexdigest()
    return digests


def _served_by(config: CascadeConfig, entry: ModelConfig) -> Mapping[str, str | None] | None:
    """Return a model's provider and address; None if a replayed log takes the provider's place.

    The address comes from the configuration or the environment; it is None if the provider has a fixed one.
    """
    kind = config.provider_of(entry)
    if kind == REPLAY:
        return None
    sites = {(address(config, kind, site), site.model) for site in entry.sites.values()}
    shown = [
        (bare_address(base or "") + (f" as {model}" if model != entry.model else "")).strip() for base, model in sites
    ]
    return {"provider": kind, "address": ", ".join(sorted(filter(None, shown))) or None}


def bare_address(address: str) -> str:
    """Return an address without user, password, query and fragment, and without anything that looks like a key.

    >>> bare_address("https://me:secret@example.org:8443/v1/?key=abc")
    'https://example.org:8443/v1'
    """
    parts = urlsplit(address)
    return redact(urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", "")).rstrip("/"))


def _price(listed: Price | None, tier: str | None = None) -> Mapping[str, Any] | None:
    """Return a price at a service tier in whole pico-USD, without its source and note."""
    price = None if listed is None else listed.at_tier(tier)
    if price is None:
        return None
    rates = {name: getattr(price, name) for name in _RATES}
    writes = {"cache_write": price.cache_write, "cache_write_1h": price.cache_write_1h}
    write = {name: rate for name, rate in writes.items() if rate is not None}
    return {**rates, **write, "above": [[tokens, _price(higher)] for tokens, higher in price.above]}


def refuse_other_cascade(name: str, logged: MadeFor, configured: MadeFor) -> None:
    """Raise UsageError if the log with this name comes from another cascade than the configured one."""
    changed = differences(logged, configured, "the log")
    if changed:
        advice = renaming(logged, configured)
        raise UsageError(". ".join(filter(None, [f"{name} is of another cascade: {'; '.join(changed)}", advice])))


def void_reasons(
    config: CascadeConfig, certificate: Certificate, templates: Prompts | None, *, own_risk: bool = False
) -> Iterator[str]:
    """Yield why a certificate does not hold for a configuration, or promises less than the configuration wants.

    `templates` are the prompts in service, as for `made_for`; with `own_risk`, the certificate's own risk is enough.
    """
    yield from differences(certificate.made_for, made_for(config, templates))
    has, wanted = certificate.promise, config.guarantee
    if wanted is None:
        return
    if wanted.promise not in (None, has.kind):
        yield f"it promises {has.kind}, and {wanted.promise} is wanted"
        return
    confidence = has.confidence if wanted.confidence is None else wanted.confidence
    risk = has.risk if own_risk or wanted.risk is None else wanted.risk
    yield from certificate.shortfalls(Promise(has.kind, risk, confidence, has.rate))
