"""`cascade collect`: run all T steps of every question and log them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from cascade.api.collecting import CollectionResult, collect, money_said
from cascade.cli.command import command, flag
from cascade.cli.models import fetch
from cascade.cli.output import notes, say
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


def _collect(**given: Any) -> CollectionResult:
    """Collect with progress shown; a demo is asked its own questions, of its own models."""
    named = given["questions"]
    given["dataset"] = given["dataset"] or Path(named).stem
    if named in {DEMO, DEMO_REQUESTS}:
        given["questions"], given["config"] = _demo(named)
    with _Shown() as shown:
        return collect(**given, show=shown.tell, tell=say)


def _raise_error(found: CollectionResult, _: Mapping[str, Any]) -> None:
    if found.error is not None:
        raise found.error


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
    after=_raise_error,
)


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

    def __init__(self) -> None:
        self._out: Console = notes()
        self._bar = None
        self._said = time.monotonic()
        if self._out.is_terminal:
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
