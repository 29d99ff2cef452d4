"""What deciding before each call saves, beside ladders, routers and second opinions, certified: one table for all logs.

    python benchmarks/purchases.py FOLDER --record FILE                    every log with something to save, 20 splits
    python benchmarks/purchases.py FOLDER --only "calls/" --splits 5 --record FILE
    python benchmarks/purchases.py FOLDER --only "calls/mini>4o" --resplits 1000 --record FILE    is the promise kept?
    python benchmarks/purchases.py --demo                                  the demo log, call by call beside its ladder
    python benchmarks/purchases.py --speed                                 seconds of a fit, milliseconds of a decision

FOLDER holds the logs of `simple_ways.py`, and in `requests/` those of `agreement.py`. Only logs are used on which the
clairvoyant saves 10 % or more of the reference's cost at the promise. A split draws seven of ten groups, which every
way divides as it likes; the other groups are the test. A cost is a share of the reference's cost on the test questions,
1 where nothing is certified. Each split is written to the record as soon as it is done; a stopped run continues there.

* portfolio: `cascade fit LOG --guarantee regret`, as it chooses; purchases: `--policy purchases`.
* ladder: the learned policy that buys in the listed order.
* router + cascade: purchases from the first and the last model alone; it is the call level of base and guide, too:
  keep, or ask outright. rounds: base and guide for each question, as rounds of 0.5.0 pay at least.
* router: a logistic regression on the request alone; half of the groups train, the others certify. opinions: serve
  where the first two models agree, else ask the last; tested as a whole.
* mapie, exact, quantiles, rungs, uncertified: `simple/opponents.py`.

Every way certifies on one question of each group, for questions of one group are no independent evidence.

`--resplits`: fit anew on each split, as the portfolio does, and count the regret over all groups that did not train,
each group by its mean: what the certificate speaks of. It may be above alpha in a share of delta of the splits.

"matched" are mean costs of purchases, fitted at each regret, where the test questions show that regret; of tool calls.

The last lines hold the portfolio against the best certified way of each row, and against the better of mapie and exact
in the geometric mean: over pairs, ladders and tool calls, and over all rows.

Install what it needs, in the clone: pip install -c constraints.txt -e ".[dev]"
"""

from __future__ import annotations

import extras  # noqa: F401 - before the packages that it speaks of

import argparse
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from agreement import read as read_calls
from chat_pairs import BFCL, GPT4O, LARGE, MINI, NEMO, NEMO_ANY, TURBO, Pair
from fit_regret import halves
from fitted.report import head, table
from simple.cells import WORTH, read, saves, with_walks
from simple.opponents import WAYS, Rows, Served, exact, rows_of, serve
from simple_ways import DELTA, SIMPLE, ours_on

from cascade.calibration.samples import one_a_group, only_unknown
from cascade.calibration.scores import sample_of
from cascade.conformal.arrays import StepArrays
from cascade.conformal.binomial import most_losses
from cascade.engine import decide
from cascade.episodes.table import EpisodeTable
from cascade.errors import CascadeError
from cascade.evaluation.evaluate import numbered, play_policy
from cascade.evaluation.logs import open_log
from cascade.guarantees.base import Guarantee
from cascade.guarantees.questions import reference_right
from cascade.policies.base import Observation
from cascade.strategies.base import NOTHING_BOUGHT
from cascade.training.estimators import logistic, probabilities
from cascade.training.fitting import fit_policy
from cascade.training.objective import cost_at_loss, curve_of, prices_of
from cascade.training.purchases import fit_purchases
from cascade.training.stages import FitTarget
from cascade.training.stopping import build
from cascade.types import Candidate, Question, Step

