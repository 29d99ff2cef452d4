"""What a certified regret costs where a log has no log-probs: with free features alone, and with each signal it holds.

    python benchmarks/without_logprobs.py FOLDER --record FILE     20 splits, regret 5 %, confidence 90 %: hours
    python benchmarks/without_logprobs.py FOLDER --only mmlu --splits 5

Of each log that `benchmarks/table.py` uses, all signals are removed but those that cost nothing and that every provider
gives: the tokens and the characters of an answer, its tool calls, arguments and faults, and whether answers agree.

* coin: a random choice, tested exactly with all of δ: what it costs without any signal
* free: `fit` on free features
* its signal: `fit` on the pair as it was logged, with log-probs, a self-check or a gate
* second model: `fit` on free features, with the model before the last beside the base, whose agreement is the signal

All are shares of the reference's cost, on requests that the fit has not seen.
"""

from __future__ import annotations

import argparse
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from logs import WORTH, Cell, cells
from table import OrReference, Seeded

from cascade.conformal.promise import Promise
from cascade.policies.policy import TIE, Random, known_score
from cascade.policies.signals import OF_MESSAGES
from cascade.studies.methods import Method, one_test
from cascade.studies.study import study
from cascade.table import AGREEMENT, Log

CONFIDENCE, SPLITS = 0.9, 20
FREE = {TIE, AGREEMENT, *OF_MESSAGES}
COIN, FIT, SIGNAL, SECOND = "coin", "free", "its signal", "second model"
COLUMNS = (COIN, FIT, SIGNAL, SECOND)


def free(log: Log) -> Log:
    """Return a log as a provider without log-probs gives it, and without verdicts."""
    signals = {name: values for name, values in log.signals.items() if name in FREE}
    return replace(log, signals=signals, confidence=np.full(log.confidence.shape, np.nan))


def logs(log: Log) -> Iterator[tuple[str, Log]]:
    """Yield the log of each column; of a ladder those of its first and last model, and of a third beside."""
    last = log.width - 1
    pair = log if last == 1 else log.only((0, last))
    yield FIT, free(pair)
    score = known_score(pair)
    if last > 1:
        yield SECOND, free(log.only((0, last - 1, last)))
    elif score is not None and score.signal != TIE:
        yield SIGNAL, pair


def run(cell: Cell, risk: float, splits: int) -> tuple[str, str, str | None, dict[str, list[float]], float]:
    """Return a log's family and name, the score that it had, the cost of each column in each split, and the loss."""
    promise, costs, lost = Promise("regret", risk, CONFIDENCE), dict[str, list[float]](), 0.0
    for column, log in logs(cell.log):
        methods: list[Method] = [Seeded(FIT)]
        if column == FIT:
            methods.append(OrReference(one_test(COIN, Random())))
        done = study(log, promise, methods, splits=splits, seed=zlib.crc32(cell.log.name.encode()) % 1000)
        costs[column] = list(done.row(FIT).curve)
        if column == FIT:
            costs[COIN], lost = list(done.row(COIN).curve), done.row(FIT).risk
    score = known_score(cell.log)
    return cell.family, cell.log.name, None if score is None else score.name, costs, lost


def _mean(costs: Mapping[str, Sequence[float]], column: str) -> str:
    return f"{np.mean(costs[column]):.3f}" if column in costs else "–"


def table(done: Sequence[tuple[str, str, str | None, dict[str, list[float]], float]]) -> Iterator[str]:
    """Yield a line a log, then the geometric means of each family over the logs that have a column and the free one."""
    yield f"| log | had | {' | '.join(COLUMNS)} | free − coin | lost, free |"
    yield f"|{'---|' * (len(COLUMNS) + 4)}"
    for _family, name, score, costs, lost in sorted(done, key=lambda each: each[:2]):
        gap = np.array(costs[FIT]) - np.array(costs[COIN])
        error = f" ± {gap.std(ddof=1) / np.sqrt(gap.size):.3f}" if gap.size > 1 else ""
        means = " | ".join(_mean(costs, column) for column in COLUMNS)
        yield f"| {name} | {score or '–'} | {means} | {gap.mean():+.3f}{error} | {lost:.3f} |"
    yield ""
    for family in sorted({each[0] for each in done}):
        parts = []
        for column in COLUMNS[1:]:
            some = [each[3] for each in done if each[0] == family and column in each[3]]
            if some:
                logs_of = [[np.log(np.mean(costs[at])) for costs in some] for at in (COIN, FIT, column)]
                coin, without, its = np.exp(np.mean(logs_of, axis=1))
                parts.append(f"{column} {its:.3f} (coin {coin:.3f}, free {without:.3f}; {len(some)} logs)")
        yield f"{family}: {'; '.join(parts)}"


def main() -> None:
    """Run what the record lacks, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--splits", type=int, default=SPLITS)
    parser.add_argument("--risk", type=float, default=0.05)
    parser.add_argument("--only", default="", help="logs whose name has this")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--record", type=Path)
    given = parser.parse_args()
    promise = Promise("regret", given.risk, CONFIDENCE)
    lines = given.record.read_text("utf-8").splitlines() if given.record and given.record.exists() else []
    done = [tuple(json.loads(line)) for line in lines]
    wanted = [cell for cell in cells(given.folder) if given.only in cell.log.name and cell.least(promise) <= WORTH]
    left = [cell for cell in wanted if cell.log.name not in {each[1] for each in done}]
    with ProcessPoolExecutor(given.jobs) as pool:
        work = partial(run, risk=given.risk, splits=given.splits)
        for future in as_completed([pool.submit(work, cell) for cell in sorted(left, key=lambda cell: cell.log.n)]):
            done.append(future.result())
            if given.record is not None:
                with given.record.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(done[-1]) + "\n")
    print("\n".join(table(done)))


if __name__ == "__main__":
    main()
