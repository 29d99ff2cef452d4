"""Builds the objects that a configuration describes: the strategy, the policy, the addresses and guards of models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING

from cascade.checks import checked_key, did_you_mean, shown_name
from cascade.config import DEFAULT_BASE_VARIABLE, DEFAULT_KEY_VARIABLE, CascadeConfig, environment
from cascade.config.policies import DirectoryConfig
from cascade.config.schema import ModelConfig
from cascade.errors import ConfigError
from cascade.money import PLAIN_TIERS, Price
from cascade.plans import prompts
from cascade.plans.agents import AGENTS
from cascade.plans.base import ModelUse
from cascade.plans.nodes import Plan
from cascade.providers import registry
from cascade.providers.base import Knows, Lacks, Provider
from cascade.providers.fields import Fields, ModelFields
from cascade.providers.guard import Guard, Pace
from cascade.providers.registry import OPENAI_BASE, OPENAI_HTTP, REPLAY, Endpoint, ProviderSettings

if TYPE_CHECKING:
    from cascade.plans.presets import StrategyConfig
    from cascade.policies.directory import PolicyDirectory
    from cascade.policies.live import LivePolicy
    from cascade.table import Node


def build_strategy(config: CascadeConfig) -> Plan:
    """Return the plan that a configuration describes, with the agents of its models."""
    uses = {name: _use(entry) for name, entry in config.models.items()}
    return _with_agents(config, config.strategy.build(uses, prompts.load(config.strategy.prompts)))


def _with_agents(config: CascadeConfig, plan: Plan) -> Plan:
    named = {entry.id: entry.agent for entry in config.models.values() if entry.agent is not None}
    agents = {model: agent for model, place in named.items() if (agent := AGENTS.find(place)) is not None}
    return replace(plan, agents=agents)


def single_model_plans(config: CascadeConfig, templates: prompts.Prompts | None) -> Mapping[str, Plan]:
    """Return, by the name of each model, the plan that asks only it, without extra log-probs.

    `templates` are the prompts in service; None for the shipped ones.
    """
    from cascade.plans.presets import ladder

    plans = {entry.id: ladder([_use(entry)], templates) for entry in config.models.values()}
    return {model: _with_agents(config, replace(plan, logprobs=False)) for model, plan in plans.items()}


def build_fallbacks(config: CascadeConfig) -> Mapping[str, tuple[ModelUse, ...]]:
    """Return, by a model's name, that model followed by those that are asked in turn while it is down."""
    use = {name: _use(entry) for name, entry in config.models.items()}
    return {entry.id: tuple([use[at] for at in (name, *entry.fallbacks)]) for name, entry in config.models.items()}


def nodes_of(strategy: StrategyConfig) -> tuple[Node, ...]:
    """Return the nodes of a strategy's plan: the answers of each step, in their order."""
    from cascade.table import Node  # numpy, which a configuration does not need

    places = strategy.candidates
    return tuple([Node(f"step {t + 1} {place}", t) for t in range(strategy.horizon) for place in places])


_NO_THRESHOLD = (
    "policy: no threshold on a judge's P(yes) is good by default. Log requests (cascade collect), fit one (cascade fit "
    "LOG -o policy) and name it (policy: ./policy); or observe first (modes: {}); or write your own: {kind: threshold, "
    "signal: p_yes, threshold: …}"
)


def build_policy(config: CascadeConfig) -> LivePolicy:
    """Return the policy that a configuration describes; for a directory, its policy as it serves by default.

    Raises:
        ConfigError: the policy directory cannot be read, was changed, or holds a policy that does not fit the strategy;
            or no policy is configured, and the strategy's judge has no threshold.
    """
    from cascade.policies.live import LivePolicy

    if isinstance(config.policy, DirectoryConfig):
        from cascade.policies.directory import PolicyDirectory  # loads certificates, which other policies lack

        return serving_of(config, PolicyDirectory.read(config.policy.path))
    lacks_policy = "policy" not in config.model_fields_set
    if lacks_policy and config.strategy.unfitted_policy is None and config.modes is None:
        raise ConfigError([_NO_THRESHOLD])
    plan = nodes_of(config.strategy)
    if lacks_policy and config.modes is not None:
        from cascade.policies.policy import ReferenceOnly

        return LivePolicy(ReferenceOnly(), plan, single=True)
    rule, kappa = config.policy.rule(plan)
    return LivePolicy(rule, plan, kappa, single=True)


