"""A log that was costed at other prices than the cascade's is found out."""

from __future__ import annotations

from typing import Any

from cascade.calibration.scores import Mispriced, mispriced
from cascade.demo.requests import demo_config
from cascade.evaluation.logs import open_log
from cascade.money import Price

PRICES = {"small": Price.per_million(input=1, output=2), "free": None}


def row(model: str = "small", cost: int | None = 120_000, **tokens: int | None) -> dict[str, Any]:
    usage = {"input_tokens": 100, "output_tokens": 10, "cached_input_tokens": None, "reasoning_tokens": None}
    return {"model": model, "cost_nano_usd": cost} | usage | tokens


def test_a_log_at_the_same_prices_is_as_it_should_be() -> None:
    known = [row(), row(cost=120_001), row(cost=None), row("free", 7), row("other", 7), row(output_tokens=None)]
    assert mispriced(known, PRICES) == []


def test_other_prices_are_named_with_one_call() -> None:
    (found,) = mispriced([row(), row(cost=240_000), row(cost=60_000)], PRICES)
    assert found == Mispriced("small", 2, 240_000, 120_000)
    assert "0.00024 USD" in found.describe()
    assert "0.00012 USD" in found.describe()


def test_a_tenth_of_a_thousandth_is_rounding_and_a_fiftieth_is_not() -> None:
    dear = {"small": Price.per_million(input=1_000, output=2_000)}
    assert mispriced([row(cost=120_012_000)], dear) == []
    assert len(mispriced([row(cost=122_500_000)], dear)) == 1


def test_the_shipped_log_was_costed_at_the_prices_of_the_demo() -> None:
    config = demo_config("qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b")
    assert mispriced(open_log("demo").rows(), config.prices()) == []
