"""The two local models of the demo, at made-up prices, and the configurations that they are served and logged with."""

from __future__ import annotations

from cascade.config import CascadeConfig, load
from cascade.policies.fixed import FixedConfig
from cascade.policies.threshold import ThresholdConfig
from cascade.strategies.ladder import LadderConfig

MADE_UP = "made up: local models have no price"
BASE_PRICE = {"input": 0.1, "output": 0.4, "note": MADE_UP}
GUIDE_PRICE = {"input": 1.0, "output": 4.0, "note": MADE_UP}
PAIR = ("qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b")
TINY = ("smollm2-135m", "smollm2-135m")
ROUNDS = 4
BY_HAND = 0.16
"""Nats per token of the base's reply, set on the log of short questions (`benchmarks/ladder_threshold.py`)."""
JUDGING = 0.5
"""The guide's uncertainty in nats from which rounds of base and guide go on."""


def demo_config(base: str, guide: str) -> CascadeConfig:
    """Return the configuration that the log "demo" was made with: rounds of base and guide, every step logged.

    One model in both places has one price. `ladder_config` is what the demo serves.
    """
    return load(
        {
            "models": {
                "base": {"model": base, "price": BASE_PRICE, "max_tokens": 128},
                "guide": {"model": guide, "price": BASE_PRICE if base == guide else GUIDE_PRICE, "max_tokens": 128},
            },
            "strategy": {"kind": "base_guide", "rounds": ROUNDS},
            "policy": {"kind": "threshold", "threshold": JUDGING},
            "provider": "local",
            "traces": "off",
        }
    )


def ladder_config(config: CascadeConfig) -> CascadeConfig:
    """Return a configuration with a ladder of its base and guide, and a threshold set by hand."""
    policy = ThresholdConfig(kind="threshold", when="reply_logprob", threshold=BY_HAND)
    return config.model_copy(update={"strategy": _ladder("base", "guide"), "policy": policy})


def alone(config: CascadeConfig, place: str) -> CascadeConfig:
    """Return a configuration in which one of the models answers everything."""
    return config.model_copy(update={"strategy": _ladder(place), "policy": FixedConfig(kind="fixed")})


def _ladder(*places: str) -> LadderConfig:
    return LadderConfig(kind="ladder", models=places)
