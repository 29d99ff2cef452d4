"""`collect`: runs every step of every question and logs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from cascade.api.output import Result, Tell, dollars, plain_text, warn
from cascade.api.tables import rounds_table
from cascade.checks import nano_of
from cascade.collection import Collected, Progress, journal_of
from cascade.collection import collect as collecting
from cascade.collection.collector import BASELINES, recorded_baselines
from cascade.config import CascadeConfig, load
from cascade.episodes.rows import reads_of
from cascade.errors import CascadeError, ProviderError, UsageError
from cascade.logs.files import read_rows
from cascade.logs.questions import AskedQuestion, read_questions
from cascade.logs.schema import GUIDE_ONLY, Dropped
from cascade.matching import get_matcher
from cascade.money import usd
from cascade.text import counted


@dataclass(frozen=True, slots=True)
class CollectionResult(Result):
    """A log that was collected.

    Attributes:
        collected: how many questions are in it, what it cost, and which failed.
        output: the log.
    """

    collected: Collected
    output: Path

    @property
    def error(self) -> CascadeError | None:
        """The error that ended the run early, or an error that lists the failed questions; None if all are logged."""
        done = self.collected
        if done.stopped is not None or not done.failures:
            return done.stopped
        return ProviderError(
            f"{len(done.failures)} of {done.progress.total} questions failed, first {done.failures[0][0]}: "
            f"{done.failures[0][1]}. The others are logged; ask for these again with --resume."
        )

    def parts(self, width: int) -> Iterator[RenderableType]:  # noqa: ARG002 - its tables are narrow
        """Yield the parts of the printed result, for a terminal `width` columns wide."""
        done, progress = self.collected, self.collected.progress
        yield _line(
            f"{done.questions} questions logged: {progress.made_calls} calls made, "
            f"{progress.reused_calls} reused from earlier runs, {money_said(progress)}"
        )
        if done.rows:
            yield _line(f"{done.rows} rows in {self.output}")
            yield from _steps(self.output)
        for one in done.refused:
            yield _line(
                f"{one.role} refused {counted(one.questions, 'question')}, first {one.first}: {one.error} "
                f"The log has {'it' if one.questions == 1 else 'them'} without the answer of {one.role}, which is "
                "unknown. --resume asks again."
            )
        if done.unused_calls:
            kept_in = journal_of(self.output).name
            yield _line(f"{done.unused_calls} recorded calls are not in this log; they stay in {kept_in}")

    def to_dict(self) -> dict[str, Any]:
        """Return the document of `collect --json`."""
        done, progress = self.collected, self.collected.progress
        return {
            "output": str(self.output),
            "questions": done.questions,
            "rows": done.rows,
            "made_calls": progress.made_calls,
            "reused_calls": progress.reused_calls,
            "spent_usd": usd(progress.spent_nano_usd) if progress.cost_known else None,
            "unused_calls": done.unused_calls,
            "failures": [{"question": name, "error": said} for name, said in done.failures],
            "refused": [
                {"name": one.role, "questions": one.questions, "first": one.first, "error": one.error}
                for one in done.refused
            ],
            "stopped": None if done.stopped is None else str(done.stopped),
        }


def collect(
    questions: str | Path | Sequence[AskedQuestion],
    output: str | Path,
    *,
    config: str | Path | CascadeConfig = "cascade.yaml",
    resume: bool = False,
    concurrency: int = 8,
    max_cost_usd: float | None = None,
    walks: Sequence[str] | None = None,
    matcher: str | None = None,
    dataset: str | None = None,
    limit: int | None = None,
    show: Callable[[Progress], None] = lambda _: None,
    tell: Tell = warn,
) -> CollectionResult:
    """Run every step of every question and log it, so that any policy can be evaluated exactly on the log.

    Every answer is on the disk before it is used. If questions fail, or a cap ends the run early, you still get a
    result, and its `error` says what happened.

    Args:
        questions: a JSONL, CSV or JSON file of questions, or: demo-requests.
        output: the log: .jsonl, .jsonl.gz or .parquet.
        config: the configuration.
        resume: continue an earlier run; nothing is paid twice.
        concurrency: how many questions run at once.
        max_cost_usd: stop before the log costs more than this, in USD.
        walks: the names of the baselines to log too; ("all",) for all, () for none. By default the guide alone.
        matcher: how answers are judged: exact, choice, number, … By default, the form of the questions decides.
        dataset: the name of the questions in the log.
        limit: ask only the first N questions.
        show: is called with the progress.
        tell: is called with a sentence about the questions that were left out.

    Raises:
        UsageError: the questions or the log cannot be read or written, or a name does not exist.
        ConfigError: the configuration is wrong.
    """
    cap, judge = nano_of("--max-cost", max_cost_usd), None if matcher is None else get_matcher(matcher)
    settings = config if isinstance(config, CascadeConfig) else load(Path(config))
    named = isinstance(questions, (str, Path))
    if isinstance(questions, (str, Path)):
        odd = Dropped()
        asked = read_questions(Path(questions), odd)
        if odd.describe():  # before anything is paid: a misspelt field leaves a question without its answer
            tell(odd.describe())
    else:
        asked = list(questions)
    done = collecting(
        settings,
        asked[:limit],
        Path(output),
        baselines=recorded_baselines(settings, _wanted(walks)),
        matcher=judge,
        dataset=dataset or (Path(str(questions)).stem if named else "questions"),
        resume=resume,
        concurrency=concurrency,
        max_cost_nano_usd=cap,
        tell=show,
    )
    return CollectionResult(done, Path(output))


def _wanted(walks: Sequence[str] | None) -> list[str]:
    if walks is None:
        return [GUIDE_ONLY]
    return [] if list(walks) == ["none"] else list(BASELINES) if list(walks) == ["all"] else list(walks)


def money_said(progress: Progress) -> str:
    """Return the money spent so far, the number of failures, and the time left."""
    eta = "" if progress.eta_s is None or progress.done == progress.total else f", {_duration(progress.eta_s)} to go"
    failed = f", {progress.failed} failed" if progress.failed else ""
    known = "" if progress.cost_known else ", as far as known"
    return f"{dollars(usd(progress.spent_nano_usd))} spent{known}{eta}{failed}"


def _duration(seconds: float) -> str:
    """Return a duration in words.

    >>> _duration(59), _duration(150), _duration(9_000)
    ('59 s', '2 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.1f} h"


def _line(said: str) -> Text:
    """Return a line that does not wrap, so that a path in it can be copied."""
    return Text(plain_text(said), no_wrap=True, overflow="ignore")


def _steps(output: Path) -> Iterator[RenderableType]:
    try:
        reads = reads_of(read_rows(output))
    except UsageError:  # the log is written all the same
        yield "The log does not say which answers are right, for any question."
        return
    yield from map(rounds_table, reads)
