"""The settings, section by section, with names, types and defaults. `config` combines them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, date, tzinfo
from fractions import Fraction
from typing import Annotated, Any, Literal, Self
from zoneinfo import ZoneInfo, available_timezones

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, field_validator, model_validator

from cascade.budget.caps import OF_CLIENTS, Window
from cascade.chat import budget_problem
from cascade.checks import checked_base, distinct, hint_at, shown_name, unknown
from cascade.errors import UsageError
from cascade.money import Price, price_from_entry
from cascade.plans import presets as strategies
from cascade.plans.base import CHAT_MAX_TOKENS, MAX_TOKENS
from cascade.plans.presets import StrategyConfig
from cascade.providers.fields import SETTABLE, is_closed
from cascade.providers.registry import PROVIDERS
from cascade.section import Section

_Count = Annotated[int, Field(ge=1)]
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Address = Annotated[str, AfterValidator(checked_base)]
_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
_Share = Annotated[float, Field(gt=0, lt=1)]
_NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def _known_provider(value: str) -> str:
    try:
        known = value in PROVIDERS.names or (":" in value and PROVIDERS.find(value))
    except UsageError as error:
        raise ValueError(f"{str(error).rstrip('.')}{hint_at(value.partition(':')[0], PROVIDERS.names)}") from None
    if not known:
        raise ValueError(unknown("provider", value, PROVIDERS.names))
    return value


_Provider = Annotated[str, AfterValidator(_known_provider)]


class Rates(Section):
    """USD per million tokens, as price lists print it; `request` in USD per call."""

    input: _NotNegative
    output: _NotNegative
    cached_input: _NotNegative | None = None
    cache_write: _NotNegative | None = None
    cache_write_1h: _NotNegative | None = None
    reasoning: _NotNegative | None = None
    request: _NotNegative = 0.0
    audio_input: _NotNegative | None = None
    audio_output: _NotNegative | None = None


class LongRates(Rates):
    """The price of a whole call whose prompt is longer than `tokens`."""

    tokens: int = Field(ge=1)


class TierRates(Rates):
    """The price at a service tier."""

    above: tuple[LongRates, ...] = ()


class PriceConfig(TierRates):
    """The price of a model: its rates, those for long prompts and service tiers, and that of a web search in USD.

    `search` is for a model that searches the web once for each request.
    """

    tiers: dict[str, TierRates] = Field(default_factory=dict)
    search: dict[Literal["low", "medium", "high"], _NotNegative] = Field(default_factory=dict)
    note: str | None = None

    def price(self) -> Price:
        """Return the price as a value."""
        entry = self.model_dump(exclude_none=True, exclude={"note"})
        return replace(price_from_entry(entry, "config"), note=self.note)


class DeploymentConfig(Section):
    """One of several sites that serve a model. Settings that it leaves out, and its price, are those of the model.

    `model` is the model's name at this site. Its share of the conversations is `weight` ÷ the sum of all weights.
    """

    api_base: _Address | None = None
    api_key_env: str | None = None
    model: str | None = Field(default=None, min_length=1)
    weight: _Positive = 1.0


class ModelConfig(Section):
    """One model: its name, address, request settings, price, and the additions that it refuses.

    `fallbacks` are other entries under `models`, which answer, in this order, if the model is down at all of its
    `deployments`; these share the conversations and stand in for each other. `refuses` lists the
    fields that cascade must not add to its requests; instead of `max_tokens` it sends `max_completion_tokens`.
    `allow_fields` opens fields of applications' requests that are refused otherwise (`providers.fields`), and tools as
    "tools.TYPE"; fields that choose an address, a key, a model or a price cannot be opened. `settings` are fields that
    are sent with each request of this entry, instead of a client's own (`providers.fields.SETTABLE`). A model of
    `kind: decision` judges answers: it returns P(yes) in its `dialect`, or through a chat model's log-probs.
    """

    model: str = Field(min_length=1)
    price: PriceConfig | None = None
    provider: _Provider | None = None
    api_base: _Address | None = None
    api_key_env: str | None = None
    max_tokens: int = Field(default=MAX_TOKENS, ge=1, le=1_000_000)
    temperature: float = Field(default=0.0, ge=0, le=2, allow_inf_nan=False)
    seed: int | None = None
    context_tokens: int | None = Field(default=None, ge=1)
    images: bool | None = None
    tools: bool | None = None
    fallbacks: tuple[str, ...] = ()
    refuses: tuple[Literal["logprobs", "max_tokens", "temperature", "seed"], ...] = ()
    allow_fields: tuple[str, ...] = ()
    agent: str | None = None
    kind: Literal["chat", "decision"] = "chat"
    dialect: Literal["openai", "systemone", "logprobs"] | None = None
    settings: Mapping[str, Any] = Field(default_factory=dict)
    deployments: Mapping[_Name, DeploymentConfig] = Field(default_factory=dict)
    _id: str | None = PrivateAttr(default=None)

    @property
    def id(self) -> str:
        """Its name in prices, logs, certificates and reports: the model's, or "model@entry" where entries differ."""
        return self._id or self.model

    def called(self, name: str) -> Self:
        """Return the entry with another id."""
        entry = self.model_copy()
        entry._id = name  # noqa: SLF001 - of its own class
        return entry

    @property
    def weights(self) -> Mapping[str, float]:
        """The weight of each deployment by its name."""
        return {name: at.weight for name, at in self.deployments.items()}

    @property
    def sites(self) -> Mapping[str | None, Self]:
        """Each deployment by its name, as an entry whose id is its requests' `site`; without any, itself under None."""
        if not self.deployments:
            return {None: self}
        own = {name: at.model_dump(exclude_none=True, exclude={"weight"}) for name, at in self.deployments.items()}
        return {
            name: self.model_copy(update={**more, "deployments": {}}).called(f"{self.id} at {name}")
            for name, more in own.items()
        }

    @field_validator("settings")
    @classmethod
    def _settable(cls, value: Mapping[str, Any]) -> Mapping[str, Any]:
        if wrong := [unknown("setting", name, sorted(SETTABLE)) for name in value if name not in SETTABLE]:
            raise ValueError("; ".join(wrong))
        if (problem := budget_problem(value)) is not None:
            raise ValueError(problem)
        return value

    @field_validator("allow_fields")
    @classmethod
    def _openable(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        closed = [name for name in value if is_closed(name)]
        if closed:
            listed = ", ".join(closed)
            raise ValueError(f"an application may not choose {listed}: set it in this configuration, or leave it out")
        return value

    @field_validator("agent")
    @classmethod
    def _usable(cls, value: str | None) -> str | None:
        if value is None:
            return None
        from cascade.plans.agents import AGENTS  # most models have none

        try:
            agent = AGENTS.find(value)
        except UsageError as error:
            raise ValueError(str(error)) from None
        if agent is None:
            raise ValueError(f'there is no agent {value!r}; name its place, "module:function"')
        return value

    @model_validator(mode="after")
    def _sent(self) -> Self:
        """Refuse settings that would not be sent."""
        if self.kind == "chat" and self.dialect is not None:
            raise ValueError("only a decision model has a dialect; add kind: decision, or leave it out")
        if self.decides is not None:
            unsent = [
                name
                for name in _OF_CHATS
                if getattr(self, name) != type(self).model_fields[name].get_default(call_default_factory=True)
            ]
            if unsent:
                raise ValueError(f"a decision model is sent only a statement and data; leave out {', '.join(unsent)}")
        return self

    @property
    def decides(self) -> str | None:
        """The dialect in which it is asked only for P(yes); None for a model that writes text."""
        return None if self.kind == "chat" or self.dialect == "logprobs" else self.dialect or "openai"

    @property
    def chat_max_tokens(self) -> int:
        """The longest reply to a chat request that sets no limit: `max_tokens` if configured, else CHAT_MAX_TOKENS."""
        return self.max_tokens if "max_tokens" in self.model_fields_set else CHAT_MAX_TOKENS


_OF_CHATS = ("max_tokens", "temperature", "seed", "images", "tools", "refuses", "allow_fields", "agent", "settings")
Model = Annotated[ModelConfig, BeforeValidator(lambda value: {"model": value} if isinstance(value, str) else value)]


class AuditsConfig(Section):
    """The share of requests run to the last step, and the probability that a false alarm is ever raised.

    `fallback` serves after an alarm, by default "everything" for a promise on the set of answers, else "guide".
    Without a `seed` the draws of each process differ. With modes, audits are always on, and these two cannot be set.
    """

    probability: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 0.05
    level: _Share = 0.05
    fallback: Literal["everything", "guide"] | None = None
    seed: int | None = None


class GuaranteeConfig(Section):
    """The promise that a certificate must make. A setting that is left out is not required.

    `uncovered` says what answers a question that no certificate covers: the guide, or the policy without a promise.
    """

    promise: str | None = None
    risk: _Share | None = None
    confidence: _Share | None = None
    required: bool = False
    uncovered: Literal["guide", "policy"] = "guide"

    @field_validator("promise")
    @classmethod
    def _known(cls, value: str | None) -> str | None:
        if value is not None:
            from cascade.conformal.promise import KINDS  # numpy, which most configurations do not need

            if value not in KINDS.names:
                raise ValueError(unknown("promise", value, KINDS.names))
        return value


def _checked_store(value: str) -> str:
    """Return a store's URL. Raises ValueError if it is not a URL, or holds a password (F67)."""
    from cascade.records.address import holds_password, parse

    if holds_password(value):
        raise ValueError(
            "a URL with a password does not belong in a configuration; put it in an environment variable and name "
            "that: store_env: NAME"
        )
    try:
        parse(value)
    except UsageError as error:
        raise ValueError(str(error)) from None
    return value


class StoredConfig(Section):
    """A section with a store of its own: by its URL, or by the environment variable that holds one."""

    store: Annotated[str, AfterValidator(_checked_store)] | None = None
    store_env: str | None = None

    @model_validator(mode="after")
    def _one_store(self) -> Self:
        if self.store is not None and self.store_env is not None:
            raise ValueError("give store or store_env, not both")
        return self


class CapConfig(Section):
    """A cap in USD: on all requests, or on those of each key, user, segment or model, per day, per month, or for ever.

    With a `name` it applies only to that key, user, segment or model, and replaces the cap that the others have.
    """

    per: Literal["all", "key", "user", "segment", "model"] = "all"
    window: Window | None = None
    name: str | None = Field(default=None, min_length=1)
    usd: _Positive


def _cap_problems(caps: tuple[CapConfig, ...]) -> Iterable[str]:
    sizes = {(cap.per, cap.window, cap.name): cap.usd for cap in caps}
    if len(sizes) < len(caps):
        yield "two of them cap the same requests; leave one out"
    for cap in caps:
        general = sizes.get((cap.per, cap.window, None))
        if cap.name is not None and cap.per == "all":
            yield f"{shown_name(cap.name)}: a cap with a name needs per: key, user, segment or model"
        if cap.name is not None and cap.per in OF_CLIENTS and general is not None and cap.usd > general:
            yield (
                f"{shown_name(cap.name)}: any client may send this name, and would get more than the {general:g} of "
                f"the others; lower its cap, or cap the others per key instead of per {cap.per}"
            )


class AlertsConfig(Section):
    """The shares of a cap at which alerts are sent, and the environment variable with the URL they are posted to."""

    at: tuple[Annotated[float, Field(gt=0, le=1)], ...] = Field(default=(0.8,), min_length=1)
    webhook_env: str | None = None


class BudgetConfig(StoredConfig):
    """Caps on the cost of a question and of all requests together, in USD.

    `caps` are counted on a ledger: in this process, or in the database that `store` (or the variable `store_env`)
    names, for all processes that share it; days and months begin in `time_zone`. A call waits up to `wait_s` for money
    held by running calls. `unsettled_per_key` limits what a process holds for calls of a key whose clients have left,
    by default to a tenth of the smallest cap. If a call does not fit, "serve_best" serves
    the best answer so far, and "refuse" serves nothing. While the store does not answer, "refuse" makes no call;
    "allow_and_record" counts only in this process, and books the costs once the store answers.
    """

    per_question: _Positive | None = None
    caps: tuple[CapConfig, ...] = ()
    time_zone: str = "UTC"
    alerts: AlertsConfig | None = None
    unsettled_per_key: _Positive | None = None
    on_exhausted: Literal["refuse", "serve_best"] = "refuse"
    on_unreachable: Literal["refuse", "allow_and_record"] = "refuse"
    wait_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0

    @field_validator("caps")
    @classmethod
    def _clear(cls, value: tuple[CapConfig, ...]) -> tuple[CapConfig, ...]:
        if problems := [*_cap_problems(value)]:
            raise ValueError("\n".join(problems))
        return value

    @field_validator("time_zone")
    @classmethod
    def _known_zone(cls, value: str) -> str:
        if value != "UTC" and value not in (zones := available_timezones()):
            raise ValueError(unknown("time zone", value, zones) + ("" if zones else "; install tzdata"))
        return value

    @property
    def zone(self) -> tzinfo:
        """Where days and months begin."""
        return UTC if self.time_zone == "UTC" else ZoneInfo(self.time_zone)


class TimeoutsConfig(Section):
    """Wall-clock limits in seconds.

    For a stream, `first_token_s` limits the wait for its first text or thought, and `idle_s` that for each further
    piece, both by default `per_call_s`; `per_stream_s` limits the whole stream. `per_store_s` is how long a request
    waits for a store that hangs, by default 1.
    """

    per_call_s: _Positive = 120.0
    first_token_s: _Positive | None = None
    idle_s: _Positive | None = None
    per_stream_s: _Positive = 600.0
    per_question_s: _Positive | None = None
    per_store_s: _Positive | None = None


class LimitsConfig(Section):
    """What one key may use, as counted by each process; None is no limit.

    Requests per minute, tokens read and written per minute, requests at once, bytes of a body, and models it may name.
    """

    requests_per_minute: _Count | None = None
    tokens_per_minute: _Count | None = None
    at_once: _Count | None = None
    max_body_bytes: _Count | None = None
    models: tuple[str, ...] | None = None


class ServerKeyConfig(Section):
    """A key for the server: its owner's name and its SHA-256. The key itself is stored nowhere.

    `expires` is the last day, UTC, on which it is valid. The scope `ask` allows requests to models, `feedback` feedback
    that counts for certificates, `review` judging outputs, under the key's name, `view` the status page, `metrics`
    reading `/metrics`; `admin` allows all of these except requests to models, and also changing modes. `limits` replace
    the server's.
    """

    name: str = Field(min_length=1, max_length=100)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    expires: Annotated[date, Field(strict=False)] | None = None
    scopes: tuple[Literal["ask", "feedback", "review", "view", "metrics", "admin"], ...] = ("ask",)
    limits: LimitsConfig | None = None


class ReviewConfig(Section):
    """The review page `/ui/review`. By default people judge the audits in the traces, whose store keeps the results."""

    log: str | None = Field(default=None, min_length=1)
    file: str | None = Field(default=None, min_length=1)
    ask: Literal["preference", "regret"] = "preference"
    label_rate: Annotated[float, Field(gt=0, le=1)] | None = None


class ServerConfig(Section):
    """The address, the keys and the limits of `cascade serve`.

    `name` is the cascade's name among the models that a client sees; `workers` is the number of processes that serve.
    `any_address` allows addresses other than loopback without keys. Limits in seconds: `request_s` for a whole request,
    `body_s` for sending a body and for a client that reads nothing, `drain_s` for running requests once the server is
    to stop. `access_log` is a file that gets a line of JSON per request, or "-" for standard output. A connection is
    kept open for `keep_alive_s` between requests; a stream that is silent for `heartbeat_s` gets a comment.
    """

    name: _Name = "cascade"
    host: str = Field(default="127.0.0.1", min_length=1)
    port: int = Field(default=8400, ge=0, le=65_535)
    workers: int = Field(default=1, ge=1, le=1_000)
    keys: tuple[ServerKeyConfig, ...] = ()
    any_address: bool = False
    max_requests: int = Field(default=1_000, ge=1)
    max_body_bytes: int = Field(default=20_000_000, ge=1_000)
    max_head_bytes: int = Field(default=32_000, ge=1_000)
    max_depth: int = Field(default=100, ge=5, le=500)
    max_elements: int = Field(default=50_000, ge=100)
    max_buffered_bytes: int = Field(default=200_000_000, ge=1_000)
    limits: LimitsConfig = Field(default_factory=LimitsConfig)
    request_s: _Positive = 600.0
    body_s: _Positive = 30.0
    drain_s: _Positive = 30.0
    keep_alive_s: Annotated[int, Field(ge=1)] = 75
    heartbeat_s: _Positive = 15.0
    access_log: str | None = Field(default=None, min_length=1)
    review: ReviewConfig = Field(default_factory=ReviewConfig)

    @field_validator("keys")
    @classmethod
    def _distinct(cls, value: tuple[ServerKeyConfig, ...]) -> tuple[ServerKeyConfig, ...]:
        distinct(tuple([key.name for key in value]))
        if len({key.sha256 for key in value}) < len(value):
            raise ValueError("two keys have the same sha256, and requests would count for only one; leave one out")
        return value


class ModesConfig(StoredConfig):
    """How `cascade serve` observes, certifies and enforces. Without this section the policy serves at once.

    While observing, `share` of the conversations is drawn; the share `certify` of them certifies, the others fit.
    `risk` and `confidence` are the certificate's, the confidence over all looks; `comparator` says when two answers
    are the same. The first `examples` messages of each request are the application's own examples.
    """

    share: Annotated[float, Field(gt=0, le=1)] = 0.1
    certify: _Share = 0.5
    risk: _Share = 0.1
    confidence: _Share = 0.9
    comparator: str | None = None
    examples: Annotated[int, Field(ge=0)] = 0

    @property
    def delta(self) -> float:
        """The probability that all looks together may spend: 1 − confidence, computed in decimals."""
        return float(1 - Fraction(repr(self.confidence)))


class ProviderConfig(Section):
    """The provider: its name and its options."""

    kind: _Provider
    api_base: _Address | None = None
    api_key_env: str | None = None
    options: Mapping[str, Any] = Field(default_factory=dict)


class TelemetryConfig(Section):
    """Whether model calls become OpenTelemetry spans, and whether these hold prompts and replies."""

    spans: bool = False
    content: bool = False


class TracesConfig(StoredConfig):
    """The store of the traces, and how much of each call is kept. By default CASCADE_TRACES, or the project file."""

    content: Literal["full", "hash", "none"] = "full"
    strict: bool = False


def traces_shorthand(value: object) -> object:
    """Expand the short forms of `traces`: a URL, "on" and "off"; None is off."""
    if value is True or value == "on":
        return {}
    if value is False or value == "off":
        return None
    return {"store": value} if isinstance(value, str) else value


def provider_shorthand(value: object) -> object:
    """Expand the short forms of `provider`: "local", "replay:log.jsonl" and "my_module:factory"."""
    if not isinstance(value, str):
        return value
    kind, colon, path = value.partition(":")
    return {"kind": kind, "options": {"path": path}} if colon and kind in PROVIDERS.names else {"kind": value}


AnyStrategy = Annotated[StrategyConfig, strategies.WRITTEN]
"""A strategy; its class depends on its kind."""
