"""Loads a configuration: YAML, a dict or an object becomes a frozen `CascadeConfig`, or one error with every problem.

`schema` has the sections, `problems` the words for errors; this module reads, checks and combines them. A configuration
never contains a key; it names the environment variable with the key. The environment is read here, in
`providers/litellm.py`, and, for variables of other software, where that software is called.

A configured model's price comes from `CascadeConfig.prices`: as configured, else from the bundled table, else None.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from cascade.checks import did_you_mean, is_link_local, secret_problems, shown_name, unknown
from cascade.config import policies
from cascade.config.policies import PolicyConfig, WrittenPolicy
from cascade.config.schema import (
    AnyStrategy,
    AuditsConfig,
    BudgetConfig,
    GuaranteeConfig,
    Model,
    ModelConfig,
    ModesConfig,
    ProviderConfig,
    ServerConfig,
    StoredConfig,
    TelemetryConfig,
    TimeoutsConfig,
    TracesConfig,
    provider_shorthand,
    traces_shorthand,
)
from cascade.config.yamlfile import read_yaml
from cascade.errors import ConfigError, UsageError
from cascade.money import Price, PriceTable
from cascade.plans import presets as strategies
from cascade.providers import registry
from cascade.records.address import FOLDER
from cascade.section import Section
from cascade.text import map_json

DEFAULT_KEY_VARIABLE = "OPENAI_API_KEY"
DEFAULT_BASE_VARIABLE = "OPENAI_BASE_URL"
TRACES_VARIABLE = "CASCADE_TRACES"
"""The environment variable that says where traces go if the configuration does not: a store's URL, or "off"."""
PROJECT_STORE = f"sqlite:///{FOLDER}/records.db"
"""The store in a project's folder, used if nothing else says where traces go."""


S = TypeVar("S", bound=Section)


