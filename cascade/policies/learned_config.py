"""The settings of learned policies, as a policy directory holds them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal, NoReturn

from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer, model_validator

from cascade.checks import did_you_mean
from cascade.errors import ConfigError
from cascade.policies.base import SHARED_PLACE, FittedOn, Policy
from cascade.policies.config import PolicyConfig, StrategyFacts
from cascade.section import Section


class FeatureConfig(Section):
    """One feature that a learned policy reads after a step, with its unit and range (None: no bound)."""

    step: int = Field(ge=1, le=100)
    name: str = Field(min_length=1)
    unit: str
    low: float | None
    high: float | None


class ModelFileConfig(Section):
    """The file of a learned policy's numbers, beside `policy.json`."""

    file: Literal["model.safetensors"]
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


MOST_STEPS = 100


class LearnedConfig(PolicyConfig):
    """A fitted policy, as `cascade fit` writes it into a policy directory; it exists nowhere else.

    `on_missing: go_on`: if a feature is missing that was never missing in training, the policy goes on. `fitted` holds
    figures on how the policy was chosen; no decision reads them. `takes` names the part of the strategy that the policy
    uses, if not all of it: numbers of steps, the reference alone, or "calls" if it decides before each call which one
    is bought. `states` then has the offers bought when each rule decides, and a feature's step is the number of its
    rule.
    """

    not_by_hand: ClassVar[str | None] = (
        "a learned policy cannot be given by its settings; name the directory that cascade fit wrote: policy: DIR"
    )

    kind: Literal["learned"]
    method: Literal[
        "net_benefit",
        "purchases",
        "threshold",
        "depth",
        "reference",
        "cpo",
        "cpo_batch",
        "cpo_online",
        "ccpo",
    ]
    horizon: int = Field(ge=1, le=MOST_STEPS)
    sources: tuple[str, ...] = Field(min_length=1)
    kappa: float = Field(allow_inf_nan=False)
    features: tuple[FeatureConfig, ...]
    model: ModelFileConfig
    on_missing: Literal["go_on"]
    fitted: Mapping[str, Any]
    takes: Literal["reference", "calls"] | tuple[int, ...] | None = None
    states: tuple[tuple[int, ...], ...] = ()

    @model_validator(mode="after")
    def _buys(self) -> LearnedConfig:
        if (self.takes == "calls") != bool(self.states):
            raise ValueError('states belong to a policy that takes "calls", one for each of its rules')
        return self

    @model_serializer(mode="wrap")
    def _without_no_states(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out the fields of policies that buy if this one does not, so that older files keep their bytes."""
        found: dict[str, Any] = plain(self)
        if not self.states:
            found.pop("states", None)
        return found

    @field_validator("takes", mode="before")
    @classmethod
    def _rising(cls, value: object) -> object:
        listed = list(value) if isinstance(value, list | tuple) else []
        steps = [one for one in listed if type(one) is int and 1 <= one <= MOST_STEPS]
        if value is None or value in ("reference", "calls") or (listed and sorted(set(steps)) == listed):
            return value
        raise ValueError(
            f'it must be "reference", "calls" or a list of steps: rising whole numbers from 1 to {MOST_STEPS}'
        )

    def build(self) -> NoReturn:
        """Raise an error: the policy cannot be built from its settings alone."""
        raise ConfigError(["policy: the numbers of a learned policy are in its directory; name that: policy: DIR"])

    def read(self, files: Mapping[str, bytes], source: str) -> Policy:
        """Return the policy whose numbers are in the directory's file."""
        from cascade.policies import model_file

        return model_file.loads(files[self.model.file], self.model_dump(mode="json"), source)

    def problems(self, strategy: StrategyFacts) -> Iterator[str]:
        """Yield the inputs that the policy was fitted on and the strategy lacks."""
        if self.takes is not None:
            yield from self._taken_problems(strategy, self.takes)
            return
        yield from self._step_problems(strategy)
        yield from self._signal_problems(strategy)

    def _step_problems(self, strategy: StrategyFacts) -> Iterator[str]:
        """Yield problems if the strategy has other steps or candidates; the last one names a strategy that fits."""
        problems = []
        if not _same_places(self.sources, strategy.sources):
            several = " and ".join(min(names) for names in strategy.sources)
            told = several if len(strategy.sources) > 1 else "one candidate a step, of its models"
            fitted = "one answer a step" if self.sources == (SHARED_PLACE,) else " and ".join(self.sources)
            problems.append(f"policy.sources: it was fitted on {fitted}, and the strategy has {told}")
        if self.horizon != strategy.horizon:
            problems.append(
                f"policy.horizon: it was fitted on {self.horizon} steps, and the strategy has {strategy.horizon}"
            )
        if problems:
            line = strategy.line_for(FittedOn(self.horizon, self.sources))
            *first, last = problems
            yield from first
            yield f"{last}; write {line}" if line else last

    def _signal_problems(self, strategy: StrategyFacts) -> Iterator[str]:
        from cascade.policies.learned import signals_read  # numpy, which most configurations do without

        read = signals_read([one.name for one in self.features], self.sources)
        for name in sorted({name for name in read if name is not None} - strategy.signals):
            said = f"it reads the signal {name}, which the {strategy.kind} strategy never gives"
            yield f"policy.features: {said}{did_you_mean(name, strategy.signals)}"

    def _taken_problems(
        self, strategy: StrategyFacts, takes: Literal["reference", "calls"] | tuple[int, ...]
    ) -> Iterator[str]:
        """Yield why the strategy lacks the part that the policy takes."""
        if takes == "calls":
            if not strategy.has_calls:
                yield (
                    "policy.takes: the policy decides before each call, and the strategy "
                    f"{strategy.kind} has none to choose from: a ladder or a list of offers has"
                )
            elif strategy.horizon != self.horizon:
                yield (
                    f"policy.horizon: it was fitted on {self.horizon} offers, and the strategy has {strategy.horizon}"
                )
        elif takes == "reference":
            if not strategy.has_reference:
                yield f"policy.takes: the policy asks the reference alone, and the strategy {strategy.kind} has none"
        elif not strategy.has_parts:
            yield "policy.takes: the policy takes some steps of a ladder, and the strategy is not a ladder"
        elif takes[-1] != strategy.horizon:
            listed = f"step{'' if len(takes) == 1 else 's'} {', '.join(map(str, takes))}"
            yield (
                f"policy.takes: the policy takes {listed} of a ladder of {takes[-1]} models, and the strategy has "
                f"{strategy.horizon}"
            )


def _same_places(sources: tuple[str, ...], places: tuple[frozenset[str], ...]) -> bool:
    """Whether a step's candidates have the same sources as the policy's, in any order."""
    return len(set(sources)) == len(places) == len(sources) and all(
        any(source in names for source in sources) for names in places
    )