CALLS = (
    Pair("calls/mini>4o", BFCL, (MINI, GPT4O)),
    Pair("calls/mini,nemo>4o", BFCL, (MINI, NEMO, GPT4O)),
    Pair("calls/mini,nemo,3.5>4o", BFCL, (MINI, NEMO, TURBO, GPT4O)),
    Pair("calls/nemo>large", BFCL, (NEMO_ANY, LARGE)),
    Pair("calls/3.5>4o", BFCL, (TURBO, GPT4O)),
)
ALPHAS, REGRETS = (0.02, 0.05), (0.01, 0.02, 0.03, 0.05)
BARS = (0.575, 0.42, 0.30, 0.125)
"""At the regrets, for the tool calls of three cheap models and gpt-4o; and certified at 5 % with one policy."""
CERTIFIED_BAR, NEAR, SIMPLE_BAR = 0.40, 1.02, 0.95
OURS = ("portfolio", "purchases", "ladder", "router + cascade")
CERTIFIED = (*OURS, "router", "opinions", "mapie", "exact", "quantiles", "rungs")


class Job(NamedTuple):
    """One split of one log at one promise."""

    name: str
    alpha: float
    seed: int


Split: TypeAlias = tuple[dict[str, Served], list[float]]
"""What every way brings, and the matched costs of purchases."""
Found: TypeAlias = Mapping[Job, Split]


def logs(folder: Path, only: Sequence[str]) -> Iterator[EpisodeTable]:
    """Yield the logs whose names hold one of some words, each question with the answers of all models."""
    for pair in CALLS:
        if _wanted(pair.name, only) and (folder / "requests" / pair.file).exists():
            found = read_calls(folder / "requests", pair, "regret")
            whole = found.take(found.arrays.steps == found.arrays.horizon)
            yield with_walks(replace(whole, dataset=pair.name))
    if _wanted("demo-offers", only):
        yield with_walks(open_log("offers:demo").tables[0])
    yield from (cell.table for cell in read(folder, only)[0])


def _wanted(name: str, only: Sequence[str]) -> bool:
    return not only or any(word in name for word in only)


def fitted(log: EpisodeTable, test: EpisodeTable, job: Job, method: str) -> Served:
    """Return what a fit serves; the reference alone where none can be made."""
    try:
        return ours_on(test, fit_policy([log], Guarantee("regret", job.alpha, DELTA), method=method, seed=job.seed))
    except CascadeError:
        return Served(1.0, 0.0, certified=False)


def router(log: EpisodeTable, test: EpisodeTable, job: Job) -> Served:
    """Return what asking the first model or the last, by the request alone, brings."""
    if not log.asked:
        return Served(1.0, 0.0, certified=False)
    group = numbered(log.groups)
    half = (np.random.default_rng(job.seed).permutation(int(group.max()) + 1) % 2 == 0)[group]
    train, certify = log.take(half), one_a_group(log.take(~half), seed=job.seed)
    columns = [_asked(one) for one in (train, certify, test)]
    centre, spread = columns[0].mean(axis=0), columns[0].std(axis=0)
    scaled = [(one - centre) / np.where(spread > 0, spread, 1.0) for one in columns]
    learned = logistic(scaled[0], train.arrays.correct[:, 0, 0].astype(np.float64), 10.0)
    held, shown = (
        _routed(part, -probabilities(learned.of(one))) for part, one in zip((certify, test), scaled[1:], strict=True)
    )
    return serve(exact(held, job.alpha, DELTA), shown)


def _asked(log: EpisodeTable) -> np.ndarray:
    return np.nan_to_num(np.stack([log.asked[name] for name in sorted(log.asked)], axis=1))


def _routed(log: EpisodeTable, doubt: np.ndarray) -> Rows:
    """Return the questions as a router pays them: the first model or the last, never both."""
    rows = rows_of(log)
    ends = np.stack([log.arrays.cost[:, 0], log.arrays.cost[:, -1]], axis=1)
    return Rows(doubt[:, None], rows.loss[:, [0, -1]], ends, rows.reference, rows.group)