class CascadeConfig(Section):
    """Everything that an `Orchestrator` is made from."""

    models: Mapping[str, Model]
    strategy: AnyStrategy = Field(default_factory=lambda: strategies.WRITTEN.read({}))
    policy: WrittenPolicy = Field(default_factory=lambda: policies.WRITTEN.read({}))
    budget: BudgetConfig = Field(default_factory=BudgetConfig)
    timeouts: TimeoutsConfig = Field(default_factory=TimeoutsConfig)
    provider: Annotated[ProviderConfig, BeforeValidator(provider_shorthand)] = Field(
        default_factory=lambda: ProviderConfig(kind=registry.LITELLM)
    )
    guarantee: GuaranteeConfig | None = None
    audits: AuditsConfig | None = None
    server: ServerConfig = Field(default_factory=ServerConfig)
    modes: ModesConfig | None = None
    telemetry: TelemetryConfig = Field(default_factory=TelemetryConfig)
    traces: Annotated[TracesConfig | None, BeforeValidator(traces_shorthand)] = Field(default_factory=TracesConfig)

    @model_validator(mode="after")
    def _consistent(self) -> CascadeConfig:
        self.__dict__["models"] = with_ids(self.models)
        if "policy" not in self.model_fields_set:
            everything = {"kind": "fixed", "depth": self.strategy.horizon, "serves": "newest"}
            self.__dict__["policy"] = policies.WRITTEN.read(self.strategy.unfitted_policy or everything)
        audits = self.audits or AuditsConfig()
        if self.modes is not None:
            self.__dict__["audits"] = audits
        own = audits.model_dump(include={"fallback", "seed"} if self.modes else set(), exclude_none=True)
        problems = [
            *strategy_problems(self),
            *(f"audits.{name}: modes draw with a secret and fall back to the guide; leave it out" for name in own),
            *_model_problems(self),
            *_provider_problems(self),
            *_unknown_caps(self),
        ]
        if problems:
            # One error carries all problems; `load` splits it again.
            raise ValueError("\n".join(problems))
        return self

    def provider_of(self, entry: ModelConfig) -> str:
        """Return the kind of provider that a model is asked through.

        That is `openai_http` for a decision model at OpenAI or at a known address, where litellm is configured.
        """
        kind, base = entry.provider or self.provider.kind, all(site.api_base for site in entry.sites.values())
        if kind != registry.LITELLM or entry.decides is None:
            return kind
        known = base or (self.provider.api_base if entry.provider in {None, self.provider.kind} else None)
        return registry.OPENAI_HTTP if known or entry.model.startswith("openai/") or "/" not in entry.model else kind

    def prices(self) -> dict[str, Price | None]:
        """Return every configured model's price: as configured, else from the bundled table, else None."""
        table = PriceTable.bundled()
        prices = {
            entry.id: table.price(entry.model, decides=entry.decides is not None) for entry in self.models.values()
        }
        prices |= dict.fromkeys(self.strategy.free_calls, Price(0, 0, source="free"))
        return prices | {entry.id: entry.price.price() for entry in self.models.values() if entry.price}

    @property
    def unpromised(self) -> CascadeConfig:
        """This configuration with every step run, whatever its policy, and with nothing promised or audited."""
        return self.model_copy(
            update={"policy": policies.WRITTEN.read({"kind": "fixed"}), "guarantee": None, "audits": None}
        )

    @property
    def promises(self) -> bool:
        """Whether something is promised or audited, by a policy directory or by this configuration."""
        return bool(self.guarantee or (self.audits and not self.modes) or self.policy.kind == "directory")

    @property
    def alerts_url(self) -> str | None:
        """The address that alerts are posted to; None if there is none. Raises ConfigError."""
        if self.budget.alerts is None or (name := self.budget.alerts.webhook_env) is None:
            return None
        with suppress(ValueError):
            parts = urlsplit(url := environment(name) or "")
            if parts.scheme in {"http", "https"} and parts.hostname and not is_link_local(parts.hostname):
                return url
        advice = f"the variable {name} must hold the address of a server, https://…, and no metadata address"
        raise ConfigError([f"budget.alerts.webhook_env: {advice}"])

    @property
    def ledger_url(self) -> str | None:
        """The URL of the ledger's store; None for a ledger in memory. Raises ConfigError."""
        return _store("budget", self.budget)

    @property
    def modes_url(self) -> str | None:
        """The URL of the store of the modes, by default that of the traces; None without modes.

        Raises ConfigError for a variable without a valid store, and if the traces do not keep the answers.
        """
        if self.modes is None:
            return None
        if self.traces_url is None:
            raise ConfigError(
                ["modes: drawn requests are kept in the traces, which are off; give them a store: traces"]
            )
        if self.traces is not None and self.traces.content == "none":
            raise ConfigError(["modes: the answers of drawn requests are compared; set traces.content: full"])
        return _store("modes", self.modes) or self.traces_url

    @property
    def traces_url(self) -> str | None:
        """The URL of the trace store; None if traces are off.

        The configuration has priority, then CASCADE_TRACES, then a file in the project's folder, which is the folder of
        the configuration file, or the working directory.

        Raises:
            ConfigError: the named environment variable is not set, or does not hold a valid store.
        """
        return None if self.traces is None else _store("traces", self.traces) or default_traces_url()


def with_ids(models: Mapping[str, ModelConfig]) -> dict[str, ModelConfig]:
    """Return entries with their ids: the model's name, or "model@entry" if another entry of the same model differs.

    A chat model keeps its name beside a decision model of the same name, so that logs of its answers remain valid.
    """
    plain = {name: entry.called(entry.model) for name, entry in models.items()}
    differ = {
        name
        for name, entry in plain.items()
        for other in plain.values()
        if other.model == entry.model and other != entry and entry.kind in {"decision", other.kind}
    }
    return {name: entry.called(f"{entry.model}@{name}") if name in differ else entry for name, entry in plain.items()}


def strategy_problems(config: CascadeConfig) -> Iterable[str]:
    """Yield the reasons why a configuration's policy and strategy do not work together."""
    strategy = config.strategy
    for name in strategy.entries:
        if name not in config.models:
            yield f"models.{name}: the {strategy.kind} strategy needs it{did_you_mean(name, config.models)}"
    yield from config.policy.problems(strategy)
    for name in sorted(strategy.answering & config.models.keys()):
        if config.models[name].kind == "decision":
            yield f"models.{name}: a decision model answers nothing; name it as judge, as in strategy.judge: {name}"


