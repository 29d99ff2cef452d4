"""The settings of training a policy network, each with its symbol, the origin of its default, and the paper's value.

"Paper" is Conformal Constrained Policy Optimization (arXiv 2511.11828). If a default differs, `design/ccpo.md` says
why. `benchmarks/literal` runs the paper's rollouts and its update.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from cascade.policies.network import MOST_HIDDEN

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]


class CCPOConfig(BaseModel):
    """All settings of CPO and CCPO. Frozen; unknown names are refused.

    >>> CCPOConfig().layers, CCPOConfig(steps=300).steps
    ((64, 64, 64), 300)
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    # --- the network ---
    layers: tuple[Annotated[int, Field(ge=1, le=4096)], ...] = (64, 64, 64)
    """Units of each hidden layer. Paper: three of 64."""
    activation: Literal["softsign", "relu"] = "softsign"
    """Paper: not given. Both are served to the bit (`policies.network`); softsign costs less at the same coverage."""

    # --- the batches ---
    steps: int = Field(default=1_000, ge=1, le=10_000_000)
    """Policy updates. Paper: 1,500 to 2,000. Exact gradients of a hundred questions need fewer."""
    batch: int = Field(default=100, ge=1)
    """Questions an update. Paper: 10."""

    # --- the set of actions and its threshold ---
    mask_width: Positive = 0.05
    """ε, the width of the soft mask σ((π − κ)/ε). Paper: 0.01, at which gradients vanish beyond 0.03 from κ."""
    kappa_start: Share | None = None
    """κ₀; None: 0.6/k for k actions. Paper: not given."""
    kappa_range: tuple[Share, Share] | None = None
    """The range of κ; None: [0.3/k, 1/k]. Above 1/k sets may be empty; far below, the mask has no gradient.
    Paper: [0, 1]."""
    eta: Positive = 0.1
    """η₁ of η_t = η₁ t^(−½−ξ), the step of κ. Paper: not given."""
    xi: float = Field(default=0.1, gt=0, lt=0.5)
    """ξ in η_t. Paper: 0.1."""

    # --- what is optimised ---
    lambda_set: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """λ, the charge for each answer kept, in mean steps; None: the charge of the fit."""
    aim: Positive = 1.0
    """The share of the allowed loss that training aims at."""

    # --- the update ---
    learning_rate: Positive = 2e-3
    """Of Adam; falls to 0 over the steps."""
    multiplier: Positive = 0.5
    """μ at the start: the price of the whole allowed loss, in mean steps; the price of a miss starts at this over α.
    With ten times as much the policy first goes on everywhere, and recovers late if later steps are expensive."""
    multiplier_rate: Positive = 0.05
    """How fast μ follows the violation: log μ rises by this times the violation, smoothed, in limits, cut at ±1."""
    multiplier_gain: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.5
    """The part of the violation that is added to log μ at once: a proportional part beside the integral one damps the
    swings (Stooke et al., Responsive Safety in Reinforcement Learning by PID Lagrangian Methods, ICML 2020)."""
    smoothing: float = Field(default=0.9, ge=0, lt=1)
    """The weight of earlier batches in the constraint's value. Paper: 0."""
    average_from: Share = 0.5
    """The share of the steps after which weights are averaged; 1: the last weights are taken. Paper: 1."""

    # --- the machine ---
    device: str = "cpu"
    """The device of the tensors. On "cpu" the same seed gives the same bytes."""

    @field_validator("layers")
    @classmethod
    def _few_layers(cls, layers: tuple[int, ...]) -> tuple[int, ...]:
        if not 1 <= len(layers) <= MOST_HIDDEN:
            raise ValueError(f"a network has 1 to {MOST_HIDDEN} hidden layers, not {len(layers)}")
        return layers

    @field_validator("device")
    @classmethod
    def _known_device(cls, device: str) -> str:
        if not re.fullmatch(r"cpu|cuda(:[0-9]+)?", device):
            raise ValueError(f"it must be cpu, cuda or cuda:N, not {device!r}")
        return device

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.kappa_range is not None and not self.kappa_range[0] < self.kappa_range[1]:
            raise ValueError("kappa_range: the lower end must be below the upper one")
        if self.kappa_start is not None and self.kappa_range is not None:
            low, high = self.kappa_range
            if not low <= self.kappa_start <= high:
                raise ValueError(f"kappa_start: {self.kappa_start:g} is outside kappa_range, {low:g} to {high:g}")
        return self
