"""Make a log of episodes from questions: run all T steps of each, so that any policy can be evaluated exactly.

Every model's answer is written to a journal before it is used (`episodes.journal`), and a recorded call is not made
again, so a killed run can be resumed. The log is written at the end from the journal, completely or not at all.
"""

from __future__ import annotations

import glob
import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cascade.collection.adding import LoggedCalls
from cascade.collection.collector import (
    MAX_FAILURES_IN_A_ROW,
    Collected,
    Collector,
    CollectSettings,
    Progress,
    recorded_baselines,
)
from cascade.config import CascadeConfig
from cascade.episodes.journal import Journal, is_call
from cascade.errors import MissingExtraError, UsageError, logger
from cascade.logs.files import WRITTEN_AS, is_there, read_rows, write_rows
from cascade.logs.questions import AskedQuestion
from cascade.orchestrator import Orchestrator
from cascade.providers.base import Provider
from cascade.runtime import left_out

__all__ = ["MAX_FAILURES_IN_A_ROW", "CollectSettings", "Collected", "Progress", "collect", "journal_of"]


def collect(
    config: CascadeConfig,
    questions: Sequence[AskedQuestion],
    output: Path,
    settings: CollectSettings = CollectSettings(),  # noqa: B008 - frozen
    *,
    recorded: LoggedCalls | None = None,
    providers: Mapping[str, Provider] | None = None,
    tell: Callable[[Progress], None] = lambda _: None,
) -> Collected:
    """Log all steps of every question.

    Args:
        config: models, strategy and provider.
        questions: the questions, with the accepted answers.
        output: the log to write; its suffix decides the format. A journal is kept beside it until the log is complete.
        settings: how to collect.
        recorded: a log that has the calls of other nodes; they are not made again, and no baseline is logged.
        providers: ready-made providers by kind, as for `Orchestrator.from_config`.
        tell: called with the progress after every question.

    Raises:
        UsageError: the output exists and `resume` is off, a price is unknown under a cap, or there is no such baseline.
        KeyboardInterrupt: the user stopped the run; all paid calls are recorded.
    """
    check(config, questions, output, settings)
    baselines = () if recorded else recorded_baselines(config, settings.baseline_names)
    for question in questions:
        for warning in left_out(question.question):
            logger.warning("%s: %s", question.id, warning)
    asking = config.unpromised  # every step is logged, so the configured policy does not have to exist yet
    with Orchestrator.from_config(asking, providers=providers) as orchestrator, Journal(journal_of(output)) as journal:
        _recall(output, journal, is_call if recorded is None else recorded.is_new)
        collector = Collector(config, orchestrator, journal, questions, baselines, settings, recorded)
        collector.run(tell)
        finished = collector.log()
        first = next(finished, None)
        written = 0 if first is None else write_rows(output, itertools.chain([first], finished))
        done = collector.outcome(written)
        if not (done.failures or done.stopped or done.unused_calls):
            journal.remove()
        return done


def _recall(output: Path, journal: Journal, accepts: Callable[[Mapping[str, Any]], bool]) -> None:
    """Put the calls of a finished log back into the journal, and remove what a killed run left half-written."""
    for stale in output.parent.glob(f".{glob.escape(output.name[:100])}.*.part"):
        stale.unlink(missing_ok=True)  # this run holds the journal
    if output.exists():
        journal.add(filter(accepts, read_rows(output)))


def journal_of(output: Path) -> Path:
    """Return the path of a log's journal."""
    return output.with_name(f"{output.name}.journal")


def check(config: CascadeConfig, questions: Sequence[AskedQuestion], output: Path, settings: CollectSettings) -> None:
    """Raise UsageError for inputs that would fail later; the error lists all problems."""
    problems = [
        f"{path} exists. Add --resume to continue it, or choose another output."
        for path in (output, journal_of(output))
        if is_there(path) and not settings.resume
    ]
    if output.is_dir():
        problems = [f"{output} is a folder; name a file in it."]
    if not output.name.endswith(WRITTEN_AS):
        problems.append(f"{output} must end in one of {', '.join(WRITTEN_AS)}.")
    if twice := [name for name, times in Counter(question.id for question in questions).items() if times > 1]:
        problems.append(f"Two questions have the id {twice[0]}: an episode is one question.")
    if not output.parent.is_dir():
        problems.append(f"There is no folder {output.parent}.")
    if settings.max_cost_usd is not None:
        unknown = [model for model, price in config.prices().items() if price is None]
        problems += [
            f"{model} has no known price, so no cap can be kept: give it one under models." for model in unknown
        ]
    if problems:
        raise UsageError("\n".join(problems))
    if output.suffix == ".parquet" and find_spec("duckdb") is None:
        raise MissingExtraError("duckdb", f"Writing {output}")
