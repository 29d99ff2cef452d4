"""The settings of learned policies, as they stand in a policy directory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator

from cascade.section import Section


class FeatureConfig(Section):
    """One feature that a learned policy looks at after a step, with its unit and range (None: no bound)."""

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


class LearnedConfig(Section):
    """A policy that was fitted, as `cascade fit` writes it into a policy directory, and nowhere else.

    `on_missing: go_on` says what happens where a feature is missing that never was in training. `fitted` holds figures
    of how the policy was chosen; nothing hangs on them. `embedding` names the sentence model that it looks at questions
    with, if it does. `takes` names the part of the strategy that it walks over, where that is not all of it: numbers of
    steps, or the reference alone.
    """

    kind: Literal["learned"]
    method: Literal[
        "net_benefit", "index2", "boosted", "threshold", "depth", "reference", "cpo", "cpo_batch", "cpo_online", "ccpo"
    ]
    horizon: int = Field(ge=1, le=MOST_STEPS)
    sources: tuple[str, ...] = Field(min_length=1)
    kappa: float = Field(allow_inf_nan=False)
    features: tuple[FeatureConfig, ...]
    model: ModelFileConfig
    on_missing: Literal["go_on"]
    fitted: Mapping[str, Any]
    embedding: str | None = None
    takes: Literal["reference"] | tuple[int, ...] | None = None

    @field_validator("takes", mode="before")
    @classmethod
    def _rising(cls, value: object) -> object:
        listed = list(value) if isinstance(value, list | tuple) else []
        steps = [one for one in listed if type(one) is int and 1 <= one <= MOST_STEPS]
        if value is None or value == "reference" or (listed and sorted(set(steps)) == listed):
            return value
        raise ValueError(f'it is "reference" or a list of steps, whole numbers from 1 to {MOST_STEPS} that rise')

    @property
    def parts(self) -> tuple[LearnedConfig, ...]:
        """What must fit a strategy."""
        return (self,)


class CrossConfig(Section):
    """Learned policies that decide as one, as `cascade fit --cross-calibrate` writes them, and nothing else.

    `alpha` is their threshold, `seed` drew the folds; all members name the one file that holds the numbers of all.
    """

    kind: Literal["cross"]
    alpha: float = Field(gt=0, lt=0.5)
    seed: int = Field(ge=0)
    members: tuple[LearnedConfig, ...] = Field(min_length=2, max_length=100)
    model: ModelFileConfig

    @property
    def parts(self) -> tuple[LearnedConfig, ...]:
        """What must fit a strategy."""
        return self.members
