"""The fingerprint of a cascade: the strategy, models, prices and prompts for which a certificate holds.

A change in any of them makes another cascade, to which the calibration questions do not apply. A value that the log
does not record is None and is not compared; `unknown` lists such values in words.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlsplit, urlunsplit

import numpy as np

from cascade.conformal.arrays import Bools
from cascade.episodes.table import EpisodeTable
from cascade.errors import UsageError
from cascade.guarantees.certificate import digest, of_segment
from cascade.money import Price, exact_dollars
from cascade.policies.artifact import PolicyArtifact
from cascade.safety import read_bounded, redact
from cascade.text import counted
from cascade.types import Certificate

if TYPE_CHECKING:
    from cascade.config import CascadeConfig
    from cascade.config.schema import ModelConfig
    from cascade.conformal.scope import Kind, Scope
    from cascade.strategies.prompts import Prompts

# --- Counts of the answers and signals of a log's questions at each step, for `policies.scope` ---


def shown(table: EpisodeTable) -> list[dict[str, Any]]:
    """Return the counts of each step as plain JSON values: one `policies.scope.Shown` for each step.

    A question counts at the steps that the log has of it.
    """
    known = {name: ~np.isnan(values) for name, values in sorted(table.signals.items())}
    found: list[dict[str, Any]] = [{} for _ in range(table.arrays.horizon)]
    for t, many, rows in _by_answers(table):
        counts = {name: int(np.count_nonzero(have[rows, t])) for name, have in known.items()}
        signals = {name: count for name, count in counts.items() if count}
        found[t][many] = {"of": int(np.count_nonzero(rows)), "signals": signals}
    return found


def _by_answers(table: EpisodeTable) -> Iterator[tuple[int, str, Bools]]:
    """Yield each step, from 0, with each number of answers there and the questions that have it, bool (n,)."""
    answers = table.arrays.present.sum(axis=2)
    for t in range(table.arrays.horizon):
        there = table.has(t + 1)
        for many in np.unique(answers[there, t]).tolist():
            yield t, str(many), there & (answers[:, t] == many)


def odd(table: EpisodeTable, scope: Scope) -> Bools:
    """Return which questions of a log have an odd step, bool (n,): `Scope.odd`."""
    from cascade.conformal.scope import usual  # of audits and fresh questions

    found = np.zeros(table.n, dtype=np.bool_)
    for t, many, rows in _by_answers(table):
        at = _shown_at(scope, t)
        if many not in at:
            continue
        if int(many) < usual(at):
            found |= rows
            continue
        kind = at[many]
        for signal in scope.reads:
            if kind["of"] < 2 * kind["signals"].get(signal, 0) < 2 * kind["of"]:
                found |= _lacking(table, signal, t, rows)
    return found


def _shown_at(scope: Scope, t: int) -> Mapping[str, Any]:
    """Return the counts of the calibration questions at a step, from 0; empty if there are none."""
    return scope.shown[t] if t < len(scope.shown) else {}


def _lacking(table: EpisodeTable, signal: str, t: int, rows: Bools) -> Bools:
    """Return which of the questions in `rows` lack a signal at a step."""
    values = table.signals.get(signal)
    return rows if values is None else rows & np.isnan(values[:, t])


def outside(table: EpisodeTable, scope: Scope) -> Bools:
    """Return which questions of a log have a step that the certificate does not cover, bool (n,): `Scope.outside`."""
    found = np.zeros(table.n, dtype=np.bool_)
    for t, many, rows in _by_answers(table):
        kind = _shown_at(scope, t).get(many)
        if kind is None:
            found |= rows
            continue
        for name in scope.reads:
            if kind["signals"].get(name, 0) == kind["of"]:
                found |= _lacking(table, name, t, rows)
    return found


def describe_uncovered(table: EpisodeTable, certificates: Sequence[Certificate]) -> str | None:
    """Return the share of a log that no certificate covers and its cost, as a sentence; None without a certificate.

    Such questions are those of a segment without a certificate, and those of a kind that was not calibrated. The
    orchestrator decides the same before it answers (`serving.certified`).
    """
    from cascade.calibration.scores import reference_cost
    from cascade.conformal.scope import unlike  # of audits and fresh questions

    if not certificates:
        return None
    by_segment = {one.segment: one for one in certificates}
    places = []
    for place, (segment, kind) in enumerate(zip(table.segments, table.kinds, strict=True)):
        certificate = of_segment(by_segment, segment)
        if certificate is None or (kind is not None and any(unlike(kind, certificate.made_for.get("requests")))):
            places.append(place)
    share = f"{100 * len(places) / max(len(table.ids), 1):.1f} % of the log"
    said = f"{counted(len(places), 'question')} ({share}) lie outside the certificate: the guide answers such requests"
    if not places:
        return said
    mean = reference_cost(table.take(np.array(places)))
    cost = "an unknown amount" if mean is None else exact_dollars(round(mean * len(places)))
    return f"{said}, which costs {cost} for those"


# --- fingerprint ---

MadeFor: TypeAlias = Mapping[str, Any]
_SETTINGS = ("max_tokens", "temperature", "seed")


def made_for(source: CascadeConfig | EpisodeTable, templates: Prompts | None = None) -> MadeFor:
    """Return the identity of a cascade as plain JSON values: all of a configuration, or the part that a log records.

    Keys: `strategy` (its section), `horizon` (T), `models` (by role: name, max_tokens, temperature, seed),
    `step_models` (the model that answers each step; None if several do), `prices` (by model, pico-USD a token),
    `prompts_sha256`, `own_files` (the SHA-256 of each of the user's files that decides an answer: the module of an
    agent, a verifier or a strategy, a schema; left out if there is none), `served_by` (by model: the provider's kind,
    and the address without user, query and anything that looks like a key), `echoes` (by model, the model names in its
    replies).

    Args:
        source: the configuration, or a log.
        templates: the prompts that the strategy was built with; by default those that the configuration names, as they
            are on the disk now.
    """
    return _of_table(source) if isinstance(source, EpisodeTable) else _of_config(source, templates)


def _of_config(config: CascadeConfig, templates: Prompts | None) -> MadeFor:
    strategy, prices = config.strategy, config.prices()
    roles = [strategy.role(place, config.models[place].model) for place in strategy.places]
    used = {role: config.models[place] for place, role in zip(strategy.places, roles, strict=True)}
    return {
        "strategy": strategy.described(roles),
        "horizon": strategy.horizon,
        "models": {
            role: {"name": entry.model}
            | {name: getattr(entry, name) for name in _SETTINGS}
            | ({} if entry.agent is None else {"agent": entry.agent})
            for role, entry in used.items()
        }
        | {name: {"name": name} | dict.fromkeys(_SETTINGS) for name in strategy.free_calls},
        "step_models": strategy.step_roles(roles),
        "prices": {entry.model: _price(prices[entry.model]) for entry in used.values()},
        "prompts_sha256": _prompts_digest(config, templates),
        **_own_files(config, list(used.values())),
        "served_by": {entry.model: _served_by(config, entry) for entry in used.values()},
        "echoes": None,
    }


def _own_files(config: CascadeConfig, used: Sequence[ModelConfig]) -> dict[str, dict[str, str | None]]:
    """Return the SHA-256 of each of the user's files that decides an answer, by a description of the file."""
    named = {entry.agent for entry in used if entry.agent is not None}
    found = dict(config.strategy.own_files)
    if named:
        from cascade.strategies.agents import AGENTS

        found |= {f"the agent {agent}": AGENTS.file(agent) for agent in named}
    digests = {what: _file_digest(path) for what, path in sorted(found.items())}
    return {"own_files": digests} if digests else {}