def opinions(log: EpisodeTable, test: EpisodeTable, job: Job) -> Served:
    """Return what serving where the first two models agree brings; nothing with fewer than three models."""
    if log.arrays.horizon < 3:
        return Served(1.0, 0.0, certified=False)
    lost, same = (_agreed(one) for one in (log, test))
    most = most_losses(log.n, job.alpha, DELTA)
    if most is None or int(np.count_nonzero(lost[0] & lost[1])) > most:
        return Served(1.0, 0.0, certified=False)
    cost = test.arrays.cost[:, :2].sum() + test.arrays.cost[~same[0], -1].sum()
    return Served(float(cost / test.arrays.cost[:, -1].sum()), float((same[0] & same[1]).mean()), certified=True)


def _agreed(log: EpisodeTable) -> tuple[np.ndarray, np.ndarray]:
    """Return where the first two answers are one, and where the first is lost beside the last."""
    first = log.arrays.answer[:, :, 0]
    return (first[:, 0] == first[:, 1]) & (first[:, 0] >= 0), rows_of(log).loss[:, 0]


def split(log: EpisodeTable, job: Job) -> Split:
    """Return what every way brings on a split, and the matched costs of purchases."""
    given, test = (log.take(rows) for rows in halves(log.groups, job.seed))
    alone = one_a_group(given, seed=job.seed)
    rows, shown = rows_of(alone), rows_of(test)
    ends = (1, log.arrays.horizon)
    ways = {name: serve(way(rows, job.alpha, DELTA), shown) for name, way in WAYS.items()}
    ways["portfolio"] = fitted(given, test, job, "auto")
    ways["purchases"] = fitted(given, test, job, "purchases")
    ways["ladder"] = fitted(given, test, job, "net_benefit")
    first, last = (with_walks(one.only(ends)) for one in (given, test))
    ways["router + cascade"] = ways["purchases"] if ends == (1, 2) else fitted(first, last, job, "purchases")
    ways["router"], ways["opinions"] = router(given, test, job), opinions(alone, test, job)
    both = float((test.arrays.cost[:, 0] + test.arrays.cost[:, -1]).sum() / test.arrays.cost[:, -1].sum())
    ways["rounds"] = Served(both, 0.0, certified=True)
    is_matched = job.alpha == ALPHAS[-1] and kind_of(log) == "tool calls"
    return ways, matched(given, test, job.seed) if is_matched else []


def matched(given: EpisodeTable, test: EpisodeTable, seed: int) -> list[float]:
    """Return the cost where the test questions show each regret; of the reference where no threshold does."""
    paid, found = float(test.arrays.cost[:, -1].mean()), []
    for regret in REGRETS:
        policy = fit_purchases(build(given, FitTarget("regret", regret), seed=seed), trees=only_unknown(given))
        walk = curve_of(sample_of(test, policy), Guarantee("regret", regret, DELTA), prices_of(test))
        found.append(min(1.0, cost_at_loss(walk, regret) / paid))
    return found


def broken(log: EpisodeTable, job: Job) -> tuple[bool, float]:
    """Fit on a split; return whether a saving is certified, and the regret of the groups that did not train."""
    given = log.take(halves(log.groups, job.seed)[0])
    found = fit_policy([given], Guarantee("regret", job.alpha, DELTA), seed=job.seed)
    trained = {group for group, name in zip(log.groups, log.ids, strict=True) if name in {*found.training.ids}}
    others = log.take(np.flatnonzero([group not in trained for group in log.groups]))
    played = play_policy(others, found.artifact.calibrated(found.policy))
    lost = (1 - played.right) * reference_right(others)
    group = numbered(others.groups)
    each = np.bincount(group, lost) / np.bincount(group)
    return found.policy.method != "reference", float(each.mean())


