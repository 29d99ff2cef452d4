"""Sentences of `cascade fit` that need a fit of a certain kind: they are asked for with one that was changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from cascade.api.fit_report import next_step, written
from cascade.config import load
from cascade.evaluation.logs import open_log
from cascade.factory import build_strategy
from cascade.strategies.offers import Offers

Cli = Callable[..., Any]


def test_what_is_printed_of_a_log_call_by_call_is_a_configuration_that_serves(tmp_path: Path) -> None:
    """0.6: "with a strategy of kind offers or verified", from which nobody could write the strategy."""
    (table,) = open_log("offers:demo").tables
    out = Console(width=60)
    with out.capture() as page:
        for part in written("policy", "what it is", following=next_step(["p_yes"], table.sources, "./policy", table)):
            out.print(part, crop=False)
    printed = page.get()
    lines = printed[printed.index("models:") :].replace("policy: ./policy", "provider: fake")
    (tmp_path / "cascade.yaml").write_text(lines, "utf-8")
    strategy = build_strategy(load(tmp_path / "cascade.yaml"))
    assert isinstance(strategy, Offers)
    assert [(one.name, one.use.name, one.purpose, one.parents) for one in strategy.offers] == [
        ("base", "qwen2.5-coder-0.5b", "answer", ()),
        ("judge", "qwen2.5-coder-1.5b", "verify", (1,)),
        ("guide", "qwen2.5-coder-1.5b", "outright", ()),
    ]
    assert strategy.step_names == table.step_names


def test_the_notices_on_stderr_are_a_field_of_the_document(cli: Cli) -> None:
    ran = cli("fit", "demo-ladder", "--guarantee", "regret", "--alpha", "0.3", "-o", "policy", "--json")
    told = json.loads(ran.out)["notices"]
    assert any("a guarantee of regret has a delta" in one for one in told)
    assert all(" ".join(one.split()) in " ".join(ran.err.split()) for one in told)
