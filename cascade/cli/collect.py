"""`cascade collect`: run all T steps of every question and log them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cascade.api.collecting import collect, money_said
from cascade.cli import options as opt
from cascade.cli.main import Shown, print_result, say
from cascade.cli.models import fetch
from cascade.collection import Progress
from cascade.collection.collector import BASELINES
from cascade.config import CascadeConfig
from cascade.demo.requests import PAIR, demo_config, demo_requests, ladder_config
from cascade.logs.questions import AskedQuestion
from cascade.providers import weights
from cascade.types import Question

DEMO_REQUESTS = "demo-requests"


def collect_log(
    questions: Annotated[str, typer.Argument(help="A JSONL, CSV or JSON file of questions, or: demo-requests.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The log: .jsonl, .jsonl.gz or .parquet.")],
    config: opt.Config = Path("cascade.yaml"),
    resume: Annotated[bool, typer.Option("--resume", help="Continue an earlier run; nothing is paid twice.")] = False,
    concurrency: opt.Concurrency = 8,
    max_cost: Annotated[float | None, typer.Option(help="Stop before the log costs more than this, in USD.")] = None,
    walk: Annotated[
        list[str] | None,
        typer.Option(help=f"Also log this baseline: {'; '.join(BASELINES)}; all; none. By default: guide only."),
    ] = None,
    matcher: Annotated[str | None, typer.Option(help="How answers are judged; by default by their form.")] = None,
    dataset: Annotated[str | None, typer.Option(help="The name of the questions in the log.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Ask only the first N questions.")] = None,
    as_json: opt.AsJson = False,
) -> None:
    """Run every step of every question and log it, so that any policy can be evaluated exactly on the log.

    Every answer is on the disk before it is used.

    Example: cascade collect questions.jsonl -o episodes.parquet --max-cost 5
    """
    source, settings = _demo() if questions == DEMO_REQUESTS else (questions, config)
    with Shown("asking") as shown:
        result = collect(
            source,
            output,
            config=settings,
            resume=resume,
            concurrency=concurrency,
            max_cost_usd=max_cost,
            walks=walk,
            matcher=matcher,
            dataset=dataset or Path(questions).stem,
            limit=limit,
            show=lambda progress: _show(shown, progress),
            tell=say,
        )
    print_result(result, as_json=as_json)


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
