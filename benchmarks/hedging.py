"""What it brings to begin the reference's call early (a hedge), in USD and seconds, beside simple ways.

    python benchmarks/hedging.py FOLDER                     every log with latencies, three prices of a second, 5 splits
    python benchmarks/hedging.py FOLDER --only "calls/" --splits 3
    python benchmarks/hedging.py FOLDER --money             the policy is fitted on money alone, and only then hedged
    python benchmarks/hedging.py --live                     the shipped log's replies, each after the seconds it took

FOLDER holds the logs of `simple_ways.py`, and in `requests/` those of `agreement.py`. A split draws seven of ten
groups. On these a policy is fitted as `cascade fit --guarantee regret --alpha 0.05 --delta 0.1 --seconds-price PRICE`
does, and its hedge on its walks. The other groups are the test. All ways but the last walk with this policy:

* one after the other: no call is begun early.
* hedged: the reference's call is begun early where the hedge says so.
* always early: it is begun with the first call of every question.
* reference alone: only the reference is asked.

A call that is begun and not used counts with its whole cost. "Total" is USD and priced seconds together, as a share of
that of "one after the other". If a split's certified policy is the reference alone, there is no
earlier call to hedge; the split counts with a total of 1 for the first three ways.

Install what it needs, in the clone: pip install -c constraints.txt -e ".[dev]"
"""

from __future__ import annotations

import extras  # noqa: F401 - before the packages that it speaks of

import argparse
import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

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
from cascade.orchestrator import Orchestrator
from cascade.policies.artifact import HEDGE_FILE, PolicyArtifact, write
from cascade.policies.hedging import Hedge
from cascade.policies.threshold import ThresholdPolicy
from cascade.providers.base import Payload
from cascade.providers.fake import FakeProvider, reply
from cascade.training.fitting import fit_policy
from cascade.training.hedging import HeldOut, Walks, Way, decided, figures, fit_hedge, played, walks_of
from cascade.types import Answer, Question, Request, TextDelta

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
    segments = {one.segment: one.kappa for one in found.artifact.certificates}

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


# --- live: the shipped log's replies, each after the seconds that it took, on a clock that jumps ---

