"""Tables 2 to 9 of the CCPO paper on simulated worlds: every row beside the printed one, and what agrees.

    python benchmarks/paper.py                              all tables, 20 splits: 40 minutes of two cores
    python benchmarks/paper.py --quick                      3 splits, shorter training: 4 minutes
    python benchmarks/paper.py --table 2 --splits 5
    python benchmarks/paper.py --record paper.jsonl --minutes 45     what is done is kept; the next call goes on from it
    python benchmarks/paper.py --read paper.jsonl           prints what was kept

The worlds are fitted to marginals of the same tables (`design/paper.md`); the signals tell `worlds.MEDIUM`, which
the tables leave open. Each split draws new questions: 1,000 (HotpotQA) or 560 (MMLU) to train, 200 to calibrate, 200 to
test. λ is read as USD for each answer kept and handed on in mean steps. ± is one standard error over the splits. "the
limit" is OSC trained on 150,000 questions and calibrated on the same 200. Costs at 1 − α are those of 20,000 more
questions at a coverage of exactly 1 − α; in brackets what is covered at the least, where that is more.

Install what it needs, in the clone: pip install -c constraints.txt -e ".[train]"
"""

from __future__ import annotations

import extras  # noqa: F401 - before the packages that it speaks of

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

from fitted.report import head
from published.claims import Rows, claims, column
from published.contest import LIMIT, Figures, Settings, play_limit, play_split, sampled
from published.pages import pages
from published.printed import TABLES

from cascade.training.networks.config import CCPOConfig

SPLITS, QUICK_SPLITS, QUICK_STEPS, QUICK_MANY = 20, 3, 500, 20_000


class Task(NamedTuple):
    """One piece of work: a split of a table, or the limit of a table for several splits."""

    table: int
    splits: tuple[int, ...]
    limit: bool = False

    @property
    def keys(self) -> list[tuple[int, int, bool]]:
        """What it brings, by table, split and whether it is the limit."""
        return [(self.table, split, self.limit) for split in self.splits]


class Done(NamedTuple):
    """What was played of one split of a table: all rows but the limit, or the limit."""

    table: int
    split: int
    rows: Mapping[str, Figures]

    @property
    def key(self) -> tuple[int, int, bool]:
        """Table, split, whether it is the limit."""
        return self.table, self.split, LIMIT in self.rows


def play(task: Task, settings: Settings) -> list[Done]:
    """Do one piece of work."""
    table = TABLES[task.table]
    if task.limit:
        found = play_limit(table, task.splits, settings)
        return [Done(task.table, split, {LIMIT: figures}) for split, figures in found.items()]
    return [Done(task.table, split, play_split(table, split, settings)) for split in task.splits]


def tasks(tables: Sequence[int], splits: int) -> Iterator[Task]:
    """Yield the work, the first splits of all tables first: what is done in part is the same of every table."""
    for table in tables:
        yield Task(table, tuple(range(splits)), limit=True)
    for split in range(splits):
        for table in tables:
            yield Task(table, (split,))


def work(todo: Sequence[Task], settings: Settings, jobs: int, until: float) -> Iterator[Done]:
    """Yield what is done, as it is; nothing is begun after `until`, a time of `time.monotonic`."""
    waiting, running = list(reversed(todo)), set[Future[list[Done]]]()
    with ProcessPoolExecutor(jobs) as pool:
        while running or (waiting and time.monotonic() < until):
            while waiting and len(running) < jobs and time.monotonic() < until:
                running.add(pool.submit(play, waiting.pop(), settings))
            if running:
                first = next(as_completed(running))
                running.remove(first)
                yield from first.result()


# --- what is kept


def kept(path: Path, settings: Settings) -> list[Done]:
    """Return what an earlier call has written.

    Raises:
        SystemExit: it was made with other settings.
    """
    if not path.exists():
        return []
    given, found = read(path)
    if {**given, "head": head()} != setting_document(settings):
        raise SystemExit(f"{path} was made with other settings; name another file or delete it")
    return found


def read(path: Path) -> tuple[dict[str, Any], list[Done]]:
    """Return the settings and the pieces of a file that `--record` wrote."""
    first, *others = path.read_text("utf-8").splitlines()
    return json.loads(first), [_done(json.loads(one)) for one in others]


def _done(given: Mapping[str, Any]) -> Done:
    rows = {name: Figures(*figures) for name, figures in given["rows"].items()}
    return Done(given["table"], given["split"], rows)


