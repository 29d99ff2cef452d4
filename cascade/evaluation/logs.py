"""Opening a log: our own form, a known foreign one, a store, the demo's (as a ladder too), or a simulated world."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import resources
from typing import Any

from cascade.checks import did_you_mean
from cascade.episodes.importers import read_log
from cascade.episodes.ladders import as_ladder
from cascade.episodes.lines import Dropped
from cascade.episodes.matching import get_matcher
from cascade.episodes.matching.judging import judge_rows
from cascade.episodes.schema import COLUMNS
from cascade.episodes.table import EpisodeTable
from cascade.episodes.tabulate import tables_from_rows
from cascade.errors import UsageError
from cascade.evaluation.breakeven import BreakEven, break_evens

DEMO = "demo"
DEMO_LADDER = "demo-ladder"
"""The demo log read as a ladder: the base outright, then the guide outright (`episodes.ladders`)."""
SIMULATED = "simulated:"
SIMULATED_QUESTIONS = 1_400
"""As many as the source's protocol uses: 1,000 to train on, 200 to calibrate, 200 to test."""


PARTS_OF_EPISODES = frozenset(COLUMNS) - {
    "episode_id",
    "dataset",
    "split",
    "group",
    "question",
    "context",
    "gold",
    "schema_version",
}
"""Columns whose values differ between the rows of one episode."""


@dataclass(frozen=True, slots=True)
class Log:
    """A log that was read: one table for each data set, and the rows again, as logged, where a figure needs them."""

    tables: tuple[EpisodeTable, ...]
    rows: Callable[[], Iterable[Mapping[str, Any]]]

    def break_evens(self) -> dict[str, BreakEven]:
        """Return the break-even of judging in each data set that has the numbers for it; reads the log once."""
        return break_evens(self.rows())


def open_log(
    given: str, where: Mapping[str, str] | None = None, matcher: str | None = None, dropped: Dropped | None = None
) -> Log:
    """Read a log.

    Args:
        given: a file, a store's URL, "demo", "demo-ladder", or "simulated:" and a world's name, as in
            "simulated:mmlu/llama-2-7b".
        where: only rows that have these values in these columns are read.
        matcher: judges every answer anew that has gold answers beside it; a name, as `matching.get_matcher` takes it.
        dropped: told of everything that is left out.

    Raises:
        UsageError: there is no such log, column or matcher, or no episode is left.

    >>> open_log("simulated:mmlu/llama-2-7b,50").tables[0].n
    50
    """
    cutting = sorted(set(where or ()) & PARTS_OF_EPISODES)
    if cutting:
        raise UsageError(
            f"Choosing by {', '.join(cutting)} would cut episodes apart, and the rest would say nothing of any policy. "
            "Choose whole ones, by dataset, split, group, question or episode_id."
        )
    left_out = Dropped() if dropped is None else dropped
    if given.startswith(SIMULATED):
        if where or matcher is not None:
            raise UsageError("A simulated world has no rows to choose by their columns or to judge with a matcher.")
        return _simulated(given.removeprefix(SIMULATED))

    def rows(dropped: Dropped | None = None) -> Iterator[Mapping[str, Any]]:
        with ExitStack() as stack:
            path = given
            if given in {DEMO, DEMO_LADDER}:
                shipped = resources.files("cascade.data").joinpath("demo_log.parquet")
                path = str(stack.enter_context(resources.as_file(shipped)))
            read = read_log(path, dropped, where)
            yield from as_ladder(read) if given == DEMO_LADDER else read

    read = rows(left_out)
    judged = read if matcher is None else judge_rows(read, get_matcher(matcher), overwrite=True)
    return Log(tuple(tables_from_rows(judged, left_out)), rows)


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
