"""Write what `cascade fit` of commit 9e9ecfed makes of the kept logs, a line for each fit, in `fits.jsonl`.

    ../old-venv/bin/python tests/record/fits.py [--splits 20]      as in `make.py`; a stopped run goes on
    python tests/record/fits.py --now now.jsonl [--splits 20]      the same of the code that is here
    python tests/record/fits.py --compare now.jsonl                both beside each other

A split gives seven of ten groups to the fit and the others to the test; "whole" fits on the whole log. The promise is
regret at 5 % and 2 %, delta 0.1, or agreement where the log has no labels. A cost is a share of the reference's, "above"
whether the regret of the test questions is above alpha (given a correct method, this may happen by chance more often
than in a share of delta). What is learned depends on a machine's arithmetic in the last bits, so no test compares these
lines; they are what a new way to fit is measured against.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[0] = str(HERE.parent)  # before numpy, which imports `numbers`

import numpy as np  # noqa: E402

from cascade.calibration.scores import reference_cost  # noqa: E402
from cascade.conformal.arrays import Ints  # noqa: E402
from cascade.episodes.table import EpisodeTable  # noqa: E402
from cascade.errors import CascadeError, NotCertifiedError  # noqa: E402
from cascade.evaluation.evaluate import play_policy  # noqa: E402
from cascade.guarantees.base import Guarantee  # noqa: E402
from cascade.guarantees.questions import reference_right  # noqa: E402
from cascade.training.fitting import fit_policy  # noqa: E402
from record.logs import PUBLISHED, SHIPPED, rungs, tables  # noqa: E402

ALPHAS, DELTA, FIT_SHARE = (0.05, 0.02), 0.1, 0.7
WHOLE = "whole"


def logs() -> Iterator[EpisodeTable]:
    """Yield every log whose costs and whose reference are known."""
    for source in (*SHIPPED, *PUBLISHED):
        if source.file is not None and not source.place.exists():
            continue
        for table in tables(source):
            for each in (table, *rungs(table)):
                if each.cost_known and reference_cost(each):
                    yield each


def halves(groups: tuple[str, ...], seed: int) -> tuple[Ints, Ints]:
    """Return the rows to fit to and those to test on: whole groups."""
    number = {name: place for place, name in enumerate(sorted(set(groups)))}
    member = np.array([number[name] for name in groups])
    to_fit = np.random.default_rng([23, seed]).permutation(len(number)) < round(FIT_SHARE * len(number))
    return np.flatnonzero(to_fit[member]), np.flatnonzero(~to_fit[member])


def fitted(table: EpisodeTable, alpha: float, split: int | str) -> dict[str, Any]:
    """Fit, certify and test once."""
    to_fit, to_test = (np.arange(table.n),) * 2 if split == WHOLE else halves(table.groups, int(split))
    asked = Guarantee("regret" if table.truth is None else "agreement", alpha, DELTA)
    test = table.take(to_test)
    try:
        found = fit_policy([table.take(to_fit)], asked, seed=0 if split == WHOLE else int(split))
    except NotCertifiedError as error:
        return {"policy": None, "needed": error.needed_n, "cost": 1.0}
    (held,), done = found.artifact.certificates, found.calibrated.realised
    played = play_policy(test, found.artifact.calibrated(found.policy))
    spent = reference_cost(test) or math.nan
    regret = float(np.mean((1 - played.right) * reference_right(test)))
    kept = found.calibrated.reference_cost_nano_usd
    return {
        "policy": found.choice.chosen.name,
        "n": held.n,
        "certified": None if done.cost_nano_usd is None or not kept else round(done.cost_nano_usd / kept, 5),
        "cost": round(float(played.cost.mean()) / spent, 5),
        "regret": round(regret, 5),
        "above": regret > alpha + 1e-12,
        "reference": found.refused is not None,
    }


def write(path: Path, splits: int) -> None:
    """Fit what the file lacks: first every log whole, then on one split, then on the others."""
    done = {tuple(json.loads(line)[:3]) for line in path.read_text("utf-8").splitlines()} if path.exists() else set()
    every = list(logs())
    for split in (WHOLE, *range(splits)):
        for table in every:
            for alpha in ALPHAS:
                if (table.dataset, alpha, split) in done:
                    continue
                try:
                    told = fitted(table, alpha, split)
                except CascadeError as error:
                    told = {"failed": type(error).__name__}
                with path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([table.dataset, alpha, split, told], separators=(",", ":")) + "\n")


def compare(path: Path) -> Iterator[str]:
    """Yield the mean cost of each log in the record and in another file, over the splits that both have."""
    held: dict[Path, dict[tuple[Any, ...], dict[str, Any]]] = {
        each: {tuple(key): told for *key, told in map(json.loads, each.read_text("utf-8").splitlines())}
        for each in (HERE / "fits.jsonl", path)
    }
    before, now = held.values()
    costs = defaultdict(list)
    for key in before.keys() & now.keys():
        if key[2] != WHOLE and "cost" in before[key] and "cost" in now[key]:
            costs[key[:2]].append((before[key]["cost"], now[key]["cost"]))
    for (name, alpha), pairs in sorted(costs.items()):
        first, second = np.mean(pairs, axis=0)
        yield f"{name}\t{alpha:g}\t{len(pairs)} splits\t{first:.3f}\t{second:.3f}\t{second - first:+.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=1)
    parser.add_argument("--now", type=Path)
    parser.add_argument("--compare", type=Path)
    given = parser.parse_args()
    if given.compare:
        sys.stdout.writelines(f"{line}\n" for line in compare(given.compare))
        return
    import cascade

    here = Path(cascade.__file__).is_relative_to(HERE.parents[1])
    if here == (given.now is None):
        sys.exit("The record is of the wheel, and --now of the code that is here.")
    write(given.now or HERE / "fits.jsonl", given.splits)


if __name__ == "__main__":
    main()