def _file_digest(path: Path | None) -> str | None:
    """Return the SHA-256 of a file; None if it cannot be read, or is too long to be code."""
    try:
        data = None if path is None else read_bounded(path, _MOST_FILE_BYTES)
    except OSError:
        return None
    return None if data is None else hashlib.sha256(data).hexdigest()


def _prompts_digest(config: CascadeConfig, templates: Prompts | None) -> str:
    """Return the digest of the prompts, and of the limit on a context's length if there is one."""
    from cascade.strategies.prompts import load

    texts, limit = asdict(templates or load(config.strategy.prompts)), config.limits.context_chars
    return digest(texts if limit is None else {**texts, "context_chars": limit})


_MOST_FILE_BYTES = 16 << 20
_STANDS_IN = "replay"
"""The provider that replays logged replies."""


def _served_by(config: CascadeConfig, entry: ModelConfig) -> dict[str, str | None] | None:
    """Return a model's provider and address; None if a replayed log takes the provider's place.

    The address comes from the configuration or the environment; None if the provider has a fixed one.
    """
    kind = entry.provider or config.provider.kind
    if kind == _STANDS_IN:
        return None
    from cascade.factory import address  # imported here: it loads the providers, which a log alone does not need

    base = address(config, kind, entry)
    return {"provider": kind, "address": None if base is None else bare_address(base)}


