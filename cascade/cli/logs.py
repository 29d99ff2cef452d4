"""How every command that reads a log opens it, and says what was left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from cascade.cli.output import notes
from cascade.episodes.lines import Dropped
from cascade.errors import UsageError
from cascade.evaluation import logs
from cascade.evaluation.logs import Log


def open_log(given: str, where: Iterable[str] = (), matcher: str | None = None) -> Log:
    """Read a log and say on stderr what was left out of it. Raises as `evaluation.logs.open_log` does."""
    dropped = Dropped()
    log = logs.open_log(given, parse_where(where), matcher, dropped)
    if dropped.says():
        notes().print(dropped.says(), style="yellow", soft_wrap=True, markup=False)
    return log


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
