"""`cascade collect`: run all T steps of every question and log them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from cascade import demo as demonstration
from cascade.cli.models import fetch
from cascade.cli.output import console, dollars, notes, plain, print_json
from cascade.cli.tables import rounds_table
from cascade.collect import Collected, Progress, collect, journal_of
from cascade.collect.baselines import BASELINES, recorded_baselines
from cascade.config import CascadeConfig, load
from cascade.episodes.files import read_rows
from cascade.episodes.lines import Dropped
from cascade.episodes.questions import AskedQuestion, read_questions
from cascade.episodes.schema import GUIDE_ONLY
from cascade.episodes.tabulate import tables_from_rows
from cascade.errors import ProviderError, UsageError
from cascade.matching import get_matcher
from cascade.money import nano_usd, usd
from cascade.providers import weights

DEMO = "demo"
_QUIET_S = 10.0
"""Where there is no terminal, one line at most so often."""


def collect_log(
    questions: Annotated[str, typer.Argument(help="A JSONL, CSV or JSON file of questions, or: demo.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The log: .jsonl, .jsonl.gz or .parquet.")],
    config: Annotated[Path, typer.Option("--config", "-c", help="The configuration.")] = Path("cascade.yaml"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what is on record.")] = False,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, max=1_000, help="Questions at a time.")] = 8,
    max_cost: Annotated[
        float | None, typer.Option("--max-cost", help="The most that the log may cost, in USD.")
    ] = None,
    walk: Annotated[
        list[str] | None,
        typer.Option(
            "--walk", help=f"Log this way to answer too: {'; '.join(BASELINES)}; all; none. By default: guide only."
        ),
    ] = None,
    matcher: Annotated[
        str | None,
        typer.Option(
            "--matcher", help="How answers are judged: exact, hotpotqa, choice, … By default as the form asks."
        ),
    ] = None,
    dataset: Annotated[str | None, typer.Option("--dataset", help="What the questions are called in the log.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Ask only the first so many.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as one JSON document.")] = False,
) -> None:
    """Run all T steps of every question and log them, so that any policy can be judged on the log exactly.

    Example: cascade collect questions.jsonl -o episodes.parquet --max-cost 5
    """
    cap, judge = _cap(max_cost), None if matcher is None else get_matcher(matcher)
    settings, asked = _what(questions, config)
    baselines = recorded_baselines(settings, _wanted(walk))
    with _Shown(as_json=as_json) as shown:
        done = collect(
            settings,
            asked[:limit],
            output,
            baselines=baselines,
            matcher=judge,
            dataset=dataset or Path(questions).stem,
            resume=resume,
            concurrency=concurrency,
            max_cost_nano_usd=cap,
            tell=shown.tell,
        )
    _report(done, output, as_json=as_json)
    if done.stopped is not None:
        raise done.stopped
    if done.failures:
        raise ProviderError(
            f"{len(done.failures)} of {done.progress.total} questions failed, first {done.failures[0][0]}: "
            f"{done.failures[0][1]}. The others are logged; ask for these again with --resume."
        )


def _cap(max_cost: float | None) -> int | None:
    if max_cost is None:
        return None
    if not 0 < max_cost < 1e9:
        raise UsageError(f"--max-cost is an amount in USD above 0, not {max_cost}.")
    return nano_usd(max_cost)


def _wanted(walk: list[str] | None) -> list[str]:
    if walk is None:
        return [GUIDE_ONLY]
    return [] if walk == ["none"] else list(BASELINES) if walk == ["all"] else walk


def _what(questions: str, config: Path) -> tuple[CascadeConfig, list[AskedQuestion]]:
    """Return the configuration and the questions: the demo's own, or those of files."""
    if questions != DEMO:
        settings, odd = load(config), Dropped()
        asked = read_questions(Path(questions), odd)
        if odd.describe():  # before anything is paid: a misspelt field leaves a question without its answer
            notes().print(odd.describe(), style="yellow", soft_wrap=True, markup=False)
        return settings, asked
    fetch([weights.known(name) for name in demonstration.PAIR])
    asked = [
        AskedQuestion(q.question_id, q.question, q.answers, q.question_id, q.split, q.kind)
        for q in demonstration.demo_questions("log")
    ]
    return demonstration.demo_config(*demonstration.PAIR), asked


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
            self._bar.update(self._task, total=progress.total, completed=progress.done, money=_money(progress))
        elif time.monotonic() - self._said >= _QUIET_S or progress.done == progress.total:
            self._said = time.monotonic()
            self._out.print(f"{progress.done}/{progress.total} questions, {_money(progress)}", soft_wrap=True)


def _money(progress: Progress) -> str:
    eta = "" if progress.eta_s is None or progress.done == progress.total else f", {_duration(progress.eta_s)} to go"
    failed = f", {progress.failed} failed" if progress.failed else ""
    known = "" if progress.cost_known else " as far as is known"
    return f"{dollars(usd(progress.spent_nano_usd))} spent{known}{eta}{failed}"


def _duration(seconds: float) -> str:
    """Return a duration in words.

    >>> _duration(59), _duration(150), _duration(9_000)
    ('59 s', '2 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.1f} h"


def _report(done: Collected, output: Path, *, as_json: bool) -> None:
    progress = done.progress
    if as_json:
        print_json(_document(done, output))
        return
    out = console()
    out.print(
        f"{done.questions} questions logged: {progress.made_calls} calls made, "
        f"{progress.reused_calls} answered from the record, "
        f"{_money(progress)}",
        soft_wrap=True,
    )
    if done.rows:
        out.print(f"{done.rows} rows in {plain(str(output))}", soft_wrap=True)
        _show_steps(out, output)
    if done.unused_calls:
        kept_in = plain(journal_of(output).name)
        out.print(f"{done.unused_calls} calls on record are not in this log; they stay in {kept_in}", soft_wrap=True)


def _show_steps(out: Console, output: Path) -> None:
    try:
        tables = tables_from_rows(read_rows(output))
    except UsageError:  # the log is written all the same
        out.print("Nothing to judge: of no question is it known which answers are right.")
        return
    for table in tables:
        out.print(rounds_table(table))


def _document(done: Collected, output: Path) -> dict[str, Any]:
    progress = done.progress
    return {
        "output": str(output),
        "questions": done.questions,
        "rows": done.rows,
        "made_calls": progress.made_calls,
        "reused_calls": progress.reused_calls,
        "spent_usd": usd(progress.spent_nano_usd) if progress.cost_known else None,
        "unused_calls": done.unused_calls,
        "failures": [{"question": name, "error": said} for name, said in done.failures],
        "stopped": None if done.stopped is None else str(done.stopped),
    }