def bare_address(address: str) -> str:
    """Return an address without user, password, query and fragment, and without anything that looks like a key.

    >>> bare_address("https://me:secret@example.org:8443/v1/?key=abc")
    'https://example.org:8443/v1'
    """
    parts = urlsplit(address)
    return redact(urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", "")).rstrip("/"))


def _of_table(table: EpisodeTable) -> MadeFor:
    unknown = dict.fromkeys(_SETTINGS)
    return {
        "strategy": None,
        "horizon": table.arrays.horizon,
        "models": {role: {"name": " or ".join(names)} | unknown for role, names in table.models.items()} or None,
        "step_models": list(table.step_models) if any(table.step_models) else None,
        "prices": None,
        "prompts_sha256": None,
        "served_by": None,
        "echoes": {model: list(names) for model, names in table.echoes.items()} or None,
    }


def _price(price: Price | None) -> dict[str, Any] | None:
    """Return a price as whole pico-USD, without its place and notes."""
    if price is None:
        return None
    plain = {name: getattr(price, name) for name in ("input", "output", "cached_input", "reasoning", "request")}
    if price.cache_write is not None:
        plain["cache_write"] = price.cache_write
    return plain | {"above": [[tokens, _price(higher)] for tokens, higher in price.above]}


def differences(then: MadeFor, now: MadeFor) -> list[str]:
    """Return the differences between a cascade and the one that a certificate was made for, a sentence each.

    >>> small = {"models": {"base": {"name": "small", "seed": None}}}
    >>> differences(small, {"models": {"base": {"name": "large", "seed": 1}}})
    ['base is large; the certificate was made for small']
    """
    return list(_differences(then, now))


def _differences(then: MadeFor, now: MadeFor) -> Iterator[str]:
    yield from _changed("strategy", then.get("strategy"), now.get("strategy"))
    if then.get("strategy") is None or now.get("strategy") is None:  # otherwise another difference already says so
        yield from _changed("number of steps", then.get("horizon"), now.get("horizon"))
    if then.get("models") is not None and now.get("models") is not None:
        yield from _models_changed(then, now)
    yield from _order_changed(then, now)
    for model, was, here in _both(then, now, "prices"):
        if was != here:
            yield f"the price of {model} is {_rates(here)}; the certificate was made at {_rates(was)}"
    yield from _files_changed(then, now)
    for model, was, here in _both(then, now, "served_by"):
        if was is not None and here is not None and was != here:
            yield f"{model} is served by {_where(here)}; the certificate was made with {_where(was)}"
    for model, was, here in _both(then, now, "echoes"):
        if other := sorted(set(here) - set(was)):
            before = " or ".join(was)
            yield f"{model} answered as {' and '.join(other)}; the certificate was made when it answered as {before}"


def _files_changed(then: MadeFor, now: MadeFor) -> Iterator[str]:
    if None not in {then.get("prompts_sha256"), now.get("prompts_sha256")} and (
        then["prompts_sha256"] != now["prompts_sha256"]
    ):
        yield "the prompts are not those that the certificate was made with"
    for what, was, here in _both(then, now, "own_files"):
        if was is not None and was != here:
            yield f"the file of {what} has changed since the certificate was made"


def _both(then: MadeFor, now: MadeFor, part: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield the models named in a section of both cascades, with their old and new settings."""
    was, here = then.get(part) or {}, now.get(part) or {}
    yield from ((model, was[model], here[model]) for model in sorted(was.keys() & here.keys()))


def _changed(what: str, then: Any, now: Any) -> Iterator[str]:
    if then is not None and now is not None and then != now:
        yield f"the {what} is {_shown(now, then)}; the certificate was made for {_shown(then, now)}"


def _shown(value: Any, beside: Any) -> str:
    """Return a value as text; for a section, only its kind and the settings that differ from the other section's."""
    if not isinstance(value, Mapping) or not isinstance(beside, Mapping):
        return str(value)
    differing = [name for name in value if value[name] != beside.get(name)]
    settings = ", ".join(f"{name} {_setting(value[name], beside.get(name))}" for name in differing if name != "kind")
    return f"{value.get('kind', '')} ({settings})" if settings else str(value.get("kind", ""))


def _setting(value: Any, beside: Any) -> str:
    """Return a setting as text; for a list, its names, or the differences between items of the same names.

    >>> _setting([{"name": "a", "purpose": "answer"}, {"name": "b", "purpose": "judge"}], None)
    'a, b'
    >>> _setting([{"name": "b", "purpose": "judge", "parents": ["a"]}], [{"name": "b", "purpose": "verify"}])
    'b: purpose judge, parents a'
    """
    if not isinstance(value, list | tuple):
        return str(value)
    names, others = _names(value), _names(beside if isinstance(beside, list | tuple) else ())
    if names != others:
        return ", ".join(names) or "none"
    return "; ".join(
        f"{name}: "
        + ", ".join(f"{key} {_setting(one[key], other.get(key))}" for key in one if one[key] != other.get(key))
        for name, one, other in zip(names, value, beside, strict=True)
        if one != other
    )


def _names(listed: Iterable[Any]) -> list[str]:
    return [str(one.get("name")) if isinstance(one, Mapping) else str(one) for one in listed]


def _models_changed(before: MadeFor, after: MadeFor) -> Iterator[str]:
    then, now = before["models"], after["models"]
    if set(then) - set(now) and set(now) - set(then):  # in a ladder each model is its own role
        yield f"the models are {models_said(after)}; the certificate was made for {models_said(before)}"
        return
    for role in sorted(set(then) | set(now)):
        if role not in now:
            yield f"nothing is {role}; the certificate was made for {then[role]['name']} as {role}"
        elif role not in then:
            yield f"{now[role]['name']} is {role}; the certificate was made without one"
        elif then[role]["name"] != now[role]["name"]:
            yield f"{role} is {now[role]['name']}; the certificate was made for {then[role]['name']}"
        else:
            yield from _settings_changed(role, then[role], now[role])


def _order_changed(then: MadeFor, now: MadeFor) -> Iterator[str]:
    """Yield one sentence if the same models answer other steps and no other sentence says so."""
    was, is_now = then.get("step_models"), now.get("step_models")
    if was is None or is_now is None or len(was) != len(is_now) or set(was) - {None} != set(is_now) - {None}:
        return
    if then.get("strategy") is not None and now.get("strategy") is not None:  # it names the models in their order
        return
    if any(None not in pair and pair[0] != pair[1] for pair in zip(was, is_now, strict=True)):
        yield f"the order of the models is {_in_order(is_now)}; the certificate was made for {_in_order(was)}"


def _in_order(names: Sequence[str | None]) -> str:
    return ", then ".join(name or "any" for name in names)


def models_said(held: MadeFor) -> str:
    """Return the models of a cascade as text, those of a ladder in their order; empty if not recorded.

    >>> models_said({"models": {"base": {"name": "small"}, "guide": {"name": "large"}}})
    'base small, guide large'
    >>> models_said({"models": {"a": {"name": "a"}, "b": {"name": "b"}}, "step_models": ["b", "a"]})
    'b, then a'
    """
    models, order = held.get("models") or {}, held.get("step_models") or [None]
    if None not in order and set(order) == set(models):
        return _in_order(order)
    return ", ".join(one["name"] if role == one["name"] else f"{role} {one['name']}" for role, one in models.items())


def _settings_changed(role: str, then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    known = _known(then) and _known(now)
    for name in _SETTINGS if known else ():
        if then[name] != now[name]:
            yield f"{role} has {name} {now[name]}; the certificate was made with {then[name]}"
    if known and then.get("agent") != now.get("agent"):
        was, here = _agent(then), _agent(now)
        yield f"{role} answers through {here}; the certificate was made with {was}"


def _agent(settings: Mapping[str, Any]) -> str:
    return f"the agent {settings['agent']}" if "agent" in settings else "no agent"


def _known(settings: Mapping[str, Any]) -> bool:
    """Whether a model's settings are known; a known seed may still be None."""
    return settings.get("max_tokens") is not None


def _where(held: Mapping[str, Any]) -> str:
    return held["provider"] if held["address"] is None else f"{held['provider']} at {held['address']}"


def _is_ladder(models: Mapping[str, Any]) -> bool:
    """Whether models are identified by their names only, so that their order determines which answers first."""
    return len(models) > 1 and all(role == one["name"] for role, one in models.items())


def _rates(price: Mapping[str, Any] | None) -> str:
    """Return a price as price lists print it."""
    if price is None:
        return "unknown"
    return f"{price['input'] / 1e6:g} in, {price['output'] / 1e6:g} out, USD per million tokens"


def unknown(then: MadeFor) -> list[str]:
    """Return the parts of a cascade that were not recorded; a change in them would not be noticed.

    >>> unknown({"strategy": None, "models": None, "prices": {}, "prompts_sha256": "00"})
    ['the strategy', 'the models', 'where the models are served']
    """
    found = [f"the {what}" for what in ("strategy", "models", "prices") if then.get(what) is None]
    if (
        then.get("strategy") is None
        and _is_ladder(then.get("models") or {})
        and not all(then.get("step_models") or [None])
    ):
        found.append("the order of the models")
    if then.get("models") and not all(_known(one) for one in then["models"].values()):
        found.append("the models’ settings")
    if not all((then.get("served_by") or {"": None}).values()):
        found.append("where the models are served")
    return found + (["the prompts"] if then.get("prompts_sha256") is None else [])


def log_differences(table: EpisodeTable, config: CascadeConfig | None) -> list[str]:
    """Return the differences between a configuration's cascade and the one that made a log, a sentence each."""
    if config is None:
        return []
    logged, configured = made_for(table), made_for(config)
    changed = [said.replace("the certificate", "the log") for said in differences(logged, configured)]
    if changed:
        changed[-1] += _renaming(logged.get("step_models") or (), configured.get("step_models") or ())
    return changed


def _renaming(was: Sequence[str | None], here: Sequence[str | None]) -> str:
    """Return how a log gets the configured names of its models, if it has as many and all have other names."""
    if None in was or None in here or len(was) != len(here) or set(was) & set(here):
        return ""
    renamed = " ".join(f"--rename {old}={new}" for old, new in zip(was, here, strict=True))
    return f". If these are the same models under other names: cascade import LOG -o NEW {renamed}"


def refuse_other_cascade(table: EpisodeTable, config: CascadeConfig | None) -> None:
    """Raise UsageError if a log is of another cascade than the configuration describes."""
    if changed := "; ".join(log_differences(table, config)):
        raise UsageError(f"{table.dataset} was made by another cascade than the configuration describes: {changed}")


def holds_for(
    table: EpisodeTable,
    config: CascadeConfig | None,
    before: PolicyArtifact,
    *,
    walked: EpisodeTable | None = None,
) -> MadeFor:
    """Return the cascade that the certificates hold for.

    A log records less than a configuration, so facts of the earlier directory stay unless the log is of another
    cascade. `shown` has the counts of the calibration questions at each step that the policy takes (`walked`; all by
    default), `echoes` the names that their models reported, and `requests` the kinds of their requests: the certificate
    covers no others (`policies.scope`).
    """
    known = made_for(table if config is None else config)
    then = before.certificates[0].made_for if config is None and before.certificates else known
    told = {} if differences(then, known) else {name: value for name, value in then.items() if value is not None}
    told |= {"shown": shown(walked or table), "echoes": made_for(table)["echoes"], "requests": seen(table.kinds)}
    return {**known, **told}


# --- Whether a certificate holds with a configuration, and whether the configured audits can monitor it ---


# --- The kinds of requests in a calibration set, for `policies.scope` ---

MOST_TEXTS = 50
"""A setting with more different texts than this varies with each request, such as stop words made from the question."""


def seen(kinds: Sequence[Kind | None]) -> dict[str, Any] | None:
    """Return the kinds of requests as plain JSON values; None if one of the requests is unknown.

    >>> seen([{"tools": ""}, {"tools": "", "temperature": 0.5}])["kinds"]["temperature"]
    {'of': 1, 'least': 0.5, 'most': 0.5}
    """
    known = [kind for kind in kinds if kind is not None]
    if not known or len(known) < len(kinds):
        return None
    names = sorted({name for kind in known for name in kind})
    return {"of": len(known), "kinds": {name: _held([kind[name] for kind in known if name in kind]) for name in names}}


def _held(values: Sequence[float | str]) -> dict[str, Any]:
    numbers = [value for value in values if isinstance(value, float)]
    texts = sorted({value for value in values if isinstance(value, str)})
    found: dict[str, Any] = {"of": len(values)}
    if numbers:
        found |= {"least": min(numbers), "most": max(numbers)}
    if texts:
        found["texts"] = texts if len(texts) <= MOST_TEXTS else None
    return found
