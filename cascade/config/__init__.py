"""Loads a configuration: YAML, a dict or an object becomes a frozen `CascadeConfig`, or one error with every problem.

`schema` has the sections, `problems` the words for errors; this module reads, checks and combines them. A configuration
never contains a key; it names the environment variable with the key. The environment is read here, in
`providers/litellm.py`, and for one variable of the engine's in `providers/local.py`.

A model's price is looked up in `CascadeConfig.prices` alone: as configured, else from the bundled table, else None.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BeforeValidator,
    Field,
    ValidationError,
    model_validator,
)

from cascade.checks import did_you_mean, secret_problems, shown_name
from cascade.config import policies
from cascade.config.policies import DirectoryConfig, PolicyConfig, WrittenPolicy
from cascade.config.schema import (
    AnyStrategy,
    BudgetConfig,
    GuaranteeConfig,
    LimitsConfig,
    Model,
    ModelConfig,
    ModesConfig,
    PriceConfig,
    ProviderConfig,
    ServerConfig,
    TelemetryConfig,
    TimeoutsConfig,
    TracesConfig,
    provider_shorthand,
    traces_shorthand,
)
from cascade.config.yamlfile import read_yaml
from cascade.errors import ConfigError, UsageError
from cascade.money import Price, PriceTable
from cascade.plans import base as strategies
from cascade.providers import registry
from cascade.records.address import FOLDER
from cascade.section import Section

DEFAULT_KEY_VARIABLE = "OPENAI_API_KEY"
DEFAULT_BASE_VARIABLE = "OPENAI_BASE_URL"
TRACES_VARIABLE = "CASCADE_TRACES"
"""Where traces go if the configuration does not say: a store's URL, or "off"."""
PROJECT_STORE = f"sqlite:///{FOLDER}/records.db"
"""The store of a project, in its folder, if nothing says where traces go."""


class CascadeConfig(Section):
    """Everything that an `Orchestrator` is made from."""

    models: Mapping[str, Model]
    strategy: AnyStrategy = Field(default_factory=lambda: strategies.WRITTEN.read({}))
    policy: WrittenPolicy = Field(default_factory=lambda: policies.WRITTEN.read({}))
    budget: BudgetConfig = Field(default_factory=BudgetConfig)
    timeouts: TimeoutsConfig = Field(default_factory=TimeoutsConfig)
    limits: LimitsConfig = Field(default_factory=LimitsConfig)
    provider: Annotated[ProviderConfig, BeforeValidator(provider_shorthand)] = Field(
        default_factory=lambda: ProviderConfig(kind="litellm")
    )
    guarantee: GuaranteeConfig | None = None
    server: ServerConfig = Field(default_factory=ServerConfig)
    modes: ModesConfig | None = None
    telemetry: TelemetryConfig = Field(default_factory=TelemetryConfig)
    traces: Annotated[TracesConfig | None, BeforeValidator(traces_shorthand)] = Field(default_factory=TracesConfig)

    @model_validator(mode="before")
    @classmethod
    def _fitting_policy(cls, data: Any) -> Any:
        """If no policy is given, use the strategy's default policy."""
        if not isinstance(data, Mapping) or "policy" in data:
            return data
        found: Any = strategies.WRITTEN.class_at(data.get("strategy", {}))
        return data if found is None else {**data, "policy": found.fitting_policy}

    @model_validator(mode="after")
    def _consistent(self) -> CascadeConfig:
        problems = [
            *strategy_problems(self),
            *_place_problems(self),
            *_fallback_problems(self),
            *_price_problems(self),
            *_provider_problems(self),
            *_label_problems(self),
        ]
        if problems:
            # One error carries all problems; `load` splits it again.
            raise ValueError("\n".join(problems))
        return self

    def prices(self) -> dict[str, Price | None]:
        """Return every configured model's price: as configured, else from the bundled table, else None."""
        table = PriceTable.bundled()
        found = {entry.model: table.price(entry.model) for entry in self.models.values()}
        found |= dict.fromkeys(self.strategy.free_calls, Price(0, 0, source="free"))
        return found | {entry.model: entry.price.price() for entry in self.models.values() if entry.price}


def strategy_problems(config: CascadeConfig) -> Iterable[str]:
    """Yield the reasons why a configuration's policy and strategy do not work together."""
    strategy = config.strategy
    for name in strategy.entries:
        if name not in config.models:
            yield f"models.{name}: the {strategy.kind} strategy needs it{did_you_mean(name, config.models)}"
    yield from config.policy.problems(strategy)


def _place_problems(config: CascadeConfig) -> Iterable[str]:
    """Yield problems of a model name that has two entries with different settings."""
    first: dict[str, ModelConfig] = {}
    for place, entry in config.models.items():
        other = first.setdefault(entry.model, entry)
        for name in ("provider", "api_base", "api_key_env", "agent"):
            if getattr(entry, name) != getattr(other, name):
                yield f"models.{place}.{name}: {entry.model} appears twice under models, with another {name}"