def resplits(log: EpisodeTable, many: int, record: Path | None) -> Iterator[str]:
    """Yield at each promise how often it was broken, over many splits."""
    for alpha in ALPHAS:
        held = {} if record is None or not record.exists() else dict(_held(record))
        for seed in range(many):
            job = Job(log.dataset, alpha, seed)
            if job not in held:
                held[job] = broken(log, job)
                if record is not None:
                    with record.open("a", encoding="utf-8") as file:
                        file.write(json.dumps([*job, *held[job]]) + "\n")
        found = [held[Job(log.dataset, alpha, seed)] for seed in range(many)]
        above = sum(regret > alpha + 1e-12 for _, regret in found) / many
        bar = DELTA + 3 * (DELTA * (1 - DELTA) / many) ** 0.5
        saving = sum(one for one, _ in found) / many
        said = f"{log.dataset}, α {alpha:g}: {above:.1%} of {many} above, at most {bar:.1%}"
        yield f"{'ok    ' if above <= bar else 'BROKEN'} {said}; a saving on {saving:.0%}"


def _held(record: Path) -> Iterator[tuple[Job, tuple[bool, float]]]:
    for line in record.read_text("utf-8").splitlines():
        name, alpha, seed, saving, regret = json.loads(line)
        yield Job(name, alpha, seed), (saving, regret)


# --- all splits ---


def run(log: EpisodeTable, jobs: list[Job], record: Path | None) -> Found:
    """Do what the record lacks, and write each split as it is done."""
    found = recorded(record)
    for job in jobs:
        if job in found:
            continue
        started = time.perf_counter()
        found[job] = split(log, job)
        if record is not None:
            with record.open("a", encoding="utf-8") as file:
                file.write(json.dumps([*job, *found[job], round(time.perf_counter() - started, 1)]) + "\n")
    return {job: found[job] for job in jobs}


def recorded(record: Path | None) -> dict[Job, Split]:
    """Return the splits of a record."""
    found = {}
    for line in record.read_text("utf-8").splitlines() if record is not None and record.exists() else ():
        name, alpha, seed, ways, costs, _ = json.loads(line)
        found[Job(name, alpha, seed)] = {way: Served(*one) for way, one in ways.items()}, costs
    return found


def lines(
    name: str, done: Mapping[Job, tuple[dict[str, Served], list[float]]]
) -> Iterator[tuple[list[str], list[str]]]:
    """Yield a log's row at each promise, and which bars it does not meet."""
    for alpha in ALPHAS:
        some = [ways for job, (ways, _) in done.items() if job.alpha == alpha]
        if not some:
            continue
        mean = {way: float(np.mean([one[way].ratio for one in some])) for way in some[0]}
        best = min(CERTIFIED, key=lambda way: mean[way])
        missed = (
            []
            if mean["portfolio"] <= NEAR * mean[best]
            else [f"portfolio {mean['portfolio'] / mean[best]:.3f} × {best}"]
        )
        if name == CALLS[2].name and alpha == ALPHAS[-1]:
            missed += _bars(mean, [costs for job, (_, costs) in done.items() if job.alpha == alpha])
        yield [name, f"{alpha:.0%}", str(len(some)), *(f"{mean[way]:.3f}" for way in COLUMNS)], missed


def kind_of(log: EpisodeTable) -> str:
    """Return in which line of the summary a log counts."""
    if log.dataset in {pair.name for pair in CALLS}:
        return "tool calls"
    return "pairs" if log.arrays.horizon == 2 else "ladders"