def serving_of(config: CascadeConfig, directory: PolicyDirectory, level: str | None = None) -> LivePolicy:
    """Return the policy of a directory at its certified thresholds, those of a level if it has levels.

    A level at which nothing cheaper is proven asks the reference at once, if that keeps the promise.

    Raises:
        ConfigError: the configured strategy cannot serve it.
    """
    from cascade.policies.live import STRICTEST, LivePolicy
    from cascade.policies.policy import ReferenceOnly

    live, promise = LivePolicy.of(directory, level), directory.promise
    if level and live.kappa == STRICTEST and promise is not None and promise.rules.reference_keeps_it:
        live = LivePolicy(ReferenceOnly(), live.plan, single=live.single)
    problems = list(unserved(config.strategy, live))
    if problems:
        raise ConfigError(problems, getattr(config.policy, "path", None))
    return live


def unserved(strategy: StrategyConfig, live: LivePolicy) -> Iterator[str]:
    """Yield why a strategy cannot serve a policy."""
    from cascade.conformal.scope import LENGTHS
    from cascade.policies.live import layout_of

    selection, steps = live.selection, len(layout_of(live.plan))
    if steps != strategy.horizon:
        names = ", ".join(dict.fromkeys(node.model or node.name for node in live.plan))
        yield f"policy: it is for a plan of {steps} steps ({names}), and the strategy has {strategy.horizon}"
    given = {*strategy.given, *LENGTHS}
    yield from (f"policy: no step of the strategy gives {name}" for name in live.reads if name not in given)
    if selection is not None and not selection.reference and not strategy.has_parts:
        yield f"policy: it takes a part of the plan, and the {strategy.kind} strategy has no parts"


def _use(entry: ModelConfig) -> ModelUse:
    return ModelUse(
        entry.id,
        entry.max_tokens if entry.decides is None else 1,
        entry.temperature,
        entry.seed,
        entry.context_tokens,
        entry.images,
        entry.tools,
        entry.chat_max_tokens,
        entry.decides is not None,
    )


def address(config: CascadeConfig, kind: str, entry: ModelConfig) -> str | None:
    """Return the address at which a provider finds a model; None if the provider knows it."""
    shared = config.provider
    base = entry.api_base or (shared.api_base if entry.provider in {None, shared.kind} else None)
    return base or ((environment(DEFAULT_BASE_VARIABLE) or OPENAI_BASE) if kind == OPENAI_HTTP else None)


def endpoints(config: CascadeConfig, kind: str, entries: Iterable[ModelConfig]) -> dict[str, Endpoint]:
    """Return the address and the key of each model, or of each of its deployments, as far as configured.

    `openai_http` always needs an address: the provider's, else OPENAI_BASE_URL, else OpenAI's own. `litellm` finds one
    itself if none is configured.

    Raises:
        ConfigError: a variable's value cannot be a key; the message does not contain it.
    """
    shared = config.provider
    endpoints, problems = dict[str, Endpoint](), list[str]()
    for entry in (site for whole in entries for site in whole.sites.values()):
        base = address(config, kind, entry)
        key_env = entry.api_key_env or (shared.api_key_env if entry.provider in {None, shared.kind} else None)
        if base is None and key_env is None and entry.id == entry.model and entry.decides is None:
            continue
        # The default key goes to the default address only: another server must be given its key by name.
        variable = key_env or (DEFAULT_KEY_VARIABLE if base == OPENAI_BASE else None)
        key = environment(variable)
        try:
            key = key and checked_key(key, f"the environment variable {variable}")
            endpoints[entry.id] = Endpoint(base, key, None if entry.id == entry.model else entry.model, entry.decides)
        except ValueError as error:
            problems.append(f"models: {error}")
    if problems:
        raise ConfigError(dict.fromkeys(problems))
    return endpoints