LIVE_PRICES, FIRST_WORD = (0.00003, 0.0001, 0.0003), 0.3
"""USD a second; and the share of a call's seconds after which its first word comes, which is made up."""
THRESHOLD = 0.15


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next thing to do."""

    now_s = 0.0

    def time(self) -> float:
        """Return the seconds since its start."""
        return self.now_s

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self.now_s = max(self.now_s, self._scheduled[0].when())  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


class Taking:
    """A provider that says what a log says, after as many seconds."""

    def __init__(self, said: Mapping[tuple[str, str], tuple[Payload, float]]) -> None:
        self.said = said

    def complete(self, request: Request, timeout_s: float) -> Payload:
        """Refuse: all is asked without blocking."""
        raise NotImplementedError

    async def acomplete(self, request: Request, timeout_s: float) -> Payload:  # noqa: ARG002 - the Protocol's
        """Return the reply when its time is over."""
        payload, seconds = self.said[request.model, request.question.text]
        await asyncio.sleep(seconds)
        return payload

    def stream(self, request: Request, timeout_s: float) -> Iterator[Payload]:
        """Refuse, as `complete`."""
        raise NotImplementedError

    async def astream(self, request: Request, timeout_s: float) -> AsyncGenerator[Payload, None]:
        """Yield the reply; the rest comes when its time is over."""
        payload, seconds = self.said[request.model, request.question.text]
        first, *rest = FakeProvider(lambda _: payload).stream(request, timeout_s)
        await asyncio.sleep(FIRST_WORD * seconds)
        yield first
        await asyncio.sleep((1 - FIRST_WORD) * seconds)
        for chunk in rest:
            yield chunk

    def close(self) -> None:
        """Nothing to give back."""


class Asked(NamedTuple):
    """One question live: seconds to the first byte of the text served, and to the answer, and the answer."""

    first_s: float
    seconds: float
    answer: Answer


async def asked(orchestrator: Orchestrator, question: Question) -> Asked:
    """Ask, and read the clock."""
    clock, first = asyncio.get_running_loop().time, dict[str, float]()
    began = clock()
    async for event in orchestrator.astream(question):
        if isinstance(event, TextDelta):
            first.setdefault(event.role, clock() - began)
        elif isinstance(event, Answer):
            served = event.served
            role = "" if served is None else served[0].source
            return Asked(first.get(role, clock() - began), clock() - began, event)
    raise AssertionError("a stream ends with its answer")


def live() -> Iterator[str]:
    """Yield the lines of the live table: the hedge is fitted on every second question, the others are asked."""
    log = open_log("demo-ladder")
    (found,) = log.tables
    rows = [row for row in log.rows() if row["walk"] is None]
    models = [next(row["model"] for row in rows if row["step"] == step) for step in (1, 2)]
    usd = [float(found.arrays.cost[:, at].mean()) / 1e9 for at in range(2)]
    said = {(row["model"], row["question"]): (_reply(row), row["latency_ms"] / 1_000) for row in rows}
    asked_of = {row["episode_id"]: Question(row["question"], row["context"]) for row in rows}
    policy = ThresholdPolicy(THRESHOLD, when="reply_logprob")
    walks = walks_of(found, clocked(found, seconds_of(log.rows())), policy, {None: THRESHOLD})
    if walks is None:
        raise SystemExit("The shipped log has no walks.")
    walks = replace(walks, money=np.tile(np.rint(np.array(usd) * 1e9).astype(np.int64), (walks.n, 1)))
    fit, test = walks.take(np.arange(walks.n) % 2 == 0), walks.take(np.arange(walks.n) % 2 == 1)
    questions = [asked_of[found.ids[row]] for row in test.rows]
    for price in LIVE_PRICES:
        hedge = fit_hedge(fit, price)
        plain, hedged = (_asked_all(said, models, usd, hedge, questions, on=on) for on in (False, True))
        same = sum(one.answer.text == other.answer.text for one, other in zip(plain, hedged, strict=True))
        took = played(test, decided(hedge, test))
        off = np.abs(took.seconds - [one.seconds for one in hedged]).max()
        begun = [sum(call.begun is not None for call in one.answer.calls) for one in hedged]
        unused = [sum(call.begun is not None for call in one.answer.loose_calls) for one in hedged]
        costs = [1_000 * float(np.mean([one.answer.cost_bound or 0 for one in some])) for some in (plain, hedged)]
        shown = [f"{price:g}", *(_live_figures(some) for some in (plain, hedged))]
        shown += [
            f"{sum(begun)} ({sum(unused)})",
            *[f"{one:.3f}" for one in costs],
            f"{same} of {len(plain)}",
            f"{off:.3f} s",
        ]
        yield "| " + " | ".join(shown) + " |"


def _live_figures(some: Sequence[Asked]) -> str:
    first, whole = (np.array([getattr(one, name) for one in some]) for name in ("first_s", "seconds"))
    return f"{first.mean():.2f} · {whole.mean():.2f} · {np.quantile(whole, 0.95):.2f}"


def _reply(row: Mapping[str, Any]) -> Payload:
    text = f"Reasoning: so.\nAnswer: {row['answer']}"
    sure = row["signals"].get("reply_mean_logprob")
    return reply(text, logprobs=None if sure is None else [sure] * len(text.split(" ")))


def _asked_all(
    said: Mapping[tuple[str, str], tuple[Payload, float]],
    models: Sequence[str],
    usd: Sequence[float],
    hedge: Hedge,
    questions: Sequence[Question],
    *,
    on: bool,
) -> list[Asked]:
    """Ask the questions one by one, with the hedge or without it."""
    with TemporaryDirectory() as folder:
        policy = {"kind": "threshold", "when": "reply_logprob", "threshold": THRESHOLD}
        write(folder, PolicyArtifact(policy, files={HEDGE_FILE: hedge.dumps()}))
        prices = [{"input": 0.0, "output": 0.0, "request": one} for one in usd]
        config = {
            "models": {name: {"model": name, "price": price} for name, price in zip(models, prices, strict=True)},
            "strategy": {"kind": "ladder", "models": list(models)},
            "policy": {"kind": "directory", "path": folder, "hedge": on},
            "provider": "fake",
            "traces": "off",
        }

        async def every() -> list[Asked]:
            async with Orchestrator.from_config(config, providers={"fake": Taking(said)}) as orchestrator:
                return [await asked(orchestrator, one) for one in questions]

        with asyncio.Runner(loop_factory=JumpingLoop) as runner:
            return runner.run(every())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--live", action="store_true")
    parser.add_argument("--only", nargs="*", default=())
    parser.add_argument("--money", action="store_true")
    parser.add_argument("--splits", type=int, default=SPLITS)
    given = parser.parse_args()
    if given.live or given.folder is None:
        names = ["USD a second", "one after the other", "hedged", "begun (unused)", "cost", "cost hedged, at most"]
        names += ["same answer", "off"]
        print("Each way: mean seconds to the first byte · to the answer · 95th percentile", flush=True)
        print("| " + " | ".join(names) + " |\n|" + "---|" * len(names), *live(), sep="\n", flush=True)
        return
    names = ["log", "USD a second", "splits", "one after the other", "hedged", "always early", "reference alone"]
    names += ["begun (unused)", "total: hedged", "always early", "reference alone"]
    print("Each way: USD per 1,000 questions · mean seconds · 95th percentile of seconds", flush=True)
    print("| " + " | ".join(names) + " |\n|" + "---|" * len(names), flush=True)
    for log in logs(given.folder, given.only):
        for price in PRICES:
            print("| " + " | ".join(rows_of(log, price, given.splits, money=given.money)) + " |", flush=True)


if __name__ == "__main__":
    main()
