"""Builds the objects that a configuration describes: the strategy, the policy, the addresses and guards of models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cascade.checks import checked_key, did_you_mean
from cascade.config import (
    DEFAULT_BASE_VARIABLE,
    DEFAULT_KEY_VARIABLE,
    CascadeConfig,
    environment,
    policy_section,
    strategy_problems,
)
from cascade.config.schema import ModelConfig
from cascade.errors import ConfigError, UsageError
from cascade.money import PLAIN_TIERS, Price
from cascade.policies.base import Policy
from cascade.policies.config import DirectoryConfig, PolicyConfig
from cascade.providers import registry
from cascade.providers.base import Knows, Provider
from cascade.providers.fields import Fields, ModelFields
from cascade.providers.guard import Guard
from cascade.providers.registry import OPENAI_BASE, Endpoint, ProviderSettings, Trusted
from cascade.strategies import prompts
from cascade.strategies.base import ModelUse, Standins, Strategy

if TYPE_CHECKING:
    from cascade.house.bridge_serving import Served
    from cascade.house.live import Live
    from cascade.policies.artifact import PolicyArtifact
    from cascade.policies.levels import Levels


def build_strategy(config: CascadeConfig) -> Strategy:
    """Return the strategy that a configuration describes, with the agents of its models."""
    uses = {name: _use(entry) for name, entry in config.models.items()}
    return _with_agents(config, config.strategy.build(uses, prompts.load(config.strategy.prompts)))


def _with_agents(config: CascadeConfig, strategy: Strategy) -> Strategy:
    named = {entry.model: entry.agent for entry in config.models.values() if entry.agent is not None}
    if not named:
        return strategy
    from cascade.strategies.agents import AGENTS, WithAgents

    agents = {model: agent for model, place in named.items() if (agent := AGENTS.find(place)) is not None}
    return WithAgents(strategy, agents) if agents else strategy


def alone(config: CascadeConfig, model: str, templates: prompts.Prompts | None) -> Strategy:
    """Return the strategy that asks only one of the configured models, without extra log-probs.

    Args:
        config: the configuration.
        model: the model's name.
        templates: the prompts in service; None for the shipped ones.

    Raises:
        UsageError: no configured model has that name.
    """
    from cascade.strategies.ladder import Ladder

    for entry in config.models.values():
        if entry.model == model:
            return _with_agents(config, Ladder((_use(entry),), templates or prompts.load(), logprobs=False))
    known = [entry.model for entry in config.models.values()]
    raise UsageError(f"No model is called {model!r}{did_you_mean(model, known)}")


def build_standins(config: CascadeConfig) -> Standins:
    """Return the configured stand-ins of models."""
    use = {name: _use(entry) for name, entry in config.models.items()}
    down = {one.model: tuple([use[name] for name in one.fallbacks]) for one in config.models.values() if one.fallbacks}
    poor = use[config.strategy.places[0]] if config.budget.on_exhausted == "base_only" else None
    return Standins(down, poor)


def build_policy(config: CascadeConfig) -> Policy:
    """Return the policy of a configuration; for a policy directory, the policy at its certified threshold.

    Raises:
        ConfigError: the policy directory cannot be read, was changed, or holds a policy that does not fit the strategy.
    """
    wanted = config.policy
    return certified_policy(config, wanted.path)[0] if isinstance(wanted, DirectoryConfig) else policy_of(wanted)


def policy_of(section: PolicyConfig) -> Policy:
    """Return the policy that a section describes. Raises as `build_policy`, also for a learned one (`read_policy`)."""
    return read_policy(section.path).deciding if isinstance(section, DirectoryConfig) else section.build()


def certified_policy(config: CascadeConfig, directory: str) -> tuple[Policy, PolicyArtifact]:
    """Return the policy of a policy directory, and the directory's contents with the certificates.

    The policy is at its certified threshold; without a certificate, at the threshold in its settings.

    Raises:
        ConfigError: as for `build_policy`.
    """
    held = fitting(config, read_policy(directory), directory)
    return held.deciding, held.artifact


def fitting(config: CascadeConfig, held: HeldPolicy, directory: str) -> HeldPolicy:
    """Return a policy that was read from a directory. Raises ConfigError if it does not fit the strategy."""
    if held.live is None:
        problems = list(strategy_problems(config.model_copy(update={"policy": held.section})))
    else:
        from cascade.house.bridge_serving import problems as unserved  # numpy, which most configurations do not need

        problems = list(unserved(config, held.live))
    if problems:
        raise ConfigError(problems, directory)
    return held


class HeldPolicy(NamedTuple):
    """A policy directory as read.

    Attributes:
        artifact: its contents.
        section: the settings of its policy; for format 1.0 the path of the directory.
        policy: the policy of these settings, at their threshold.
        live: for format 1.0, the policy at its certified thresholds.
    """

    artifact: PolicyArtifact
    section: PolicyConfig
    policy: Policy
    live: Live | None = None

    @property
    def deciding(self) -> Policy:
        """The policy for serving, at its certified thresholds if there are any."""
        if self.live is not None:
            return self.live
        return self.artifact.calibrated(self.policy) if self.artifact.certificates else self.policy


def read_policy(directory: str | Path, *, certificates: bool = True) -> HeldPolicy:
    """Read a policy directory, with the policy in it.

    Args:
        directory: its path.
        certificates: whether to read the certificates too; false if they are about to be replaced.

    Raises:
        ConfigError: it cannot be read, was changed, or refers to another directory; or the numbers of a learned policy
            are not valid (`model_file.loads`).
    """
    from cascade.house.directory import PolicyDirectory, is_current  # numpy, which most configurations do not need
    from cascade.policies.reading import read

    if is_current(directory):
        from cascade.house.bridge_serving import served

        levels, each = served(PolicyDirectory.read(directory))
        return _live(directory, each["" if levels is None else levels.default])
    found = read(directory, certificates=certificates)
    section = policy_section(found.policy, held=True)
    if isinstance(section, DirectoryConfig):
        raise ConfigError(["policy: a policy directory holds a policy, not the path of another"], str(directory))
    return HeldPolicy(found, section, section.read(found.files, str(directory)))


def _live(directory: str | Path, served: Served) -> HeldPolicy:
    section = DirectoryConfig(kind="directory", path=str(directory))
    return HeldPolicy(served.artifact, section, served.live, served.live)


class HeldLevels(NamedTuple):
    """A policy directory with levels as read: the levels, and the policy of each by name."""

    levels: Levels
    policies: Mapping[str, HeldPolicy]


def read_levels(directory: str | Path, *, certificates: bool = True) -> HeldLevels | None:
    """Return the levels of a policy directory; None if it has none.

    Args:
        directory: its path.
        certificates: whether to read the certificates too; false if they are about to be replaced.

    Raises:
        ConfigError: lists every problem of any level; or they are not the levels of one policy.
        MissingExtraError, ModelFileError: as `read_policy`.
    """
    from cascade.house.directory import PolicyDirectory, is_current
    from cascade.policies import levels as file

    if is_current(directory):
        from cascade.house.bridge_serving import served

        of_all, each = served(PolicyDirectory.read(directory))
        return (
            None if of_all is None else HeldLevels(of_all, {name: _live(directory, one) for name, one in each.items()})
        )
    found = file.read(directory)
    if found is None:
        return None
    policies, problems = dict[str, HeldPolicy](), list[str]()
    for name in found.by_name:
        try:
            policies[name] = read_policy(Path(directory) / found.directory(name), certificates=certificates)
        except ConfigError as error:
            problems += [f"levels.{name}: {problem}" for problem in error.problems]
    if not problems:
        artifacts = {name: one.artifact for name, one in policies.items()}
        problems = list(file.check(found, artifacts, certificates=certificates))
    if problems:
        raise ConfigError(problems, str(directory))
    return HeldLevels(found, policies)


def _use(entry: ModelConfig) -> ModelUse:
    return ModelUse(
        entry.model,
        entry.max_tokens,
        entry.temperature,
        entry.seed,
        entry.context_tokens,
        entry.images,
        entry.tools,
        entry.chat_max_tokens,
    )


def address(config: CascadeConfig, kind: str, entry: ModelConfig) -> str | None:
    """Return the address at which a provider finds a model; None if the provider knows it."""
    shared = config.provider
    base = entry.api_base or (shared.api_base if kind == shared.kind else None)
    return base or ((environment(DEFAULT_BASE_VARIABLE) or OPENAI_BASE) if kind == "openai_http" else None)


def endpoints(config: CascadeConfig, kind: str, entries: Iterable[ModelConfig]) -> dict[str, Endpoint]:
    """Return the address and the key of each model, as far as configured.

    `openai_http` always needs an address: the provider's, else OPENAI_BASE_URL, else OpenAI's own. `litellm` finds one
    itself if none is configured.

    Raises:
        ConfigError: a variable's value cannot be a key; the message does not contain it.
    """
    shared = config.provider
    own_kind = kind == shared.kind
    found, problems = dict[str, Endpoint](), list[str]()
    for entry in entries:
        base = address(config, kind, entry)
        key_env = entry.api_key_env or (shared.api_key_env if own_kind else None)
        if base is None and key_env is None:
            continue
        # The default key goes to the default address only: another server must be given its key by name.
        default = DEFAULT_KEY_VARIABLE if base == OPENAI_BASE else None
        variable = key_env or default
        key = environment(variable)
        try:
            found[entry.model] = Endpoint(base, key and checked_key(key, f"the environment variable {variable}"))
        except ValueError as error:
            problems.append(f"models: {error}")
    if problems:
        raise ConfigError(dict.fromkeys(problems))
    return found


def build_fields(config: CascadeConfig, guards: Mapping[str, Guard], prices: Mapping[str, Price | None]) -> Fields:
    """Return the fields of an application's request that each model is sent."""
    models = dict[str, ModelFields]()
    for entry in config.models.values():
        provider, price = guards[entry.model].provider, prices.get(entry.model)
        rule = ModelFields(entry.model, opened=frozenset(entry.allow_fields))
        if isinstance(provider, Knows):
            rule = rule._replace(knows=provider.knows)
        if price is not None:
            rule = rule._replace(tiers=PLAIN_TIERS.union(dict(price.tiers)), searches=bool(price.search))
        models[entry.model] = rule
    return Fields(models)


