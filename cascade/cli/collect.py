"""`cascade collect`: run all T steps of every question and log them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cascade.api.collecting import CollectionResult, collect, money_said
from cascade.cli.main import Shown, command, flag, say
from cascade.cli.models import fetch
from cascade.collection import Progress
from cascade.collection.collector import BASELINES
from cascade.config import CascadeConfig
from cascade.demo.requests import PAIR, demo_config, demo_requests, ladder_config
from cascade.logs.questions import AskedQuestion
from cascade.providers import weights
from cascade.types import Question

DEMO_REQUESTS = "demo-requests"


def _collect(**given: Any) -> CollectionResult:
    """Collect, and show the progress. The name of the demo selects its messages and models."""
    named = given["questions"]
    given["dataset"] = given["dataset"] or Path(named).stem
    if named == DEMO_REQUESTS:
        given["questions"], given["config"] = _demo()
    with Shown("asking") as shown:
        return collect(**given, show=lambda now: _show(shown, now), tell=say)


collect_log = command(
    collect,
    "cascade collect questions.jsonl -o episodes.parquet --max-cost 5",
    flags={
        "questions": flag(kind=str),
        "max_cost_usd": flag("--max-cost"),
        "walks": flag(
            "--walk", help=f"Also log this baseline: {'; '.join(BASELINES)}; all; none. By default: guide only."
        ),
        "limit": flag(min=1),
    },
    call=_collect,
)


def _demo() -> tuple[list[AskedQuestion], CascadeConfig]:
    """Return the demo's own messages and configuration."""
    fetch([weights.known(name) for name in PAIR])
    asked = [
        AskedQuestion(
            one.request_id, Question.of_chat(one.chat), (one.gold,), one.request_id, one.split, one.team, "json"
        )
        for one in demo_requests("log")
    ]
    return asked, ladder_config(demo_config(*PAIR))


def _show(shown: Shown, now: Progress) -> None:
    shown.tell("questions", now.done, now.total, money_said(now), always=now.done == now.total)
