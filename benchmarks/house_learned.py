"""Whether the learned rule pays beside tests of one score: certified cost / the reference's, and the regret after it.

On each of 20 splits by group, 70 % of a log certifies a regret of 5 or 2 % with a confidence of 90 %, and the rest is
the test. The ways: one threshold on the score that the log's signals name, at the whole level; the menu without what
learns; the learned rule alone; the menu with it. The first logs are those that the rule was developed on.

    python benchmarks/house_learned.py ../shared/data --splits 20
"""

from __future__ import annotations

import argparse
import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from cascade.conformal.promise import Promise
from cascade.evaluation.logs import open_log
from cascade.house.bridge import log_of
from cascade.house.fit import FitSettings
from cascade.house.simple import named_policy
from cascade.house.study import study
from cascade.house.ways import Fitted, OneTest, Played, Way
from cascade.table import Log

FILES = {
    "episodes_zell_mmlu.parquet": "developed on",
    "episodes_mmlu_pro.parquet": "developed on",
    "episodes_single_round.parquet": "pairs",
    "episodes_zell_truthfulqa.parquet": "pairs",
    "episodes_zell_gsm8k.parquet": "pairs",
    "episodes_firstpass_mbpp.parquet": "pairs",
    "episodes_uala.parquet": "pairs",
    "requests/bfcl_v1.parquet": "tool calls",
    "requests/bfcl_v4_live.parquet": "tool calls",
}
MODELS = {"requests/bfcl_v1.parquet": ("gpt-4o-mini-2024-07-18-FC", "gpt-4o-2024-08-06-FC")}
THRESHOLD, MENU, LEARNED, BOTH = "threshold", "menu", "learned", "menu with learned"


class Seeded(Fitted):
    """A fit whose draws differ from split to split: with one seed the same groups learn in all of them."""

    def prepare(self, log: Log, promise: Promise, seed: int) -> Callable[[Log], Played]:
        """Fit with the seed of the split."""
        return Fitted(replace(self.settings or FitSettings(), seed=seed)).prepare(log, promise, seed)


def logs(folder: Path) -> Iterator[tuple[str, Log]]:
    """Yield the logs whose last node is the reference and whose costs are known, with their groups."""
    for name, group in FILES.items():
        for table in open_log(str(folder / name), models=MODELS.get(name, ())).tables:
            log = replace(log_of(table), name=table.dataset)
            if log.reference is None or not log.reference.is_last or not log.priced.all() or log.n < 200:
                continue
            developed = "developed on" if log.name.startswith("routellm") else group
            yield "ladders" if log.width > 2 and developed == "pairs" else developed, log


def ways(log: Log) -> list[Way]:
    """Return the ways that are compared; those of one score only where the log has a known one."""
    found: list[Way] = []
    simple = named_policy(log)
    if simple is not None:
        found += [OneTest(THRESHOLD, simple), Seeded(FitSettings(policy="threshold"), MENU)]
    if log.n * 0.7 * 0.3 >= 110:  # the rule is asked for by name: it needs 100 requests to learn from
        found.append(Seeded(FitSettings(policy="learned"), LEARNED))
    return [*found, Seeded(None, BOTH)]


def main() -> None:
    """Print a line for each log, then geometric means of each way / the menu without what learns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--risks", type=float, nargs="+", default=[0.05, 0.02])
    parser.add_argument("--only", default="", help="logs whose name begins so")
    given = parser.parse_args()
    ratios: dict[tuple[str, float, str], list[float]] = {}
    for group, log in logs(given.data):
        if not log.name.startswith(given.only):
            continue
        for risk in given.risks:
            seed = zlib.crc32(log.name.encode()) % 1000
            rows = study(log, Promise("regret", risk, 0.9), ways(log), splits=given.splits, seed=seed).rows
            shares = {row.name: (row.cost_share.mean, row.risk) for row in rows if row.cost_share is not None}
            line = "  ".join(f"{name} {cost:.3f} ({lost:.3f})" for name, (cost, lost) in shares.items())
            print(f"{risk:g}  {group:12}  {log.name[:48]:48} {log.n:6}  {line}", flush=True)
            for name, (cost, _) in shares.items():
                if MENU in shares:
                    ratios.setdefault((group, risk, name), []).append(math.log(cost / shares[MENU][0]))
    for (group, risk, name), values in ratios.items():
        print(f"{risk:g}  {group:12}  {name:22} {math.exp(np.mean(values)):.3f} x the menu on {len(values)} logs")


if __name__ == "__main__":
    main()
