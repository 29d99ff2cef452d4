"""How every command that reads a log opens it: our own form, a known foreign one, a store, the demo's, or a world."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import resources
from typing import Any

from cascade.checks import did_you_mean
from cascade.cli.output import notes
from cascade.episodes.importers import read_log
from cascade.episodes.lines import Dropped
from cascade.episodes.matching import get_matcher
from cascade.episodes.matching.judging import judge_rows
from cascade.episodes.table import EpisodeTable
from cascade.episodes.tabulate import tables_from_rows
from cascade.errors import UsageError
from cascade.evaluation.breakeven import BreakEven, break_even_of

DEMO = "demo"
SIMULATED = "simulated:"
SIMULATED_QUESTIONS = 1_400
"""As many as the source's protocol uses: 1,000 to train on, 200 to calibrate, 200 to test."""


@dataclass(frozen=True, slots=True)
class Log:
    """A log that was read: one table for each data set, and the rows again, as logged, where a figure needs them."""

    tables: tuple[EpisodeTable, ...]
    rows: Callable[[], Iterable[Mapping[str, Any]]]

    def break_even(self, dataset: str) -> BreakEven | None:
        """Return the break-even of judging in one data set, None where the log has no numbers for it."""
        return break_even_of(row for row in self.rows() if (row["dataset"] or "log") == dataset)


def open_log(given: str, where: Iterable[str] = (), matcher: str | None = None) -> Log:
    """Read a log and say on stderr what was left out of it.

    Args:
        given: a file, a store's URL, "demo", or "simulated:" and a world's name.
        where: COLUMN=VALUE pairs; only rows that have all these values are read.
        matcher: judges every answer anew that has gold answers beside it.

    Raises:
        UsageError: there is no such log, a --where is no COLUMN=VALUE, or no episode is left.
    """
    chosen = parse_where(where)
    if given.startswith(SIMULATED):
        if chosen or matcher is not None:
            raise UsageError("A simulated world has no rows to choose with --where or to judge with --matcher.")
        return _simulated(given.removeprefix(SIMULATED))

    def rows(dropped: Dropped | None = None) -> Iterator[Mapping[str, Any]]:
        with ExitStack() as stack:
            path = given
            if given == DEMO:
                shipped = resources.files("cascade.data").joinpath("demo_log.parquet")
                path = str(stack.enter_context(resources.as_file(shipped)))
            yield from read_log(path, dropped, chosen)

    dropped = Dropped()
    read = rows(dropped)
    judged = read if matcher is None else judge_rows(read, get_matcher(matcher), overwrite=True)
    tables = tables_from_rows(judged, dropped)
    if dropped.says():
        notes().print(dropped.says(), style="yellow", soft_wrap=True, markup=False)
    return Log(tuple(tables), rows)


def parse_where(where: Iterable[str]) -> dict[str, str]:
    """Return COLUMN=VALUE pairs as a mapping.

    >>> parse_where(["split=test"])
    {'split': 'test'}
    """
    pairs = [one.partition("=") for one in where]
    bad = [column for column, equals, _ in pairs if not equals or not column]
    if bad:
        raise UsageError(f"--where takes COLUMN=VALUE, as in --where split=test; not {', '.join(bad)}.")
    counts = Counter(column for column, _, _ in pairs)
    twice = [column for column, times in counts.items() if times > 1]
    if twice:
        raise UsageError(f"--where takes one value a column; {', '.join(twice)} has several, which no row can have.")
    return {column: value for column, _, value in pairs}


def _simulated(given: str) -> Log:
    """Return a simulated world: simulated:hotpotqa/llama-2-7b, or with a number of questions behind a comma."""
    from cascade.evaluation.simulate import simulate
    from cascade.evaluation.worlds import WORLDS

    name, _, count = given.partition(",")
    if count and not (count.isdecimal() and 10 <= int(count) <= 10_000_000):
        raise UsageError(f"{given}: the number of simulated questions is a whole number from 10 to 10,000,000.")
    if name not in WORLDS:
        raise UsageError(f"There is no simulated world {name!r}{did_you_mean(name, WORLDS)}.")
    table = simulate(WORLDS[name], int(count or SIMULATED_QUESTIONS), seed=0)
    return Log((table,), lambda: iter(()))