def setting_document(settings: Settings) -> dict[str, Any]:
    """Return the settings, the day and the machine, as plain values."""
    config, rollouts = (one.model_dump(mode="json") for one in (settings.config, sampled(settings.config)))
    return {"config": config, "sampled": rollouts, "many": settings.many, "fresh": settings.fresh, "head": head()}


def write(path: Path | None, document: Mapping[str, Any]) -> None:
    """Append a line."""
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(document)}\n")


def rows_of(done: Sequence[Done]) -> Mapping[int, Rows]:
    """Return each table's rows, one figure a split, of the splits that were played in full."""
    there = {one.key: one.rows for one in done}
    found: dict[int, dict[str, list[Figures]]] = {}
    for table, split, limit in sorted(there):
        if not limit and (table, split, True) in there:
            for name, figures in (there[table, split, False] | there[table, split, True]).items():  # type: ignore[operator]
                found.setdefault(table, {}).setdefault(name, []).append(figures)
    return found


# --- what is printed


def document(found: Mapping[int, Rows], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything as plain values. Cents for 200 questions."""
    tables = []
    for number, rows in sorted(found.items()):
        each = {
            name: {
                figure: None if (mean := column(rows, name, figure)) is None else mean._asdict()
                for figure in Figures._fields
            }
            for name in rows
        }
        said = [one._asdict() for one in claims(TABLES[number], rows)]
        tables.append({"table": number, "rows": each, "claims": said})
    return {"settings": settings, "tables": tables}


def note(given: Mapping[str, Any], found: Mapping[int, Rows]) -> list[str]:
    """Return how the figures were made, and whether they are a first look that a full run is to replace."""
    config, usual = given["config"], CCPOConfig().model_dump(mode="json")
    changed = {name: value for name, value in config.items() if value != usual.get(name)}
    how = ", ".join(f"{name} = {value}" for name, value in changed.items()) or "the defaults of `CCPOConfig`"
    made = f"Made by `benchmarks/paper.py`, {given['head']}."
    networks = f"Networks: {how}; {config['steps']:,} updates."
    sizes = f"The limit learned from {given['many']:,} questions; costs at 1 − α are those of {given['fresh']:,}."
    fewest = min(len(figures) for rows in found.values() for figures in rows.values())
    full = fewest >= SPLITS and not changed and len(found) == len(TABLES)
    look = f"**A first look, to be replaced: a full run has {SPLITS} splits of every table and the defaults.**"
    return [*([] if full else [look, ""]), f"{made} {networks} {sizes} At least {fewest} splits of each table."]


def main(argv: Sequence[str] | None = None) -> int:
    """Play, and print."""
    given = _parser().parse_args(argv)
    if given.read is not None:
        settings, done = read(given.read)
    else:
        settings, done = _played(given)
    found = rows_of(done)
    if not found:
        raise SystemExit("no split was played in full; give it more time")
    if given.json:
        print(json.dumps(document(found, settings), indent=1))
    else:
        print("\n".join(pages(found, note(settings, found))))
    return 0


def _played(given: argparse.Namespace) -> tuple[dict[str, Any], list[Done]]:
    steps = given.steps or (QUICK_STEPS if given.quick else None)
    config = CCPOConfig() if steps is None else CCPOConfig(steps=steps)
    settings = Settings(config, QUICK_MANY) if given.quick else Settings(config)
    splits = given.splits or (QUICK_SPLITS if given.quick else SPLITS)
    done = [] if given.record is None else kept(given.record, settings)
    if given.record is not None and not given.record.exists():
        write(given.record, setting_document(settings))
    before = {one.key for one in done}
    todo = [one for one in tasks(given.table or sorted(TABLES), splits) if not before.issuperset(one.keys)]
    began = time.monotonic()
    for number, one in enumerate(work(todo, settings, given.jobs, began + 60 * given.minutes), 1):
        done.append(one)
        write(given.record, {"table": one.table, "split": one.split, "rows": one.rows})
        said = f"{number}: table {one.table}, split {one.split}, {(time.monotonic() - began) / 60:.1f} minutes"
        print(said, file=sys.stderr, flush=True)
    return setting_document(settings), done


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=int, action="append", choices=sorted(TABLES), help="may be given again")
    parser.add_argument("--splits", type=int, help=f"how many; {SPLITS} by default")
    parser.add_argument("--steps", type=int, help="updates of each network")
    parser.add_argument("--quick", action="store_true", help="few splits, shorter training, a limit of 20,000")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin nothing after so many")
    parser.add_argument("--record", type=Path, help="keep what is done in this file, and go on from it")
    parser.add_argument("--read", type=Path, help="play nothing; read what --record kept")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser


if __name__ == "__main__":
    sys.exit(main())
