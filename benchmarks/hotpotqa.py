"""HotpotQA with a search tool and two local models: what is asked, and what comes of the log.

    python benchmarks/hotpotqa.py prepare DIR            the questions, the settings and the commands that make the logs
    python benchmarks/hotpotqa.py report DIR             exact match and F1; the paper's rows on this log

The data are `../shared/data/hotpotqa` beside the project: questions.jsonl and passages.jsonl. `hotpot.agent` searches.
A question is some minutes of one core, so `cascade collect` runs in the background and goes on where it stopped.

Of each random split half of the questions train, a quarter calibrates, a quarter is the test. Costs are made-up prices
of local models, in cents for 200 questions. Rows whose walk was not logged are left out.

Install what it needs, in the clone: pip install -c constraints.txt -e ".[train]"
"""

from __future__ import annotations

import extras  # noqa: F401 - before the packages that it speaks of

import argparse
import json
import random
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from published.contest import (
    CLAIRVOYANT,
    LIMIT,
    ROWS,
    SAMPLED,
    Figures,
    Split,
    judged,
    knowing,
    methods,
)
from published.printed import BASE_POLICY, EXIT_BASE, EXIT_GUIDE, GUIDE_POLICY, TABLES, Table

from cascade.episodes.files import read_rows
from cascade.episodes.schema import GUIDE_ONLY
from cascade.episodes.table import EpisodeTable
from cascade.episodes.tabulate import tables_from_rows
from cascade.evaluation.methods import Logged, Method
from cascade.matching import get_matcher
from cascade.training.estimators import one_thread
from cascade.training.networks.config import CCPOConfig

DATA = Path(__file__).parents[2] / "shared" / "data" / "hotpotqa"
QUESTIONS, SEED, STEPS, SPLITS = 160, 16, 500, 5
WALKS = {
    EXIT_GUIDE: "LLM-exit, guide",
    EXIT_BASE: "LLM-exit, base",
    GUIDE_POLICY: "LLM policy, guide",
    BASE_POLICY: "LLM policy, base",
}
"""The walks that the printed rows of prompted models are."""
PROMPTS = Path(__file__).parent / "hotpot" / "prompts"
MODELS = {"base": ("qwen2.5-coder-0.5b", 0.1, 0.4), "guide": ("qwen2.5-coder-1.5b", 1.0, 4.0)}


def prepare(folder: Path, data: Path, many: int) -> None:
    """Write what is asked and with which settings; print the commands."""
    asked = [json.loads(line) for line in (data / "questions.jsonl").read_text("utf-8").splitlines()]
    random.Random(SEED).shuffle(asked)
    lines = [
        json.dumps({"id": one["id"], "question": one["question"], "answers": [one["answer"]], "segment": one["type"]})
        for one in asked[:many]
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "questions.jsonl").write_text("\n".join([*lines, ""]), "utf-8")
    searching = settings({"kind": "base_guide", "rounds": 3}, agent="hotpot.agent:search")
    alone = settings({"kind": "ladder", "models": ["base", "guide"]})
    for name, one in (("search", searching), ("alone", alone)):
        (folder / f"{name}.yaml").write_text(json.dumps(one, indent=1), "utf-8")  # JSON is YAML
    print(f"export PYTHONPATH={PROMPTS.parents[1]} HOTPOTQA_PASSAGES={data / 'passages.jsonl'} OMP_WAIT_POLICY=passive")
    for name, walk in (("search", "all"), ("alone", "none")):
        log = f"-c {folder / name}.yaml -o {folder / name}.jsonl"
        how = f"--matcher hotpotqa --walk {walk} --concurrency 2 --resume"
        print(f"cascade collect {folder / 'questions.jsonl'} {log} {how}")


def settings(strategy: Mapping[str, Any], agent: str | None = None) -> dict[str, Any]:
    """Return a configuration of the local pair. Its prices are made up."""
    models = {}
    for place, (name, read, written) in MODELS.items():
        models[place] = {
            "model": name,
            "max_tokens": 32,
            "price": {"input": read, "output": written, "note": "made up"},
        }
        if agent is not None:
            models[place]["agent"] = agent
    return {
        "models": models,
        "strategy": {**strategy, "prompts": str(PROMPTS)},
        "policy": {"kind": "fixed"},
        "timeouts": {"per_call_s": 900},
        "provider": {"kind": "local", "options": {"threads": 1}},
    }


# --- what the answers are worth


class Worth(NamedTuple):
    """What one way to answer brings on n questions: means of exact match, F1, cents for 200, seconds."""

    n: int
    exact: float
    f1: float
    cents: float
    seconds: float


def worth(rows: Iterable[Mapping[str, Any]], wanted: Mapping[str, Sequence[str]]) -> Worth:
    """Return what the candidates among rows are worth, each question's calls taken together.

    Args:
        rows: the calls of one way to answer.
        wanted: the accepted answers of each question that counts; one that has no answer is wrong.
    """
    said, cost, took = dict.fromkeys(wanted, ""), 0, 0.0
    for row in rows:
        if row["episode_id"] in wanted:
            cost, took = cost + row["cost_nano_usd"], took + row["latency_ms"] / 1_000
            if row["answer"] is not None:
                said[row["episode_id"]] = row["answer"]
    judge, n = get_matcher("hotpotqa"), len(wanted)
    found = [judge.matches(answer, wanted[name]) for name, answer in said.items()]
    exact, f1 = sum(bool(one.correct) for one in found), sum(one.score or 0.0 for one in found)
    return Worth(n, exact / n, f1 / n, cost / n * 2e-5, took / n)


