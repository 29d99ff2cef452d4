"""Questions become a log of episodes: all T steps of each are run, so that any policy can be judged on it exactly.

Every answer of a model is written down before it is used (`episodes.journal`), and a call on record is not made again:
a run that is killed goes on where it was. The log itself is made at the end, from the record, whole or not at all.
"""

from __future__ import annotations

import glob
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from cascade.checks import fitted_question
from cascade.collection.baselines import RecordedBaseline
from cascade.collection.collector import MAX_FAILURES_IN_A_ROW, Collected, Collector, Progress
from cascade.config import CascadeConfig
from cascade.episodes.files import WRITTEN_AS, is_there, read_rows, write_rows
from cascade.episodes.journal import Journal, is_call
from cascade.episodes.questions import AskedQuestion
from cascade.errors import MissingExtraError, UsageError
from cascade.matching import Matcher
from cascade.orchestrator import Orchestrator
from cascade.policies.fixed import FixedConfig
from cascade.providers.base import Provider

__all__ = ["MAX_FAILURES_IN_A_ROW", "Collected", "Collector", "Progress", "collect", "journal_of", "recall"]

logger = logging.getLogger("cascade")


def collect(
    config: CascadeConfig,
    questions: Sequence[AskedQuestion],
    output: Path,
    *,
    baselines: Sequence[RecordedBaseline] = (),
    matcher: Matcher | None = None,
    dataset: str | None = None,
    resume: bool = False,
    concurrency: int = 8,
    max_cost_nano_usd: int | None = None,
    providers: Mapping[str, Provider] | None = None,
    tell: Callable[[Progress], None] = lambda _: None,
) -> Collected:
    """Log all steps of every question.

    Args:
        config: models, strategy and provider.
        questions: what is asked, with the accepted answers.
        output: the log that is written, as its ending says. Beside it lies a journal until all is done.
        baselines: other ways to answer, logged beside (`baselines.recorded_baselines`).
        matcher: decides which answers are right; by default what a question's form asks for, else "exact".
        dataset: what the questions are called in the log.
        resume: go on with a journal, or a log, that is there; without, an output that is there is an error.
        concurrency: questions at a time.
        max_cost_nano_usd: the most that the log may cost, calls on record included.
        providers: ready-made providers by kind, as for `Orchestrator.from_config`.
        tell: called with the progress after every question.

    Raises:
        UsageError: there is an output and `resume` is off; or a price is not known under a cap.
        KeyboardInterrupt: the user's; what was paid for is on record.
    """
    journal_path = journal_of(output)
    _check(config, output, journal_path, resume=resume, capped=max_cost_nano_usd is not None)
    questions = [_fitted(asked, config.limits.context_chars) for asked in questions]
    # Every step is logged whatever a policy would do, so the configured one need not be there yet.
    asking = config.model_copy(update={"policy": FixedConfig(kind="fixed"), "guarantee": None})
    with Orchestrator.from_config(asking, providers=providers) as orchestrator, Journal(journal_path) as journal:
        for stale in output.parent.glob(f".{glob.escape(output.name[:100])}.*.part"):
            stale.unlink(missing_ok=True)  # of a run that was killed while it wrote the log; the journal is ours now
        if journal.bad_lines:
            logger.warning("%s: lines that are no calls, passed over: %d", journal_path, journal.bad_lines)
        if output.exists():
            recall(output, journal)
        collector = Collector(config, orchestrator, journal, baselines, max_cost_nano_usd)
        collector.run(questions, concurrency=concurrency, tell=tell)
        finished = collector.log(questions, matcher, dataset)
        first = next(finished, None)
        written = 0 if first is None else write_rows(output, itertools.chain([first], finished))
        done = collector.outcome(len(questions), written)
        if not (done.failures or done.stopped or done.unused_calls):
            journal.remove()
        return done


def _fitted(asked: AskedQuestion, context_chars: int | None) -> AskedQuestion:
    """Return a question as the models are to read it; log what they do not read of it."""
    question, said = fitted_question(asked.question, context_chars)
    for warning in said:
        logger.warning("%s: %s", asked.id, warning)
    return replace(asked, question=question)


def journal_of(output: Path) -> Path:
    """Return where a log's calls are on record until it is done."""
    return output.with_name(f"{output.name}.journal")


def _check(config: CascadeConfig, output: Path, journal: Path, *, resume: bool, capped: bool) -> None:
    """Refuse what would fail later, all at once."""
    problems = [
        f"{path} exists. Add --resume to go on with it, or choose another output."
        for path in (output, journal)
        if is_there(path) and not resume
    ]
    if output.is_dir():
        problems = [f"{output} is a folder; name a file in it."]
    if not output.name.endswith(WRITTEN_AS):
        problems.append(f"{output} must end in one of {', '.join(WRITTEN_AS)}.")
    if not output.parent.is_dir():
        problems.append(f"There is no folder {output.parent}.")
    if capped:
        unknown = [model for model, price in config.prices().items() if price is None]
        problems += [
            f"{model} has no known price, so no cap can be kept: give it one under models." for model in unknown
        ]
    if problems:
        raise UsageError("\n".join(problems))
    if output.suffix == ".parquet" and find_spec("pyarrow") is None:
        raise MissingExtraError("pyarrow", f"Writing {output}")


def recall(log: Path, journal: Journal) -> int:
    """Put a finished log's calls back on record, so that a larger set of questions pays only for what is new."""
    known = len(journal)
    journal.add(filter(is_call, read_rows(log)))
    return len(journal) - known