def _model_problems(config: CascadeConfig) -> Iterable[str]:
    """Yield problems of entries under `models`: prices, fallbacks, deployments, dialects."""
    prices = None if config.budget.per_question is None else config.prices()
    for name, entry in config.models.items():
        path = f"models.{name}"
        if prices is not None and prices[entry.id] is None:
            yield (
                f"{path}.price: {entry.model} has no known price, and budget.per_question is a hard cap; "
                "give it one, in USD per million tokens: price: {input: 1.0, output: 4.0}"
            )
        yield from (f"{path}.fallbacks: {problem}" for problem in _fallback_problems(config, entry))
        if entry.deployments:
            yield from (f"{path}.deployments{problem}" for problem in _deployment_problems(config, entry))
        if entry.decides is not None and (kind := config.provider_of(entry)) not in registry.DECIDING:
            yield f"{path}.dialect: the provider {kind} does not support {entry.decides}; use dialect: logprobs"


def _deployment_problems(config: CascadeConfig, entry: ModelConfig) -> Iterable[str]:
    if config.provider_of(entry) == registry.LOCAL:
        yield ": a local model runs only in this process; leave them out"
    names, price = dict[Any, str | None](), _listed(entry, entry.model)
    for name, site in entry.sites.items():
        target, listed = (site.api_base, site.api_key_env, site.model), _listed(entry, site.model)
        if target in names:
            yield f".{name}: it is the same as {names[target]}; give it another api_base or api_key_env"
        names.setdefault(target, name)
        if entry.price is None and None not in (price, listed) and listed != price:
            yield f".{name}.model: {site.model} has another price; give the model a price if it costs the same"


def _listed(entry: ModelConfig, model: str) -> Price | None:
    price = PriceTable.bundled().price(model, decides=entry.decides is not None)
    return None if price is None else replace(price, source="", note=None)


def _fallback_problems(config: CascadeConfig, entry: ModelConfig) -> Iterable[str]:
    for name in entry.fallbacks:
        if name not in config.models:
            yield f"there is no {shown_name(name)} under models{did_you_mean(name, config.models)}"
        elif config.models[name].id == entry.id:
            yield f"{entry.model} cannot be its own fallback"
        elif entry.fallbacks.count(name) > 1:
            yield f"{name} is named more than once"
        elif (config.models[name].decides is None) != (entry.decides is None):
            yield f"{name} and {entry.model} must both be decision models, or neither"


def _unknown_caps(config: CascadeConfig) -> Iterable[str]:
    """Yield problems of caps on keys and models that do not exist."""
    ids = [entry.id for entry in config.models.values()]
    names = {"key": [key.name for key in config.server.keys], "model": [*config.models, *ids]}
    for number, cap in enumerate(config.budget.caps):
        if cap.name is not None and cap.name not in names.get(cap.per, (cap.name,)):
            yield f"budget.caps[{number}].name: {unknown(cap.per, cap.name, names[cap.per])}"


def _provider_problems(config: CascadeConfig) -> Iterable[str]:
    provider = config.provider
    if provider.kind == "replay" and not provider.options.get("path"):
        yield "provider: replay needs a log, as in provider: replay:episodes.jsonl"
    allowed = registry.OPTIONS.get(provider.kind)
    for name in provider.options if allowed is not None else ():
        if name not in (allowed or ()):
            hint = did_you_mean(name, allowed or ()) if allowed else "; it has none"
            yield f"provider.options.{name}: {provider.kind} has no such option{hint}"


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
        texts = map_json(source, lambda value: fspath(value) if isinstance(value, PathLike) else value)  # as in a file
        return _validated(CascadeConfig, texts, None)
    if not isinstance(source, str | PathLike):
        raise ConfigError([f"a configuration is a path, a mapping or a CascadeConfig, not {type(source).__name__}"])
    path = Path(source)
    config = _validated(CascadeConfig, read_yaml(path), str(source))
    return beside_folder(config, path.parent) if path.is_file() else config


