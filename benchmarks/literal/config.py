"""The settings of the paper's text, beside those that every network is trained with."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from cascade.training.networks.config import CCPOConfig, Positive

_SAMPLED = {"steps": 2_000, "batch": 10, "learning_rate": 1e-3, "multiplier_rate": 0.01, "smoothing": 0.97}
"""What is otherwise where rollouts are sampled: ten of them swing ten times as much as a hundred questions do."""


class LiteralConfig(CCPOConfig):
    """All settings of the text and of its repairs; the defaults train as `CCPOConfig` does.

    >>> LiteralConfig().batch, LiteralConfig(estimator="sampled").batch
    (100, 10)
    >>> LiteralConfig.literal().mask_width
    0.01
    """

    # --- the estimator ---
    estimator: Literal["exact", "sampled"] = "exact"
    """"exact": logs are full information, so cost and coverage of a soft policy are multilinear in its inclusions and
    are differentiated as they are. "sampled", the paper's: rollouts, importance weights, critics."""
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
    mask_space: Literal["probability", "logit"] = "probability"
    """What ε is a width of: σ((π − κ)/ε), the paper's, or σ((logit π − logit κ)/ε)."""
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

    # --- the update ---
    update: Literal["dual", "trust_region"] = "dual"
    """"dual": Adam on cost + μ·violation, μ by dual ascent. "trust_region": CPO's step, the paper's."""
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
        """Fill in what depends on the estimator and was not given."""
        sampled = isinstance(given, dict) and given.get("estimator") == "sampled"
        return {**_SAMPLED, **given} if sampled else given

    @model_validator(mode="after")
    def _to_differentiate(self) -> Self:
        if self.constraint_form == "indicator" and self.estimator == "exact":
            raise ValueError(
                "constraint_form: the indicator has to be sampled; there is nothing in it to differentiate"
            )
        return self