def build_fields(config: CascadeConfig, guards: Mapping[str, Guard], prices: Mapping[str, Price | None]) -> Fields:
    """Return the fields of an application's request that each model is sent, and the operator's own.

    Raises:
        ConfigError: a model is known not to take one of its settings.
    """
    models, problems = dict[str, ModelFields](), list[str]()
    for name, entry in config.models.items():
        provider, price = guards[entry.id].provider, prices.get(entry.id)
        own = {} if entry.id == entry.model else {"model": entry.model}
        rule = ModelFields(entry.id, opened=frozenset(entry.allow_fields), sends={**own, **entry.settings})
        sites = [*entry.sites.values()]
        if isinstance(provider, Knows):
            rule = rule._replace(knows=partial(_known_everywhere, provider, sites))
        if price is not None:
            rule = rule._replace(tiers=PLAIN_TIERS.union(dict(price.tiers)), searches=bool(price.search))
        if isinstance(provider, Lacks):
            rule = rule._replace(refuses=cache(partial(_refused_anywhere, provider, sites)))
            problems += [
                f"models.{name}.settings.{field}: {site.model} does not take it"
                for site in (sites if entry.settings else ())
                for field in provider.lacks(site.id, entry.settings)
            ]
        models[entry.id] = rule
    if problems:
        raise ConfigError(problems)
    return Fields(models)


def _known_everywhere(provider: Knows, sites: Sequence[ModelConfig], _: str) -> frozenset[str]:
    return frozenset.intersection(*[provider.knows(site.id) for site in sites])


def _refused_anywhere(provider: Lacks, sites: Sequence[ModelConfig], field: str) -> bool:
    return any(provider.lacks(site.id, [field]) for site in sites)


def build_guards(
    config: CascadeConfig, providers: Mapping[str, Provider]
) -> tuple[Mapping[str, Guard], tuple[Guard, ...]]:
    """Return the guard of each model by name, and the guards made here, which the caller must close.

    Args:
        config: the configuration. One provider is made for each kind; its endpoints are those of the models it serves.
        providers: ready-made providers by kind, used instead of making new ones.
    """
    if config.telemetry.spans:
        from cascade.telemetry import tracer

        tracer()
    by_kind: dict[str, list[ModelConfig]] = {}
    guards, own, limits = dict[str, Guard](), list[Guard](), config.timeouts
    per_call_s = min(limits.per_call_s, limits.per_question_s or limits.per_call_s)
    first_s = min(limits.first_token_s or per_call_s, limits.per_question_s or float("inf"))
    pace = Pace(first_s, limits.idle_s or limits.per_call_s, limits.per_stream_s)
    for entry in config.models.values():
        by_kind.setdefault(config.provider_of(entry), []).append(entry)
    if unknown := [kind for kind in providers if kind not in (*by_kind, *registry.PROVIDERS.names)]:
        asks = "no model of this configuration asks the provider"
        raise ConfigError([f"providers: {asks} {shown_name(kind)}{did_you_mean(kind, by_kind)}" for kind in unknown])
    for kind, entries in by_kind.items():
        options = config.provider.options if kind == config.provider.kind else {}
        settings = ProviderSettings(options, endpoints(config, kind, entries))
        provider = providers[kind] if kind in providers else registry.create(kind, settings)
        keys = tuple({e.api_key for e in settings.endpoints.values() if e.api_key})
        refuses = {entry.id: frozenset[str](entry.refuses) for entry in entries if entry.refuses}
        weights = {} if kind == REPLAY else {entry.id: entry.weights for entry in entries if entry.weights}
        guard = Guard(provider, per_call_s=per_call_s, secrets=keys, refuses=refuses, pace=pace, deployments=weights)
        if kind not in providers:
            own.append(guard)
        guards |= {entry.id: guard for entry in entries}
    if config.strategy.free_calls and config.provider.kind == REPLAY:
        return guards | dict.fromkeys(config.strategy.free_calls, next(iter(guards.values()))), tuple(own)
    free = {name: Guard(at, per_call_s=limits.per_call_s) for name, at in config.strategy.free_providers().items()}
    return guards | free, (*own, *free.values())