def answers(searched: Sequence[Mapping[str, Any]], alone: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Worth]]:
    """Yield what each of the four ways is worth, on the questions that all of them answered."""
    ways = {
        "base, no search": [row for row in alone if row["step"] == 1],
        "guide outright, no search": [row for row in alone if row["step"] == 2],
        "base with search": [
            row for row in searched if row["walk"] is None and row["step"] == 1 and row["source"] == "base"
        ],
        "guide with search": [row for row in searched if row["walk"] == GUIDE_ONLY],
    }
    ways = {name: rows for name, rows in ways.items() if rows}
    shared = set.intersection(*({row["episode_id"] for row in rows} for rows in ways.values()))
    gold = {row["episode_id"]: row["gold"] for row in searched if row["episode_id"] in shared}
    for name, rows in ways.items():
        yield name, worth(rows, gold)


# --- the paper's rows


def split_of(table: EpisodeTable, seed: int) -> Split:
    """Divide the questions at random: half, a quarter, a quarter."""
    order = np.random.default_rng(seed).permutation(table.n)
    half, rest = table.n // 2, table.n // 4
    parts = np.split(order, [half, half + rest])
    return Split(*(table.take(np.sort(part)) for part in parts))


def players(printed: Table, split: Split, config: CCPOConfig) -> dict[str, Method]:
    """Return who plays, with the walks that were logged."""
    found = {
        name: one
        for name, one in methods(printed, split, config).items()
        if name not in {EXIT_GUIDE, EXIT_BASE, SAMPLED}
    }
    there = {row: walk for row, walk in WALKS.items() if walk in split.test.walks}
    return found | {row: Logged(walk) for row, walk in there.items()}


@one_thread()
def contest(table: EpisodeTable, printed: Table, splits: int, config: CCPOConfig) -> dict[str, list[Figures]]:
    """Return each row's figures, one a split."""
    found: dict[str, list[Figures]] = {}
    for seed in range(splits):
        split = split_of(table, seed)
        for name, one in players(printed, split, config).items():
            ready = one.prepare(split.train, split.calibration, printed.alpha, seed)._replace(scores=None)
            found.setdefault(name, []).append(judged(ready, split.test, split.test, printed.alpha))
        found.setdefault(CLAIRVOYANT, []).append(knowing(split.test, split.test, printed.alpha))
    return found


FIGURES = ("coverage", "length", "leaves")


def table_lines(printed: Table, found: Mapping[str, Sequence[Figures]]) -> Iterator[str]:
    """Yield a table of means over the splits, beside what is printed."""
    columns = "cents | covered | rounds | leaves"
    yield f"| alpha = {printed.alpha} | {columns} | printed, Table {printed.number}: {columns} |"
    yield f"|{'---|' * 9}"
    for name in ROWS:
        if name == LIMIT or name not in found:
            continue
        each = [_mean([getattr(one, part) for one in found[name]]) for part in FIGURES]
        cells = [f"{np.mean([one.cents for one in found[name]]):.3g}"]
        cells += ["" if one is None else f"{one:.3f}" for one in each]
        row = printed.rows.get(name)
        cells += ["", "", "", ""] if row is None else [f"{one:.4g}" for one in row]
        yield f"| {name} | {' | '.join(cells)} |"


def _mean(values: Sequence[float | None]) -> float | None:
    known = [one for one in values if one is not None]
    return float(np.mean(known)) if known else None


def report(folder: Path, splits: int, steps: int) -> None:
    """Print what the logs of a folder say."""
    searched = list(read_rows(folder / "search.jsonl"))
    alone = list(read_rows(folder / "alone.jsonl")) if (folder / "alone.jsonl").exists() else []
    print("| | questions | exact match | F1 | cents / 200 | seconds |\n|---|---|---|---|---|---|")
    for name, one in answers(searched, alone):
        print(f"| {name} | {one.n} | {one.exact:.3f} | {one.f1:.3f} | {one.cents:.3g} | {one.seconds:.0f} |")
    (table,) = tables_from_rows(searched)
    rounds = table.arrays.correct.mean(axis=0)
    each = "; ".join(
        f"round {number}: base {base:.3f}, guide {guide:.3f}" for number, (base, guide) in enumerate(rounds, 1)
    )
    print(f"\nRight in {each}; some answer {table.arrays.solvable.mean():.3f}.")
    print(f"\n{table.n} questions, {splits} splits, {steps} updates of each network.\n")
    for number in (2, 6):
        print(
            "\n".join(table_lines(TABLES[number], contest(table, TABLES[number], splits, CCPOConfig(steps=steps))))
            + "\n"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Prepare, or report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("prepare", "report"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--questions", type=int, default=QUESTIONS)
    parser.add_argument("--splits", type=int, default=SPLITS)
    parser.add_argument("--steps", type=int, default=STEPS, help="updates of each network")
    given = parser.parse_args(argv)
    if given.what == "prepare":
        prepare(given.folder, given.data, given.questions)
    else:
        report(given.folder, given.splits, given.steps)
    return 0


if __name__ == "__main__":
    sys.exit(main())
