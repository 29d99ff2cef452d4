"""Decision judges: what a certified regret costs with them, whether it holds, and what canaries make of another judge.

    python benchmarks/judges.py year          false suspensions in 2,000 simulated years, by the law of the jitter
    python benchmarks/judges.py cost FOLDER   MMLU: exact and fitted, beside simpler methods, 20 splits
    python benchmarks/judges.py draws FOLDER  1,000 certificates, the log as the population: how many are broken
    python benchmarks/judges.py swap FOLDER   certified with one judge, served with another behind its name

No public log has verdicts of a decision model. So a judge is emulated by another model's P(the base's letter): its own
probability if it gives this letter, else a third of the rest. The pair is gpt-4o-mini > gpt-4o on 1,816 questions of
MMLU; the judges answer 57, 63 and 81 % of them rightly, the guide 83 %. A verdict costs $.10 a million input tokens.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import duckdb
import numpy as np
from table import OrReference, Seeded
from validity import Case, lines, measure, menu, sure

from cascade import Orchestrator, fit, verify
from cascade.collection import collect
from cascade.config import load
from cascade.conformal.promise import Promise
from cascade.episodes.opening import open_log
from cascade.fitting.fit import FitSettings
from cascade.identity import identity
from cascade.logs.questions import AskedQuestion
from cascade.policies.canaries import FALSE_A_YEAR, MOST, REPEATS, RUNS_A_YEAR, p_value, runs_of
from cascade.policies.policy import VERDICT, Random, Threshold, score_policy
from cascade.providers.fake import FakeProvider, reply
from cascade.studies.methods import Method, fixed, one_test, play
from cascade.studies.study import study
from cascade.table import Floats, Log
from cascade.types import Question, Request

JUDGES = {"57 % judge": "llama3.2-3b", "63 % judge": "llama3.1-8b", "81 % judge": "llama3.1-70b"}
GOOD, POOR, PAIR, LADDER = "81 % judge", "63 % judge", "gpt-4o-mini>gpt-4o", "llama-1b,3b,8b,70b>gpt-4o"
LAWS = ("normal", "heavy tail", "steps of .01", "none")
STATEMENT = 60  # tokens of what a decision model is asked about an answer
EXACT, REGRET = Threshold(VERDICT, -1.0, tie=None), Promise("regret", 0.05, 0.9)
YEARS, SPLITS, DRAWS, RISKS, N = 2_000, 20, 1_000, (0.05, 0.02), 1_271


def jitter(law: str, shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
    """Return jitter with a standard deviation of .03 where it has one; the heavy tail is Student's t of two."""
    draws = rng.standard_t(2, shape) / 100 if law == "heavy tail" else 0.03 * rng.standard_normal(shape)
    return {"steps of .01": draws.round(2), "none": 0 * draws}.get(law, draws)


def suspended(seed: int, law: str, centre: Floats | None = None, now: Floats | None = None, runs: int = 1) -> bool:
    """Whether any of some runs suspends a judge that gives `now`; by default what was recorded."""
    rng = np.random.default_rng(seed)
    centre = rng.uniform(0, 1, MOST) if centre is None else centre
    recorded = np.clip(centre[:, None] + jitter(law, (centre.size, REPEATS), rng), 0, 1)
    later = np.clip((centre if now is None else now) + jitter(law, (runs, centre.size), rng), 0, 1)
    return bool((p_value(recorded, later) <= FALSE_A_YEAR / RUNS_A_YEAR).any())


def year(jobs: int) -> None:
    """Print the share of years of `RUNS_A_YEAR` runs in which the same judge is suspended, and the power of a run."""
    for law in LAWS:
        with ProcessPoolExecutor(jobs) as pool:
            false = sum(pool.map(partial(suspended, law=law, runs=RUNS_A_YEAR), range(YEARS), chunksize=20))
        print(f"jitter {law}: {false} of {YEARS} years have a false suspension; allowed {FALSE_A_YEAR:.0%}", flush=True)
        centre = np.linspace(0.1, 0.9, MOST)
        for shift in (0.02, 0.03, 0.04):
            hits = np.mean([suspended(seed, law, centre, centre + shift) for seed in range(200)])
            print(f"    every P(yes) {shift:+.2f}: {hits:.2f} of single runs suspend", flush=True)


