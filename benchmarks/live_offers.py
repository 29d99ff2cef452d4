"""Local models as offers, live: what each does alone, and what a policy that buys as needed serves on fresh questions.

    cascade collect QUESTIONS -c CONFIG -o LOG --walk none
    python benchmarks/live_offers.py LOG CONFIG FRESH --limit 8

CONFIG is a list of offers, the dear model outright as the last. `purchases` is fitted on LOG for a regret of 25 %,
δ = .1: what a few dozen questions can certify. FRESH is a JSONL file of questions with `answers`; each is asked live
through the policy, as an audit: the last model is asked too, and the audit's cost is not the policy's.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from fitted.report import head

from cascade import Orchestrator
from cascade.config import load
from cascade.evaluation.logs import open_log
from cascade.guarantees.base import Guarantee
from cascade.matching.exact import exact_match
from cascade.policies import artifact
from cascade.training.fitting import fit_policy

ASKED = Guarantee("regret", 0.25, 0.1)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("log", "config", "fresh"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--limit", type=int, default=8)
    given = parser.parse_args()
    (table,) = open_log(str(given.log)).tables
    plain = yaml.safe_load(given.config.read_text("utf-8"))
    paid, config = table.arrays.cost.mean(axis=0), load(plain)
    print(f"{head()}; {table.n} questions on record")
    for at, offer in enumerate(plain["strategy"]["offers"]):
        right = table.arrays.correct[:, at, 0].mean()
        print(f"  {offer['name']}: right on {right:.2f}, cost {paid[at] / paid[-1]:.3f} × the last")
    found = fit_policy([table], ASKED, method="purchases", config=config)
    print(f"  fitted: {found.policy.method}, {found.sizes}; {'; '.join(found.notes)}")
    questions = [json.loads(line) for line in given.fresh.read_text("utf-8").splitlines()][: given.limit]
    with TemporaryDirectory() as folder:
        artifact.write(Path(folder) / "policy", found.artifact)
        guarantee = {"audit": {"probability": 1.0}}
        serve({**plain, "policy": str(Path(folder) / "policy"), "guarantee": guarantee}, questions)


def serve(config: Mapping[str, Any], questions: Sequence[Mapping[str, Any]]) -> None:
    """Ask each question through the policy, and print what that took."""
    right, cost, last = [0, 0], 0, 0
    with Orchestrator.from_config(config) as orchestrator:
        for one in questions:
            answer = orchestrator.ask(one["question"])
            bought = [step for step in answer.steps if not step.audited]
            said = [step.candidates[0].text if step.candidates else None for step in answer.steps]
            right[0] += exact_match(answer.text or "", one["answers"])
            right[1] += exact_match(said[-1] or "", one["answers"])
            costs = [sum(call.cost_nano_usd or 0 for call in step.calls) for step in answer.steps]
            cost += sum(costs[: len(bought)])
            last += costs[-1]
            print(f"  {[step.number for step in bought]}: {answer.text!r}; the last says {said[-1]!r}", flush=True)
    print(f"live, {len(questions)}: right {right[0]}, the last model {right[1]}; cost {cost / last:.3f} × the last")


if __name__ == "__main__":
    main()
