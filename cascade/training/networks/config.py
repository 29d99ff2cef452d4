"""How policy networks are trained: every number with its symbol, where its default comes from, and the printed one.

"Paper" is Conformal Constrained Policy Optimization (arXiv 2511.11828). Where a default differs, `design/ccpo.md` says
why; `CCPOConfig.literal()` is the text as it is printed.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from cascade.policies.network import MOST_HIDDEN

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
_SAMPLED = {"steps": 2_000, "batch": 10, "learning_rate": 1e-3, "multiplier_rate": 0.01, "smoothing": 0.97}
"""What is otherwise where rollouts are sampled: ten of them swing ten times as much as a hundred questions do."""


class CCPOConfig(BaseModel):
    """All settings of CPO and CCPO. Frozen; unknown names are refused.

    >>> CCPOConfig().layers, CCPOConfig(estimator="sampled").batch
    ((64, 64, 64), 10)
    >>> CCPOConfig.literal().mask_width
    0.01
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    # --- the network ---
    layers: tuple[Annotated[int, Field(ge=1, le=4096)], ...] = (64, 64, 64)
    """Units of each hidden layer, of the policy and of both critics. Paper: three of 64."""
    activation: Literal["softsign", "relu"] = "softsign"
    """Paper: not said. Both are served to the bit (`policies.network`); softsign costs less at the same coverage."""

    # --- the estimator ---
    estimator: Literal["exact", "sampled"] = "exact"
    """"exact": logs are full information, so cost and coverage of a soft policy are multilinear in its inclusions and
    are differentiated as they are. "sampled", the paper's: rollouts, importance weights, critics."""
    steps: int = Field(default=1_000, ge=1, le=10_000_000)
    """Policy updates; sampled: 2,000. Paper: 1,500 to 2,000. Exact gradients of a hundred questions need fewer."""
    batch: int = Field(default=100, ge=1)
    """Questions an update; sampled: 10. Paper: 10."""
    exploration: float = Field(default=0.3, ge=0, lt=1)
    """Share of uniform actions in the behaviour policy, sampled. Paper: 0. Without it ratios vanish as π sharpens."""
    rho_clip: Positive | None = 1.0
    """ρ̄ of V-trace; None: unclipped. Paper: 1. The critic then learns the value of another policy, min(S, μ)
    rescaled, and gradients swing less and are off: by 2 to 9 % in small worlds where they are known, once it has."""
    c_clip: Positive | None = 1.0
    """c̄ of V-trace: how fast values travel back, not what they become. Paper: 1."""
    gradient_clip: Positive | None = None
    """Of the ratio in the gradient of the cost; None: unclipped. Paper: 1; that of the constraint is never clipped."""
    state_weights: bool = True
    """Whether gradients are weighted for the states visited, by Π ρ, as the paper announces; it prints ρ_t alone."""
    critic_rate: Positive = 1e-3
    """Learning rate of both critics (Adam). Paper: 1e-3."""

    # --- the set of actions and its threshold ---
    mask_width: Positive = 0.05
    """ε, the width of the soft mask. Paper: 0.01, at which gradients vanish but within 0.03 of κ."""
    mask_space: Literal["probability", "logit"] = "probability"
    """What ε is a width of: σ((π − κ)/ε), the paper's, or σ((logit π − logit κ)/ε)."""
    kappa_start: Share | None = None
    """κ₀; None: 0.6/k of k actions. Paper: not said."""
    kappa_range: tuple[Share, Share] | None = None
    """What κ is kept in; None: [0.3/k, 1/k]. Above 1/k sets may be empty, far below the mask has no gradient.
    Paper: [0, 1]."""
    eta: Positive = 0.1
    """η₁ of η_t = η₁ t^(−½−ξ), the step of κ. Paper: not said."""
    xi: float = Field(default=0.1, gt=0, lt=0.5)
    """ξ of the same. Paper: 0.1."""
    kappa_sign: Literal["corrected", "printed"] = "corrected"
    """Eq. 9 lowers κ after a miss; as it is printed it raises it, and κ runs to an end."""
    kappa_timing: Literal["before", "after"] = "before"
    """Whether misses are counted under the policy before its update. Paper: after, on the questions it learned from."""

    # --- what is optimised ---
    constraint_form: Literal["exact", "paper", "indicator"] = "exact"
    """"exact": the share of questions covered. "paper": right leaves counted with repetition, J̄_C, which lets easy
    questions pay for misses. "indicator": the c_t of the text, sampled, whose policy gradient is zero."""
    cost_form: Literal["conformal", "path"] = "conformal"
    """"conformal": what the set of rollouts costs. "path": what one rollout drawn from it costs, the paper's, lower."""
    lambda_set: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """λ, what each answer kept is charged with, in mean steps; None: what the fit asks for."""
    aim: Positive = 1.0
    """The share of the allowed loss that training aims at."""

    # --- the update ---
    update: Literal["dual", "trust_region"] = "dual"
    """"dual": Adam on cost + μ·violation, μ by dual ascent. "trust_region": CPO's step, the paper's."""
    learning_rate: Positive = 2e-3
    """Of Adam under "dual"; falls to 0 over the steps. Sampled: 1e-3."""
    multiplier: Positive = 0.5
    """μ at the start, in mean steps that the allowed loss as a whole is worth: a miss starts at this over α. Ten times
    as much drives the policy to go on everywhere first, from where it finds back late where later steps are dear."""
    multiplier_rate: Positive = 0.05
    """How fast μ follows the violation: log μ rises by this times the violation, smoothed, in limits, cut at ±1.
    Sampled: 0.01."""
    multiplier_gain: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.5
    """What the violation adds to log μ at once: a proportional part beside the integral one damps the swings
    (Stooke et al., Responsive Safety in Reinforcement Learning by PID Lagrangian Methods, ICML 2020)."""
    delta: Positive = 0.01
    """δ of the trust region, nats. Paper: 0.01."""
    anneal: bool = True
    """Whether δ falls to 0 over the steps. Paper: constant."""
    damping: Positive = 0.1
    """Added to the Fisher matrix. Paper: not said."""
    solver: Literal["exact", "cg"] = "exact"
    """H⁻¹v: exactly, through the Gram matrix of the states, or by conjugate gradients. Paper: the latter."""
    cg_iterations: int = Field(default=10, ge=1, le=1000)
    """Conjugate-gradient iterations. Paper: not said; 10 is usual."""
    fisher_states: int = Field(default=100, ge=1)
    """States that the Fisher matrix is averaged over, at most."""
    trust_region_of: Literal["policy", "soft_mask"] = "policy"
    """Whose KL divergence is bounded: π's, or S's, the paper's, whose Fisher matrix vanishes on confident states."""
    backtracks: int = Field(default=10, ge=1, le=100)
    """Lengths of a step that are tried. Paper: not said."""
    shrink: float = Field(default=0.8, gt=0, lt=1)
    """By how much each is shorter. Paper: not said; 0.8 is usual."""
    smoothing: float = Field(default=0.9, ge=0, lt=1)
    """How much of the constraint's value is that of earlier batches. Sampled: 0.97. Paper: 0."""
    average_from: Share = 0.5
    """From which share of the steps weights are averaged; 1: the last ones are taken. Paper: 1."""

    # --- the machine ---
    device: str = "cpu"
    """Where tensors live. On "cpu" the same seed gives the same bytes."""

    @classmethod
    def literal(cls) -> Self:
        """Return the text as it is printed, with what it leaves open as usual elsewhere."""
        return cls(
            activation="relu", estimator="sampled", exploration=0.0, rho_clip=1.0, gradient_clip=1.0,
            state_weights=False, mask_width=0.01, kappa_range=(0.0, 1.0), kappa_sign="printed", kappa_timing="after",
            constraint_form="paper", cost_form="path", update="trust_region", anneal=False, solver="cg",
            trust_region_of="soft_mask", smoothing=0.0, average_from=1.0,
        )  # fmt: skip

    @model_validator(mode="before")
    @classmethod
    def _by_estimator(cls, given: Any) -> Any:
        """Fill in what hangs on the estimator and was not given."""
        sampled = isinstance(given, dict) and given.get("estimator") == "sampled"
        return {**_SAMPLED, **given} if sampled else given

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
            raise ValueError(f"it is cpu, cuda or cuda:N, not {device!r}")
        return device

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.kappa_range is not None and not self.kappa_range[0] < self.kappa_range[1]:
            raise ValueError("kappa_range: the lower end is below the upper one")
        if self.kappa_start is not None and self.kappa_range is not None:
            low, high = self.kappa_range
            if not low <= self.kappa_start <= high:
                raise ValueError(f"kappa_start: {self.kappa_start:g} is outside kappa_range, {low:g} to {high:g}")
        if self.constraint_form == "indicator" and self.estimator == "exact":
            raise ValueError(
                "constraint_form: the indicator has to be sampled; there is nothing in it to differentiate"
            )
        return self