@cache
def pair(folder: Path) -> tuple[Log, dict[str, Floats], list[Any], dict[str, Log]]:
    """Return the pair as a log, and its rows; by judge P(yes), and a log of its model as a second opinion."""
    path = folder / "episodes_zell_mmlu.parquet"
    log = next(each.log for each in open_log(str(path)).datasets if each.log.name.endswith(PAIR))
    fields = "question, base_answer, base_uncertainty, guide_answer, gold, base_cost_usd, base_input_tokens"
    query = f"SELECT {fields} FROM read_parquet(?) WHERE pair = ? AND base_model = ? ORDER BY question_id"  # noqa: S608
    rows = duckdb.execute(query, [str(path), PAIR, "gpt-4o-mini"]).fetchall()
    place = {identity(row[0]): at for at, row in enumerate(rows)}
    order, verdicts, agree = [place[name] for name in log.ids], dict[str, Floats](), dict[str, Log]()
    for name, model in JUDGES.items():
        own = duckdb.execute(query, [str(path), LADDER, model]).fetchall()
        p, paid = np.exp(-np.array([row[2] for row in own])), np.array([row[5] for row in own])
        same = np.array([judge[1] == base[1] for judge, base in zip(own, rows, strict=True)])
        verdicts[name] = np.where(same, p, (1 - p) / 3)[order]
        agree[name] = priced(log, same[order].astype(np.float64), paid[order] * 1e9)
    return log, verdicts, [rows[at] for at in order], agree


def priced(log: Log, p_yes: Floats, paid: Floats) -> Log:
    """Return the log with verdicts on the first answer as its only signal, at their price in nano-USD."""
    blank, costs = np.full(log.confidence.shape, np.nan), log.cost_nano_usd.copy()
    signal, costs[:, 0] = np.stack([p_yes, blank[:, 0]], axis=1), costs[:, 0] + paid.astype(np.int64)
    return replace(log, signals={VERDICT: signal}, confidence=blank, cost_nano_usd=costs)


def judged(folder: Path) -> dict[str, Log]:
    """Return the log of each judge."""
    log, verdicts, rows, _ = pair(folder)
    paid = np.array([100.0 * (row[6] + STATEMENT) for row in rows])
    return {name: replace(priced(log, p_yes, paid), name=name) for name, p_yes in verdicts.items()}


def cost(folder: Path) -> None:
    """Print cost and loss, as shares of the guide's cost and of the requests: exact, fitted, and by hand."""
    log, _, _, agree = pair(folder)
    by_hand: list[Method] = [fixed(f"P(yes) > {at}", EXACT, -at) for at in (0.5, 0.7, 0.9)]
    simple, two = score_policy(log) or EXACT, fixed("serve if the two agree", EXACT, -0.5)
    cells: list[tuple[str, Log, list[Method]]] = [("no signal", log, [OrReference(one_test("exact", Random()))])]
    cells.append(("log-prob", log, [OrReference(one_test("exact", replace(simple, tie=None))), Seeded("fit")]))
    for name, own in judged(folder).items():
        cells.append((name, own, [OrReference(one_test("exact", EXACT)), Seeded("fit"), *by_hand]))
        cells.append((f"{name} as a second model", agree[name], [two]))
        cells.append((f"{name}, its yes", replace(agree[name], cost_nano_usd=own.cost_nano_usd), [two]))
    for risk, (name, own, methods) in product(RISKS, cells):
        done = study(own, Promise("regret", risk, 0.9), methods, splits=SPLITS, seed=0)
        rows = [done.row(method.name) for method in methods]
        parts = [f"{row.name} {np.mean(row.curve):.3f} (lost {row.risk:.3f})" for row in rows]
        print(f"regret {risk:.0%}, {name}: {'; '.join(parts)}", flush=True)


def draws(folder: Path, jobs: int) -> None:
    """Print how often a certificate is broken where the log is the population that its requests are drawn from."""
    cases = [Case("regret", menu, sure("regret", risk), log, N) for log in judged(folder).values() for risk in RISKS]
    with ProcessPoolExecutor(jobs) as pool:
        print("\n".join(lines(list(pool.map(partial(measure, calibrations=DRAWS), cases)))))