_PATHS = ("strategy.prompts", "policy.path", "traces.store", "modes.store", "budget.store")
_REVIEWED = ("log", "file")


def beside_folder(config: CascadeConfig, folder: Path) -> CascadeConfig:
    """Return a configuration with its relative paths, and the default store, resolved against a folder."""
    traces, review, changed = config.traces, config.server.review, dict[str, Section]()
    if traces is not None and traces.store is traces.store_env is None and environment(TRACES_VARIABLE) is None:
        config = config.model_copy(update={"traces": traces.model_copy(update={"store": PROJECT_STORE})})
    for name, field in (path.split(".") for path in _PATHS):
        section = getattr(config, name)
        written = getattr(section, field, None)
        if written is not None:
            changed[name] = section.model_copy(update={field: _placed(written, folder)})
    if config.provider.kind == "replay":
        options = {**config.provider.options, "path": _placed(str(config.provider.options["path"]), folder)}
        changed["provider"] = config.provider.model_copy(update={"options": options})
    written = {name: _placed(path, folder) for name in _REVIEWED if (path := getattr(review, name)) is not None}
    update: dict[str, Any] = {"review": review.model_copy(update=written)}
    if (log := config.server.access_log) not in {None, "-"}:
        update["access_log"] = _placed(str(log), folder)
    changed["server"] = config.server.model_copy(update=update)
    return config.model_copy(update=changed)


def _placed(written: str, folder: Path) -> str:
    """Return a path or the URL of a file relative to a folder; absolute paths and URLs of servers are unchanged."""
    scheme, mark, rest = written.partition("://")
    path = Path(rest.removeprefix("/") if mark else written)
    if folder == Path() or (mark and scheme != "sqlite") or path.expanduser().is_absolute():
        return written
    # The folder in a URL is made absolute: a store's path must not contain "..".
    return f"sqlite:///{folder.resolve() / path}" if mark else str(folder / path)


class _PolicyDocument(Section):
    """A document with only a policy."""

    policy: WrittenPolicy


def policy_section(document: Mapping[str, Any]) -> PolicyConfig:
    """Return the checked settings of a policy, without the rest of a configuration.

    Raises ConfigError, with every problem.
    """
    return _validated(_PolicyDocument, {"policy": document}, None).policy


def _validated(kind: type[S], document: Mapping[str, Any], source: str | None) -> S:
    """Return settings as an object. Raises ConfigError with every problem."""
    # The section of a store gives better advice on a URL with a password.
    problems = [line for line in secret_problems(document) if not line.startswith(("traces.store:", "traces:"))]
    try:
        settings = kind.model_validate(document)
    except ValidationError as error:
        from cascade.config.problems import problems_of

        raise ConfigError([*problems, *problems_of(kind, document, error)], source) from None
    if problems:
        raise ConfigError(problems, source)
    return settings


# --- stores, by their URLs or by the environment variables that hold them ---


def environment(name: str | None) -> str | None:
    """Return the value of an environment variable; None if it is not set or empty."""
    return (os.environ.get(name) or None) if name else None


def default_traces_url() -> str | None:
    """Return the URL of the trace store if no configuration names one; None if traces are off.

    Raises ConfigError for a CASCADE_TRACES that is not a store.
    """
    url = environment(TRACES_VARIABLE)
    if url is None:
        return PROJECT_STORE
    return None if url.strip().lower() in {"off", "no", "false", "0"} else _store_in(TRACES_VARIABLE, url)


def _store(name: str, section: StoredConfig) -> str | None:
    """Return the URL of a section's store; None if it names none."""
    if section.store_env is None:
        return section.store
    url = environment(section.store_env)
    if url is None:
        raise ConfigError([f"{name}.store_env: the environment variable {section.store_env} is not set"])
    return _store_in(section.store_env, url)


def _store_in(variable: str, url: str) -> str:
    from cascade.records.address import parse

    try:
        parse(url)
    except UsageError as error:
        raise ConfigError([f"{variable}: {error}"]) from None
    return url
