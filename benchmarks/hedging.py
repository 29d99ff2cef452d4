"""What it brings to begin the reference's call early (a hedge), in USD and seconds, beside simple ways.

    python benchmarks/hedging.py FOLDER                     every log with latencies, three prices of a second, 5 splits
    python benchmarks/hedging.py FOLDER --only "calls/" --splits 3
    python benchmarks/hedging.py FOLDER --money             the policy is fitted on money alone, and only then hedged

FOLDER holds the logs of `simple_ways.py`, and in `requests/` those of `agreement.py`. A split draws seven of ten
groups. On these a policy is fitted as `cascade fit --guarantee regret --alpha 0.05 --delta 0.1 --seconds-price PRICE`
does, and its hedge on its walks. The other groups are the test. All ways but the last walk with this policy:

* one after the other: no call is begun early.
* hedged: the reference's call is begun early where the hedge says so.
* always early: it is begun with the first call of every question.
* reference alone: only the reference is asked.

A call that is begun and not used counts with its whole cost. "Total" is USD and priced seconds together, as a share of
that of "one after the other". Splits of which the certified policy is the reference alone have nothing to hedge; they
count with a total of 1 for the first three ways.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from chat_pairs import runs
from fit_regret import halves
from purchases import CALLS
from simple.cells import unusable

from cascade.conformal.arrays import Ints
from cascade.episodes.seconds import Taken, clocked, seconds_of, with_seconds
from cascade.episodes.table import EpisodeTable
from cascade.episodes.tabulate import tables_from_rows
from cascade.errors import NotCertifiedError
from cascade.evaluation.logs import open_log
from cascade.guarantees.base import Guarantee
from cascade.training.fitting import fit_policy
from cascade.training.hedging import HeldOut, Walks, Way, decided, figures, fit_hedge, walks_of

ALPHA, DELTA, SPLITS = 0.05, 0.1, 5
PRICES = (0.0001, 0.001, 0.01)
"""USD a second: 0.36, 3.60 and 36 USD an hour."""
LOGS = (
    "zell_gsm8k/gpt-4o-mini>gpt-4o",
    "zell_mmlu/gpt-4o-mini>gpt-4o",
    "zell_truthfulqa/gpt-4o-mini>gpt-4o",
    "zell_gsm8k/llama-1b,3b,8b,70b>405b",
    "zell_mmlu/llama-1b,3b,8b,70b>405b",
)


class Timed(NamedTuple):
    """A log with the seconds of its steps."""

    table: EpisodeTable
    taken: Taken


def logs(folder: Path, only: Sequence[str]) -> Iterator[Timed]:
    """Yield the logs whose calls say how long they took."""
    for name in LOGS:
        if _wanted(name, only):
            log = open_log(str(folder / f"episodes_{name.partition('/')[0]}.parquet"))
            (found,) = [one for one in log.tables if one.dataset == name]
            if unusable(found) is None:
                yield Timed(found, seconds_of(log.rows()))
    for pair in CALLS[:2]:
        if _wanted(pair.name, only):
            rows = runs(folder / "requests", pair)
            (found,) = tables_from_rows({**row, "dataset": pair.name} for row in rows)
            yield Timed(found, seconds_of(rows))


def _wanted(name: str, only: Sequence[str]) -> bool:
    return not only or any(one in name for one in only)


def split(log: Timed, price: float, seed: int, *, money: bool) -> HeldOut | None:
    """Fit on a split's questions; return what each way takes on the others, None where there is nothing to hedge."""
    given, test = halves(log.table.groups, seed)
    part = log.table.take(given)
    priced = part if money else with_seconds(part, log.taken, price)
    try:
        found = fit_policy([priced], Guarantee("regret", ALPHA, DELTA), seed=seed)
    except NotCertifiedError:
        return None
    segments = {one.name: one.kappa for one in found.artifact.certificates}

    def walks(rows: Ints) -> Walks | None:
        part = log.table.take(rows)
        return walks_of(part, clocked(part, log.taken), found.policy, segments)

    fit, held = walks(given), walks(test)
    if fit is None or held is None:
        return None
    return figures(held, decided(fit_hedge(fit, price), held))


def rows_of(log: Timed, price: float, splits: int, *, money: bool) -> list[str]:
    """Return a row of the table: the means over splits."""
    found = [one for seed in range(splits) if (one := split(log, price, seed, money=money)) is not None]
    name = [log.table.dataset, f"{price:g}", f"{len(found)} of {splits}"]
    if not found:
        return [*name, *["-"] * 7]

    def mean(which: str) -> Way:
        return Way(*np.mean([getattr(one, which) for one in found], axis=0).tolist())

    def total(which: str) -> str:
        shares = [getattr(one, which).priced(price) / one.sequential.priced(price) for one in found]
        return f"{np.mean(shares):.3f}"

    def shown(way: Way) -> str:
        return f"{way.cost_usd * 1_000:.3f} · {way.seconds:.2f} · {way.p95_s:.2f}"

    ways = [shown(mean(one)) for one in ("sequential", "hedged", "always", "reference")]
    begun = f"{np.mean([one.begun for one in found]):.2f} ({np.mean([one.unused for one in found]):.2f})"
    return [*name, *ways, begun, *[total(one) for one in ("hedged", "always", "reference")]]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", default=())
    parser.add_argument("--money", action="store_true")
    parser.add_argument("--splits", type=int, default=SPLITS)
    given = parser.parse_args()
    names = ["log", "USD a second", "splits", "one after the other", "hedged", "always early", "reference alone"]
    names += ["begun (unused)", "total: hedged", "always early", "reference alone"]
    print("Each way: USD per 1,000 questions · mean seconds · 95th percentile of seconds", flush=True)
    print("| " + " | ".join(names) + " |\n|" + "---|" * len(names), flush=True)
    for log in logs(given.folder, given.only):
        for price in PRICES:
            print("| " + " | ".join(rows_of(log, price, given.splits, money=given.money)) + " |", flush=True)


if __name__ == "__main__":
    main()