def models(rows: list[Any], p_yes: Floats) -> FakeProvider:
    """Return a provider that answers as the log does, and whose judge gives P(yes)."""

    def script(request: Request) -> Any:
        judges, text = request.purpose == "judge", request.question.text
        at = int((json.loads(request.messages[-1].content)["question"] if judges else text).partition(":")[0])
        if judges:
            return reply("Yes" if p_yes[at] >= 0.5 else "No", p_yes=float(p_yes[at]), input_tokens=150)
        return f"Answer: {rows[at][1] if request.model == 'gpt-4o-mini' else rows[at][3]}"

    return FakeProvider(script)


def swap(folder: Path) -> None:
    """Print what a judge behind the same name does without canaries, and then through a served certificate."""
    (log, verdicts, rows, _), logs, losses = pair(folder), judged(folder), []
    for seed in range(10 * SPLITS):
        order = np.random.default_rng(seed).permutation(log.n)
        tested = one_test("exact", EXACT).choose(logs[GOOD].take(order[:N]), REGRET, seed)
        losses.append([play(*tested, logs[name].take(order[N:]), REGRET).loss.mean() for name in (GOOD, POOR)])
    mean, broken = np.mean(losses, axis=0), np.mean(np.array(losses) > REGRET.risk, axis=0)
    print(f"regret 5 %, the judge and another, {len(losses)} splits: lost {mean}, and more than promised in {broken}")
    for law in LAWS:
        drawn = [np.random.default_rng(seed).permutation(log.n)[:MOST] for seed in range(200)]
        hits = [suspended(seed, law, verdicts[GOOD][at], verdicts[POOR][at]) for seed, at in enumerate(drawn)]
        print(f"jitter {law}: one run finds the other judge with {np.mean(hits):.2f} of 200 draws of canaries")
    served(Path(tempfile.mkdtemp()), rows, verdicts)


def served(place: Path, rows: list[Any], verdicts: dict[str, Floats]) -> None:
    """Certify with one judge, serve with another, and serve again after a run of canaries."""
    entries: dict[str, Any] = {"base": {"model": "gpt-4o-mini", "price": {"input": 0.15, "output": 0.6}}}
    entries["judge"] = {"model": "decider", "kind": "decision", "price": {"input": 0.1, "output": 0.0}}
    entries["guide"] = {"model": "gpt-4o", "price": {"input": 2.5, "output": 10.0}}
    ladder = {"kind": "ladder", "models": ["base", "guide"], "judge": "judge"}
    config = load({"models": entries, "strategy": ladder, "provider": "fake", "traces": "off"})
    cut, texts, log = N, [f"{at}: {row[0]}" for at, row in enumerate(rows)], place / "log.jsonl"
    questions = [AskedQuestion(f"q{at}", Question(texts[at]), (rows[at][4],)) for at in range(cut)]
    collect(config, questions, log, providers={"fake": models(rows, verdicts[GOOD])})
    quiet: dict[str, Any] = {"config": config, "tell": lambda _: None}
    fit(log, REGRET, FitSettings({"kind": "threshold", "signal": VERDICT}), output=place / "policy", **quiet)
    serving = load({**config.model_dump(exclude_unset=True), "policy": str(place / "policy")})
    for judge in (GOOD, POOR, POOR):
        provider, verb = models(rows, verdicts[judge]), "run" if runs_of(place / "policy") else "record"
        with Orchestrator.from_config(serving, providers={"fake": provider}) as cascade:
            answers = cascade.many(texts[cut:])
        certified = np.mean([answer.certificate is not None for answer in answers])
        lost = np.mean([row[3] == row[4] != answer.text for row, answer in zip(rows[cut:], answers, strict=True)])
        print(f"served with the {judge}: {certified:.2f} certified, regret {lost:.3f}")
        with patch("cascade.providers.registry.create", lambda *_, provider=provider: provider):
            print(f"    --canaries {verb}: {verify(place / 'policy', log, canaries=verb, **quiet).checks[0].text}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["year", "cost", "draws", "swap"])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    parts = {"year": partial(year, given.jobs), "draws": partial(draws, given.folder, given.jobs)}
    (parts.get(given.part) or partial({"cost": cost, "swap": swap}[given.part], given.folder))()