def _fallback_problems(config: CascadeConfig) -> Iterable[str]:
    """Yield the problems of models that are fallbacks of others."""
    first: dict[str, tuple[str, ...]] = {}
    for place, entry in config.models.items():
        if first.setdefault(entry.model, entry.fallbacks) != entry.fallbacks:
            yield f"models.{place}.fallbacks: {entry.model} appears twice under models, with other fallbacks"
        for name in entry.fallbacks:
            if name not in config.models:
                known = did_you_mean(name, config.models)
                yield f"models.{place}.fallbacks: there is no {shown_name(name)} under models{known}"
            elif config.models[name].model == entry.model:
                yield f"models.{place}.fallbacks: {entry.model} cannot answer in its own place"
            elif entry.fallbacks.count(name) > 1:
                yield f"models.{place}.fallbacks: {name} is named more than once"


def _price_problems(config: CascadeConfig) -> Iterable[str]:
    by_name: dict[str, PriceConfig | None] = {}
    for place, entry in config.models.items():
        if entry.price is not None and by_name.setdefault(entry.model, entry.price) != entry.price:
            yield f"models.{place}.price: {entry.model} has another price here"
    why = None
    if config.budget.per_question is not None:
        why = "budget.per_question is a hard cap"
    prices = config.prices() if why is not None else {}
    for place, entry in config.models.items():
        if why is not None and prices[entry.model] is None:
            yield (
                f"models.{place}.price: {entry.model} has no known price, and {why}; "
                "give it one, in USD per million tokens: price: {input: 1.0, output: 4.0}"
            )


def _provider_problems(config: CascadeConfig) -> Iterable[str]:
    if config.provider.kind == "replay" and not config.provider.options.get("path"):
        yield "provider: replay needs a log, as in provider: replay:episodes.jsonl"
    allowed = registry.OPTIONS.get(config.provider.kind)
    for name in config.provider.options if allowed is not None else ():
        if name not in (allowed or ()):
            hint = did_you_mean(name, allowed or ()) if allowed else "; it has none"
            yield f"provider.options.{name}: {config.provider.kind} has no such option{hint}"
    for place, entry in config.models.items():
        if entry.provider is not None and entry.provider not in registry.PROVIDERS.names:
            known = did_you_mean(entry.provider, registry.PROVIDERS.names)
            yield f"models.{place}.provider: there is no provider {shown_name(entry.provider)}{known}"


def load(source: CascadeConfig | Mapping[str, Any] | str | Path) -> CascadeConfig:
    """Return a checked configuration from an object, a dict, or the path of a YAML file.

    Paths in a file (`policy`, `prompts`, `replay:`, stores) are relative to the file's folder. In a dict, or a file
    read from a pipe, they are relative to the working directory.

    Raises:
        ConfigError: the configuration is wrong; lists every problem with its path.
    """
    if isinstance(source, CascadeConfig):
        return source
    if isinstance(source, Mapping):
        return _checked(source, None)
    path = Path(source)
    checked = _checked(read_yaml(path), str(source))
    return beside_folder(checked, path.parent) if path.is_file() else checked


def beside_folder(config: CascadeConfig, folder: Path) -> CascadeConfig:
    """Return a configuration with its relative paths, and the default store, resolved against a folder."""
    strategy, policy, provider = config.strategy, config.policy, config.provider
    changed: dict[str, Section] = {}
    if strategy.prompts is not None:
        changed["strategy"] = strategy.model_copy(update={"prompts": _placed(strategy.prompts, folder)})
    if isinstance(policy, DirectoryConfig):
        changed["policy"] = policy.model_copy(update={"path": _placed(policy.path, folder)})
    if provider.kind == "replay":
        options = {**provider.options, "path": _placed(str(provider.options["path"]), folder)}
        changed["provider"] = provider.model_copy(update={"options": options})
    for name, one in (("traces", config.traces), ("modes", config.modes), ("budget", config.budget)):
        if one is not None and one.store is not None:
            changed[name] = one.model_copy(update={"store": _placed(one.store, folder)})
    traces = config.traces
    if traces is not None and traces.store is traces.store_env is None and environment(TRACES_VARIABLE) is None:
        changed["traces"] = traces.model_copy(update={"store": _placed(PROJECT_STORE, folder)})
    review = config.server.review
    if judged := review.model_dump(include={"log", "file", "policy"}, exclude_none=True):
        review = review.model_copy(update={name: _placed(one, folder) for name, one in judged.items()})
        changed["server"] = config.server.model_copy(update={"review": review})
    return config.model_copy(update=changed) if changed else config


