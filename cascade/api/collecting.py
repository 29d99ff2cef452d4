"""`collect`: run every step of every question and log it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cascade.api.logs import Where, parse_where
from cascade.checks import did_you_mean
from cascade.collection import Collected, CollectSettings, Progress, journal_of
from cascade.collection import collect as collecting
from cascade.collection.adding import LoggedCalls, added_nodes
from cascade.config import CascadeConfig, load
from cascade.episodes.opening import rows_of
from cascade.errors import ProviderError, UsageError
from cascade.factory import build_strategy
from cascade.logs.questions import AskedQuestion, read_questions
from cascade.logs.schema import Dropped
from cascade.money import dollars, usd
from cascade.plans.presets import VERIFIER, LadderConfig
from cascade.reports.report import Report, Result, Tell, warn
from cascade.text import counted


@dataclass(frozen=True, repr=False, kw_only=True)
class CollectionResult(Result):
    """A log that was collected; `error` is why it ended early, or lists the questions that failed.

    Attributes:
        collected: how many questions are in the log, what it cost, and which failed.
        output: the log.
    """

    collected: Collected
    output: Path


def collect(
    questions: str | Path | Sequence[AskedQuestion],
    output: str | Path,
    settings: CollectSettings = CollectSettings(),  # noqa: B008 - frozen
    *,
    config: str | Path | CascadeConfig = "cascade.yaml",
    mapped: Mapping[str, str] | None = None,
    where: Where = None,
    show: Callable[[Progress], None] = lambda _: None,
    tell: Tell = warn,
) -> CollectionResult:
    """Run every step of every question and log it, so that any policy can be evaluated exactly on the log.

    Every answer is on the disk before it is used. If questions fail, or a cap ends the run early, you still get a
    result, and its `error` says what happened.

    Args:
        questions: a JSONL, CSV or JSON file of questions, or the questions themselves.
        output: the log: .jsonl, .jsonl.gz or .parquet.
        settings: how to collect.
        config: the configuration.
        mapped: the file's fields for our columns: {"question": "prompt", "answer": "meta.target"}.
        where: with `only` or `judge`, use only the log's rows that have these values in these columns.
        show: is called with the progress.
        tell: is called with a sentence about the questions that were left out.

    Raises:
        UsageError: the questions or the log cannot be read or written, or a name does not exist.
        ConfigError: the configuration is wrong.
    """
    configured, recorded, only, judge = load(config), None, [*(settings.only or ())], settings.judge
    if judge is not None:
        configured, only = _judged(configured, judge), [*only, VERIFIER if ":" in judge else judge]
    if only:
        extra = settings.baselines is not None or mapped or settings.dataset is not None
        if extra or not isinstance(questions, str | Path):
            raise UsageError("A node is added to a log as it is: name its file, and no --baseline, --map or --dataset.")
        recorded = _recorded(str(questions), parse_where(where or ()), configured, only, tell)
        listed = recorded.questions()
    elif isinstance(questions, str | Path):
        dropped = Dropped()
        listed = read_questions(Path(questions), dropped, mapped)
        if dropped.describe():  # before anything is paid for: a misspelt field leaves a question without its answer
            tell(dropped.describe())
    else:
        listed = list(questions)
    name = Path(questions).stem if isinstance(questions, str | Path) else "questions"
    named, file = replace(settings, dataset=settings.dataset or name), Path(output)
    done = collecting(configured, listed[: settings.limit], file, named, recorded=recorded, tell=show)
    error = done.stopped or _failed(done)
    return CollectionResult(reports=(_report(done, file),), error=error, collected=done, output=file)


def _failed(done: Collected) -> ProviderError | None:
    if not done.failures:
        return None
    (name, why), *_ = done.failures
    return ProviderError(
        f"{len(done.failures)} of {done.progress.total} questions failed, first {name}: {why}. The others are logged; "
        "ask for these again with --resume."
    )


def _judged(config: CascadeConfig, judge: str) -> CascadeConfig:
    """Return a configuration whose ladder has a judge."""
    ladder = config.strategy
    if not isinstance(ladder, LadderConfig):
        raise UsageError(f"A judge is added to a ladder, and the strategy is {ladder.kind}.")
    if ":" not in judge and judge not in config.models:
        raise UsageError(f"There is no {judge} under models{did_you_mean(judge, config.models)}.")
    return config.model_copy(update={"strategy": ladder.model_copy(update={"judge": judge})})


def _recorded(
    log: str, where: Mapping[str, str], config: CascadeConfig, only: Sequence[str], tell: Tell
) -> LoggedCalls:
    """Read the log that nodes are added to."""
    plan, dropped = build_strategy(config), Dropped()
    recorded = LoggedCalls(rows_of(log, where, dropped), plan, added_nodes(config, plan, only))
    if dropped.describe():
        tell(dropped.describe())
    if names := recorded.left_out(plan):
        tell(f"left out, since the strategy has no such nodes: {', '.join(names)}")
    return recorded


def _report(done: Collected, output: Path) -> Report:
    """Return what was logged and what it cost."""
    progress = done.progress
    calls = f"{counted(progress.made_calls, 'call')} made, {progress.reused_calls} reused"
    lines = [f"{counted(done.questions, 'question')} logged: {calls}, {spending(progress)}"]
    if done.rows:
        lines.append(f"{counted(done.rows, 'row')} in {output}")
    lines += [
        f"{refused.role} refused {counted(refused.questions, 'question')}, first {refused.first}: {refused.error} The "
        f"log has {'it' if refused.questions == 1 else 'them'} without the answer of {refused.role}, which is unknown. "
        "--resume asks again."
        for refused in done.refused
    ]
    if done.unused_calls:
        unused = counted(done.unused_calls, "recorded call")
        lines.append(f"{unused} not in this log: kept in {journal_of(output).name}")
    document = {
        "output": str(output),
        "questions": done.questions,
        "rows": done.rows,
        "made_calls": progress.made_calls,
        "reused_calls": progress.reused_calls,
        "spent_usd": usd(progress.spent_nano_usd) if progress.cost_known else None,
        "unused_calls": done.unused_calls,
        "failures": [{"question": name, "error": error} for name, error in done.failures],
        "refused": [
            {"name": refused.role, "questions": refused.questions, "first": refused.first, "error": refused.error}
            for refused in done.refused
        ],
        "stopped": None if done.stopped is None else str(done.stopped),
    }
    return Report(tuple(lines), document=document)


def spending(progress: Progress) -> str:
    """Return the money spent so far, the number of failures, and the time left."""
    eta = "" if progress.eta_s is None or progress.done == progress.total else f", {_duration(progress.eta_s)} to go"
    failed = f", {progress.failed} failed" if progress.failed else ""
    limit = "" if progress.cost_known else ", as far as known"
    return f"{dollars(usd(progress.spent_nano_usd))} spent{limit}{eta}{failed}"


def _duration(seconds: float) -> str:
    """Return a duration in words.

    >>> _duration(59), _duration(150), _duration(9_000)
    ('59 s', '2 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.1f} h"
