"""The settings, section by section: what each is called, its type, its default. `config` puts them together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from cascade.checks import checked_base, did_you_mean
from cascade.episodes.store.address import holds_password, parse
from cascade.errors import UsageError
from cascade.money import Price
from cascade.providers import registry

_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Address = Annotated[str, AfterValidator(checked_base)]
_NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Section(BaseModel):
    """A part of the configuration: frozen, and a setting that it does not know is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), hide_input_in_errors=True)


class PriceConfig(Section):
    """USD per million tokens, as price lists print it; `request` in USD per call."""

    input: _NotNegative
    output: _NotNegative
    cached_input: _NotNegative | None = None
    reasoning: _NotNegative | None = None
    request: _NotNegative = 0.0
    note: str | None = None

    def price(self) -> Price:
        """Return the price as a value."""
        return Price.per_million(**self.model_dump())


def _name_alone(value: object) -> object:
    return {"model": value} if isinstance(value, str) else value


class ModelConfig(Section):
    """One model: its name, where it is served, how it is asked, what it costs."""

    model: str = Field(min_length=1)
    price: PriceConfig | None = None
    provider: str | None = None
    api_base: _Address | None = None
    api_key_env: str | None = None
    max_tokens: int = Field(default=256, ge=1, le=1_000_000)
    temperature: float = Field(default=0.0, ge=0, le=2, allow_inf_nan=False)
    seed: int | None = None


Model = Annotated[ModelConfig, BeforeValidator(_name_alone)]


class BaseGuideConfig(Section):
    """Rounds of base and guide."""

    kind: Literal["base_guide"] = "base_guide"
    rounds: int = Field(default=4, ge=1, le=100)
    verdict: Literal["auto", "logprobs", "sampled", "structured"] = "auto"
    samples: int = Field(default=3, ge=1, le=50)
    on_guide_error: Literal["escalate", "accept", "abstain"] = "escalate"
    prompts: str | None = None
    decider: Literal["base", "guide"] | None = None

    @property
    def places(self) -> tuple[str, ...]:
        """The entries under `models` that it needs."""
        return ("base", "guide")

    @property
    def horizon(self) -> int:
        """T, the most steps."""
        return self.rounds


class LadderConfig(Section):
    """A list of models, cheap to dear, named as under `models`."""

    kind: Literal["ladder"]
    models: tuple[str, ...] = Field(min_length=1)
    prompts: str | None = None

    @property
    def places(self) -> tuple[str, ...]:
        """The entries under `models` that it needs."""
        return self.models

    @property
    def horizon(self) -> int:
        """T, the most steps."""
        return len(self.models)

    @field_validator("models")
    @classmethod
    def _distinct(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        twice = sorted({name for name in value if value.count(name) > 1})
        if twice:
            raise ValueError(f"{', '.join(twice)} stands more than once")
        return value


class ExitConfig(Section):
    """One model that answers and says when to stop."""

    kind: Literal["exit"]
    model: str = "guide"
    rounds: int = Field(default=4, ge=1, le=100)
    prompts: str | None = None

    @property
    def places(self) -> tuple[str, ...]:
        """The entries under `models` that it needs."""
        return (self.model,)

    @property
    def horizon(self) -> int:
        """T, the most steps."""
        return self.rounds


class FixedConfig(Section):
    """Always the same depth."""

    kind: Literal["fixed"]
    keep: Literal["base", "guide", "both"] = "both"
    depth: int = Field(default=1, ge=1)


class RandomConfig(Section):
    """Chance, seeded."""

    kind: Literal["random"]
    seed: int = 0


class ThresholdConfig(Section):
    """UALA: go on while there is doubt. `threshold` in nats, or in probability for when: p_yes."""

    kind: Literal["threshold"] = "threshold"
    threshold: _NotNegative = 0.3
    keep: Literal["judged", "both"] = "judged"
    when: Literal["uncertain", "p_yes", "reply_logprob"] = "uncertain"


class PromptedConfig(Section):
    """A model decides: the strategy's `decider`, or the model of the exit strategy."""

    kind: Literal["prompted"]


class BudgetConfig(Section):
    """What a question may cost, in USD."""

    per_question: _Positive | None = None
    on_exhausted: Literal["refuse", "answer"] = "refuse"


class TimeoutsConfig(Section):
    """Wall-clock limits in seconds."""

    per_call_s: _Positive = 120.0
    per_question_s: _Positive | None = None


class ProviderConfig(Section):
    """Who answers: a provider's name and its options."""

    kind: str
    api_base: _Address | None = None
    api_key_env: str | None = None
    options: Mapping[str, Any] = Field(default_factory=dict)

    @field_validator("kind")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in registry.names():
            raise ValueError(f"there is no provider {value!r}{did_you_mean(value, registry.names())}")
        return value


def _checked_store(value: str) -> str:
    """Return a store's URL, or raise ValueError for one that is none or holds a password (F67)."""
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


class TracesConfig(Section):
    """Where the calls of each ask are kept, and what of them. Without a store it is CASCADE_TRACES, or one's own."""

    store: Annotated[str, AfterValidator(_checked_store)] | None = None
    store_env: str | None = None
    content: Literal["full", "hash", "none"] = "full"
    durability: Literal["group", "full"] = "group"
    strict: bool = False

    @model_validator(mode="after")
    def _one_store(self) -> TracesConfig:
        if self.store is not None and self.store_env is not None:
            raise ValueError("give store or store_env, not both")
        return self


def traces_shorthand(value: object) -> object:
    """Read a URL, "on" and "off" as what they are short for; None is off."""
    if value is True or value == "on":
        return {}
    if value is False or value == "off":
        return None
    return {"store": value} if isinstance(value, str) else value


def provider_shorthand(value: object) -> object:
    """Read "local" and "replay:log.jsonl" as what they are short for."""
    if not isinstance(value, str):
        return value
    kind, colon, path = value.partition(":")
    return {"kind": kind, "options": {"path": path}} if colon else {"kind": kind}


def _kind_first(default: str, kinds: Mapping[str, type[Section]]) -> BeforeValidator:
    """Say what is wrong with a missing or unknown `kind` in words, not as a failed union."""
    known = tuple(kinds)

    def check(value: object) -> object:
        if isinstance(value, Mapping):
            kind = value.get("kind", default)
            if kind not in known:
                raise ValueError(f"there is no kind {kind!r}{did_you_mean(str(kind), known)}")
            return {**value, "kind": kind}
        if isinstance(value, str):
            # A ValueError, since pydantic collects those.
            raise ValueError("a setting here starts with its kind, as in {kind: threshold}")  # noqa: TRY004
        return value

    return BeforeValidator(check)


STRATEGIES: Mapping[str, type[Section]] = {"base_guide": BaseGuideConfig, "ladder": LadderConfig, "exit": ExitConfig}
POLICIES: Mapping[str, type[Section]] = {
    "fixed": FixedConfig,
    "random": RandomConfig,
    "threshold": ThresholdConfig,
    "prompted": PromptedConfig,
}
StrategyConfig = Annotated[
    Annotated[BaseGuideConfig | LadderConfig | ExitConfig, Field(discriminator="kind")],
    _kind_first("base_guide", STRATEGIES),
]
PolicyConfig = Annotated[
    Annotated[FixedConfig | RandomConfig | ThresholdConfig | PromptedConfig, Field(discriminator="kind")],
    _kind_first("threshold", POLICIES),
]