def _placed(written: str, folder: Path) -> str:
    """Return a path or the URL of a file relative to a folder; absolute paths and URLs of servers are unchanged."""
    scheme, mark, rest = written.partition("://")
    path = Path(rest.removeprefix("/") if mark else written)
    if folder == Path() or (mark and scheme != "sqlite") or path.expanduser().is_absolute():
        return written
    # The folder in a URL is made absolute: a store's path must not contain "..".
    return f"sqlite:///{folder.resolve() / path}" if mark else str(folder / path)


def policy_section(document: Mapping[str, Any]) -> PolicyConfig:
    """Return the checked settings of a policy, without the rest of a configuration.

    Raises:
        ConfigError: the settings are wrong; lists every problem.
    """
    try:
        return _PolicyDocument.model_validate({"policy": document}).policy
    except ValidationError as error:
        raise ConfigError(_said(_PolicyDocument, {"policy": document}, error), None) from None


class _PolicyDocument(Section):
    """A document with only a policy."""

    policy: WrittenPolicy


def _checked(document: Mapping[str, Any], source: str | None) -> CascadeConfig:
    # The section of a store gives better advice on a URL with a password.
    problems = [said for said in secret_problems(document) if not said.startswith(("traces.store:", "traces:"))]
    try:
        config = CascadeConfig.model_validate(document)
    except ValidationError as error:
        raise ConfigError([*problems, *_said(CascadeConfig, document, error)], source) from None
    if problems:
        raise ConfigError(problems, source)
    return config


def _said(kind: type[Section], document: Mapping[str, Any], error: ValidationError) -> list[str]:
    """Return the problems of settings, each once, with its path."""
    from cascade.config.problems import problems_behind, problems_in

    return list(dict.fromkeys(problems_in(kind, document, error) + problems_behind(kind, document, error)))


def environment(name: str | None) -> str | None:
    """Return the value of an environment variable; None if it is not set or empty."""
    return (os.environ.get(name) or None) if name else None


def ledger_url(budget: BudgetConfig) -> str | None:
    """Return the URL of the ledger's store; None for a ledger in memory. Raises ConfigError."""
    return budget.store if budget.store_env is None else _store_named("budget", budget.store_env)


def _label_problems(config: CascadeConfig) -> Iterable[str]:
    """Yield the problems of settings for a promise that needs judgements by people."""
    if config.modes is None or config.modes.promise == "agreement":
        return
    review = config.server.review
    if review.ask != config.modes.promise:
        yield "server.review.ask: modes.promise regret needs right or wrong for both answers: ask: regret"
    if review.log is not None:
        yield "server.review.log: modes.promise regret needs judgements of this server's requests; leave log out"
    if review.label_rate not in {None, 1.0}:
        yield "server.review.label_rate: with modes.promise regret, modes.share and modes.audit draw; leave it out"
    if config.traces is not None and config.traces.content != "full":
        yield "traces.content: modes.promise regret needs texts that people can judge: full"


def modes_url(config: CascadeConfig) -> str | None:
    """Return the URL of the store of the modes; None without modes.

    By default it is the database of the traces.

    Raises:
        ConfigError: an environment variable has no valid store, or there are modes without traces.
    """
    modes = config.modes
    if modes is None:
        return None
    if modes.store_env is not None:
        return _store_named("modes", modes.store_env)
    traces = traces_url(config.traces)
    if traces is None:
        raise ConfigError(["modes: drawn requests are kept in the traces, which are off; give them a store: traces"])
    return traces if modes.store is None else modes.store


def traces_url(traces: TracesConfig | None) -> str | None:
    """Return the URL of the trace store; None if traces are off.

    The configuration has priority, then CASCADE_TRACES, then a file in the project's folder: that
    of the configuration's file, or the working directory.

    Raises:
        ConfigError: the named environment variable is not set, or a variable has no valid store.
    """
    if traces is None or traces.store is not None:
        return None if traces is None else traces.store
    return default_traces_url() if traces.store_env is None else _store_named("traces", traces.store_env)


def default_traces_url() -> str | None:
    """Return the URL of the trace store if no configuration names one; None if traces are off.

    Raises:
        ConfigError: CASCADE_TRACES is neither a store nor "off".
    """
    told = environment(TRACES_VARIABLE)
    if told is not None:
        return None if told.strip().lower() in {"off", "no", "false", "0"} else _store_in(TRACES_VARIABLE, told)
    return PROJECT_STORE


def _store_named(section: str, variable: str) -> str:
    """Return the URL of the store that an environment variable holds, which a section's store_env names."""
    url = environment(variable)
    if url is None:
        raise ConfigError([f"{section}.store_env: the environment variable {variable} is not set"])
    return _store_in(variable, url)


def _store_in(variable: str, url: str) -> str:
    from cascade.records.address import parse

    try:
        parse(url)
    except UsageError as error:
        raise ConfigError([f"{variable}: {error}"]) from None
    return url