_STANDS_IN = "replay"
"""The provider that replays a log, including the calls of verifiers."""


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
    guards, own = dict[str, Guard](), list[Guard]()
    limits = config.timeouts
    per_call_s = min(limits.per_call_s, limits.per_question_s or limits.per_call_s)
    for entry in config.models.values():
        by_kind.setdefault(entry.provider or config.provider.kind, []).append(entry)
    trusted = Trusted(environment("SSL_CERT_FILE"), environment("SSL_CERT_DIR"))
    for kind, entries in by_kind.items():
        options = config.provider.options if kind == config.provider.kind else {}
        settings = ProviderSettings(options, endpoints(config, kind, entries), trusted)
        provider = providers[kind] if kind in providers else registry.create(kind, settings)
        keys = tuple({e.api_key for e in settings.endpoints.values() if e.api_key})
        refuses = {entry.model: frozenset[str](entry.refuses) for entry in entries if entry.refuses}
        guard = Guard(provider, per_call_s=per_call_s, secrets=keys, refuses=refuses)
        if kind not in providers:
            own.append(guard)
        guards |= {entry.model: guard for entry in entries}
    if config.strategy.free_calls and config.provider.kind == _STANDS_IN:
        return guards | dict.fromkeys(config.strategy.free_calls, next(iter(guards.values()))), tuple(own)
    for name, provider in config.strategy.free_providers().items():
        own.append(Guard(provider, per_call_s=config.timeouts.per_call_s))
        guards[name] = own[-1]
    return guards, tuple(own)
