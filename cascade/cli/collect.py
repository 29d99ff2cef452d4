"""`cascade collect`: run all T steps of every question and log them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from cascade.api.collecting import collect, money_said
from cascade.cli.models import fetch
from cascade.cli.output import notes, print_result, say
from cascade.collection import Progress
from cascade.collection.baselines import BASELINES
from cascade.config import CascadeConfig
from cascade.demo import questions as demonstration
from cascade.demo.requests import demo_requests
from cascade.episodes.questions import AskedQuestion
from cascade.providers import weights
from cascade.types import Question

DEMO, DEMO_REQUESTS = "demo", "demo-requests"
_QUIET_S = 10.0
"""Where there is no terminal, one line at most so often."""


def collect_log(
    questions: Annotated[str, typer.Argument(help="A JSONL, CSV or JSON file of questions, or: demo, demo-requests.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The log: .jsonl, .jsonl.gz or .parquet.")],
    config: Annotated[Path, typer.Option("--config", "-c", help="The configuration.")] = Path("cascade.yaml"),
    resume: Annotated[bool, typer.Option("--resume", help="Continue an earlier run; nothing is paid twice.")] = False,
    concurrency: Annotated[
        int, typer.Option("--concurrency", min=1, max=1_000, help="How many questions run at once.")
    ] = 8,
    max_cost: Annotated[
        float | None, typer.Option("--max-cost", help="Stop before the log costs more than this, in USD.")
    ] = None,
    walk: Annotated[
        list[str] | None,
        typer.Option(
            "--walk", help=f"Also log this baseline: {'; '.join(BASELINES)}; all; none. By default: guide only."
        ),
    ] = None,
    matcher: Annotated[
        str | None,
        typer.Option(
            "--matcher",
            help="How answers are judged: exact, hotpotqa, choice, … By default, the form of the questions decides.",
        ),
    ] = None,
    dataset: Annotated[str | None, typer.Option("--dataset", help="The name of the questions in the log.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Ask only the first N questions.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Run every step of every question and log it, so that any policy can be evaluated exactly on the log.

    Example: cascade collect questions.jsonl -o episodes.parquet --max-cost 5
    """
    asked: str | Sequence[AskedQuestion] = questions
    settings: Path | CascadeConfig = config
    if questions in {DEMO, DEMO_REQUESTS}:
        asked, settings = _demo(questions)
    with _Shown(as_json=as_json) as shown:
        found = collect(
            asked,
            output,
            config=settings,
            resume=resume,
            concurrency=concurrency,
            max_cost_usd=max_cost,
            walks=walk,
            matcher=matcher,
            dataset=dataset or Path(questions).stem,
            limit=limit,
            show=shown.tell,
            tell=say,
        )
    print_result(found, as_json=as_json)
    if found.error is not None:
        raise found.error


def _demo(name: str) -> tuple[list[AskedQuestion], CascadeConfig]:
    """Return a demo's own questions and configuration."""
    fetch([weights.known(name) for name in demonstration.PAIR])
    config = demonstration.demo_config(*demonstration.PAIR)
    if name == DEMO_REQUESTS:
        asked = [
            AskedQuestion(
                one.request_id, Question.of_chat(one.chat), (one.gold,), one.request_id, one.split, one.team, "json"
            )
            for one in demo_requests("log")
        ]
        return asked, demonstration.ladder_config(config)
    asked = [
        AskedQuestion(q.question_id, q.question, q.answers, q.question_id, q.split, q.kind)
        for q in demonstration.demo_questions("log")
    ]
    return asked, config


class _Shown:
    """Progress: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self, *, as_json: bool) -> None:
        self._out: Console = notes()
        self._bar = None
        self._said = time.monotonic()
        if self._out.is_terminal and not as_json:
            parts = (TextColumn("asking"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._bar = Bar(*parts, TextColumn("{task.fields[money]}"), console=self._out)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task("asking", total=None, money="")
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def tell(self, progress: Progress) -> None:
        """Show how far it is."""
        if self._bar is not None:
            self._bar.update(self._task, total=progress.total, completed=progress.done, money=money_said(progress))
        elif time.monotonic() - self._said >= _QUIET_S or progress.done == progress.total:
            self._said = time.monotonic()
            self._out.print(f"{progress.done}/{progress.total} questions, {money_said(progress)}", soft_wrap=True)