def bars(found: Iterable[Sequence[Mapping[str, Served]]]) -> str:
    """Return how the portfolio stands to the best certified way and to the better simple one, over all rows.

    Args:
        found: of each row, what every way brings on each of its splits.
    """
    near = sure = rows = 0
    logs_of_ratios = list[float]()
    for some in found:
        costs = {way: np.array([one[way].ratio for one in some]) for way in CERTIFIED}
        mean = {way: float(cost.mean()) for way, cost in costs.items()}
        gap = costs["portfolio"] - costs[min(CERTIFIED, key=lambda way: mean[way])]
        error = float(gap.std(ddof=1)) / gap.size**0.5 if gap.size > 1 else 0.0
        is_near = mean["portfolio"] <= NEAR * (mean["portfolio"] - float(gap.mean()))
        rows, near, sure = rows + 1, near + is_near, sure + (is_near or float(gap.mean()) <= 2 * error)
        logs_of_ratios.append(float(np.log(mean["portfolio"] / min(mean[way] for way in SIMPLE))))
    geometric = float(np.exp(np.mean(logs_of_ratios)))
    return (
        f"portfolio within 2 % of the best certified way in {near} of {rows} rows, within 2 % or two standard errors "
        f"in {sure}; ÷ the better simple way {geometric:.3f} in the geometric mean, at most {SIMPLE_BAR}"
    )


def near(found: Iterable[Sequence[Mapping[str, Served]]]) -> Iterator[str]:
    """Yield, for each certified way, how often it is near the best of them, and how far from it: mean and worst row."""
    ratios: dict[str, list[float]] = {way: [] for way in CERTIFIED}
    for some in found:
        mean = {way: float(np.mean([one[way].ratio for one in some])) for way in CERTIFIED}
        least = min(mean.values())
        for way, cost in mean.items():
            ratios[way].append(cost / least)
    for way, each in ratios.items():
        within = sum(ratio <= NEAR for ratio in each)
        typical = float(np.exp(np.mean(np.log(each))))
        yield f"{way}: within 2 % in {within} of {len(each)} rows, {typical:.3f} × the best, at worst {max(each):.2f} ×"


def _bars(mean: Mapping[str, float], costs: list[list[float]]) -> Iterator[str]:
    for regret, bar, cost in zip(REGRETS, BARS, np.mean(costs, axis=0).tolist(), strict=True):
        print(f"  matched at {regret:.0%}: {cost:.3f}, at most {bar}")
        if cost > bar:
            yield f"matched at {regret:.0%} {cost:.3f} > {bar}"
    if mean["purchases"] > CERTIFIED_BAR:
        yield f"certified 5 % {mean['purchases']:.3f} > {CERTIFIED_BAR}"


COLUMNS = (*CERTIFIED, "rounds", "uncertified")


def demo(splits: int) -> None:
    """Print what keep, judge or ask the guide costs on the demo log, beside a ladder of the same two models."""
    log, rows = with_walks(open_log("offers:demo").tables[0]), list[list[str]]()
    for alpha in (0.1, 0.15, 0.2):
        costs: dict[str, list[float]] = {}
        for seed in range(splits):
            given, test = (log.take(some) for some in halves(log.groups, seed))
            ladder, shown = (with_walks(one.only((1, log.arrays.horizon))) for one in (given, test))
            job = Job("demo", alpha, seed)
            for name, cost in (
                ("call by call", fitted(given, test, job, "auto")),
                ("purchases", fitted(given, test, job, "purchases")),
                ("ladder", fitted(ladder, shown, job, "auto")),
            ):
                costs.setdefault(name, []).append(cost.ratio)
        mean = {name: float(np.mean(some)) for name, some in costs.items()}
        each = np.array(costs["call by call"]) - costs["ladder"]
        gap = f"{each.mean():+.3f} ± {each.std(ddof=1) / splits**0.5:.3f}"
        ratio = mean["call by call"] / mean["ladder"]
        rows.append([f"{alpha:.0%}", *(f"{one:.3f}" for one in mean.values()), f"{ratio:.3f}", gap])
    print(f"{head()}; {log.n} questions, {splits} splits, delta {DELTA:g}")
    print("\n".join(table(("regret", "call by call", "purchases", "ladder", "÷ ladder", "difference"), rows)))


# --- speed ---


