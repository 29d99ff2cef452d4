"""The table of signals, and the page that prints it with the strategies that declare each."""

from __future__ import annotations

from pathlib import Path

from cascade.policies.signals import SIGNALS, Signal
from cascade.strategies.config import STRATEGIES

PAGE = Path(__file__).parents[3] / "design" / "signals.md"
KINDS = {name: STRATEGIES.find(name) for name in STRATEGIES.built_in}


def bounds(signal: Signal) -> str:
    low, high = signal.low, signal.high
    if low is None:
        return "any" if high is None else f"≤ {high:,.0f}"
    return f"≥ {low:,.0f}" if high is None else f"{low:,.0f} to {high:,.0f}"


def test_the_page_is_the_table() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in PAGE.read_text("utf-8").split("| signal | unit |")[1].split("\n\n")[0].splitlines()[2:]
    ]
    made = [
        [
            f"`{name}`",
            one.unit,
            bounds(one),
            "yes" if one.tracked else "",
            ", ".join(kind for kind, config in KINDS.items() if name in config.signals) or "imported",
        ]
        for name, one in SIGNALS.items()
    ]
    assert rows == made


def test_what_a_built_in_strategy_gives_is_in_the_table() -> None:
    assert all(config.signals <= set(SIGNALS) for config in KINDS.values())