def made_up(n: int, calls: int, seed: int = 0) -> EpisodeTable:
    """Draw requests whose calls show numbers that tell a little; the last call is the reference."""
    rng = np.random.default_rng(seed)
    hard = rng.random(n)
    right = np.stack([rng.random(n) > hard * (1 - j / calls) for j in range(calls)], axis=1)
    answer = np.where(right, 0, rng.integers(1, 4, (n, calls)))
    cost = np.tile(np.geomspace(20_000, 1_000_000, calls).astype(np.int64), (n, 1))
    arrays = StepArrays(answer[:, :, None], right[:, :, None], cost, np.full(n, calls), np.ones(n, dtype=np.bool_))
    names = ("reply_mean_logprob", "reply_tokens", "answer_chars")
    signals = {name: rng.normal(size=(n, calls)) + right for name in names}
    asked = {name: hard + rng.normal(size=n) for name in ("characters", "words", "numbers")}
    ids = tuple(map(str, range(n)))
    unknown = np.full((n, calls, 1), np.nan)
    bare = EpisodeTable("made up", ids, ids, ("answer",), arrays, unknown, signals, {}, asked=asked)
    return with_walks(bare)


def speed(calls: int = 6) -> None:
    """Print what a fit of 1,000 requests and a decision take, without trees and with them."""
    log = made_up(1_000, calls)
    steps = tuple(
        Step(
            j + 1,
            (Candidate(f"answer {j % 2}", f"m{j}", f"m{j}"),),
            {name: float(values[0, j]) for name, values in log.signals.items()},
        )
        for j in range(calls - 1)
    )
    question, many = Question("Which river runs through Vienna, and how long is it?"), 2_000
    for trees in (False, True):
        started = time.process_time()
        policy = fit_purchases(build(log, FitTarget("regret", 0.05)), trees=trees)
        fit, each = time.process_time() - started, list[str]()
        for seen in ((NOTHING_BOUGHT,), steps[:1], steps[:3], steps):
            started = time.process_time()
            for _ in range(many):
                decide(policy, Observation(question, seen, calls))
            each.append(f"{(time.process_time() - started) / many * 1e3:.3f}")
        kind = "with trees" if trees else "regressions"
        print(f"1,000 requests × {calls} offers, {len(policy.rules)} rules, {kind}: a fit {fit:.2f} s of processor")
        print(f"  a decision with 0, 1, 3 and {calls - 1} bought: {', '.join(each)} ms of processor")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--only", action="append", default=[], metavar="WORD", help="part of a name; may come again")
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--resplits", type=int, metavar="N", help="is the promise of purchases kept?")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--demo", action="store_true", help="the demo log")
    parser.add_argument("--speed", action="store_true", help="time made-up requests")
    given = parser.parse_args()
    if given.demo:
        demo(given.splits)
        return
    if given.speed or given.folder is None:
        speed()
        return
    if given.resplits:
        for log in logs(given.folder, given.only):
            print("\n".join(resplits(log, given.resplits, given.record)), flush=True)
        return
    rows, missed, every = list[list[str]](), list[str](), dict[str, list[list[dict[str, Served]]]]()
    for log in logs(given.folder, given.only):
        wanted = [alpha for alpha in ALPHAS if saves(log, alpha) <= WORTH]
        jobs = [Job(log.dataset, alpha, seed) for seed in range(given.splits) for alpha in wanted]
        done = run(log, jobs, given.record)
        found = [[ways for job, (ways, _) in done.items() if job.alpha == alpha] for alpha in wanted]
        every.setdefault(kind_of(log), []).extend(found)
        for row, lacking in lines(log.dataset, done):
            print(" ".join(row), flush=True)
            rows.append(row)
            missed += [f"{log.dataset} at {row[1]}: {one}" for one in lacking]
    print(head())
    print("\n".join(table(("log", "regret", "splits", *COLUMNS), rows)))
    print("\n".join(f"NOT MET {one}" for one in missed) or "all bars met")
    every["all rows"] = [row for found in every.values() for row in found]
    print("\n".join(f"{kind}: {bars(found)}" for kind, found in every.items()))
    print("\n".join(near(every["all rows"])))


if __name__ == "__main__":
    main()
