"""A shop's agent, step by step: small or large for each turn, under a hard budget for each task.

    python examples/shop/shop_run.py --fake                               two scripted models, in seconds
    python examples/shop/shop_run.py --journal shop.journal               the 60 tasks with the two local models
    python examples/shop/shop_run.py --journal shop.journal --tasks 12    the first twelve

Half of the tasks choose the policy at each budget (the most tasks right; among equals the cheapest), the other half
evaluate it, beside two baselines, always small and always large. No call is made twice: the journal has every call, and
a run resumes where it stopped. No task can spend more than its budget: each call's highest price is reserved before
the call. The prices are made up.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from shop import Task, tasks
from shop_agent import ALWAYS_LARGE, ALWAYS_SMALL, LARGE, SMALL, Models, Played, Policy, Switch, candidates, play

from cascade import Orchestrator
from cascade.budget.charges import paid_call
from cascade.episodes.journal import Journal
from cascade.logs.schema import call_row, request_digest
from cascade.providers.base import Payload
from cascade.providers.fake import FakeProvider, reply
from cascade.resilience.event_loop import run
from cascade.types import Completion, Request

CONFIG = {
    "models": {
        "base": {"model": "qwen2.5-coder-0.5b", "price": {"input": 0.1, "output": 0.4, "note": "made up"}},
        "guide": {"model": "qwen2.5-coder-1.5b", "price": {"input": 1.0, "output": 4.0, "note": "made up"}},
    },
    "strategy": {"kind": "ladder", "models": ["base", "guide"]},
    "provider": {"kind": "local", "options": {"threads": 1}},
    "timeouts": {"per_call_s": 900},
}
BUDGETS_USD = (0.001, 0.0016, 0.003)


def models_of(orchestrator: Orchestrator, journal: Journal) -> Models:
    """Return the two models of a configuration, asked at most once for the same."""
    names = {
        SMALL: orchestrator.runtime.config.models["base"].model,
        LARGE: orchestrator.runtime.config.models["guide"].model,
    }
    known = orchestrator.runtime.config.prices()
    prices = {place: price for place, name in names.items() if (price := known[name]) is not None}

    def ask(request: Request) -> Completion:
        with journal.claim(request_digest(request)) as recorded:
            if recorded is not None:
                return recorded
            completion = run(orchestrator.runtime.complete(request))
            journal.add([call_row(paid_call(request, completion, known[request.model]), completion)])
            return completion

    return Models(names, prices, ask)


def learned(tasks: Sequence[Task], models: Models, budget_nano_usd: int) -> Switch:
    """Return the switch that serves most of these tasks, of equals the cheapest."""

    def worth(switch: Switch) -> tuple[int, int]:
        played = [play(task, switch, models, budget_nano_usd) for task in tasks]
        return sum(each.right for each in played), -sum(each.cost_nano_usd for each in played)

    return max(candidates(), key=worth)


def line(name: str, played: Sequence[Played], budget_nano_usd: int) -> str:
    """Return a row of the table."""
    costs = [result.cost_nano_usd / 1e6 for result in played]
    cells = [f"{budget_nano_usd / 1e6:.1f}", name, f"{sum(result.right for result in played)}/{len(played)}"]
    cells += [f"{fmean(costs):.3f}", f"{max(costs):.3f}", f"{fmean(result.turns for result in played):.1f}"]
    cells += [str(sum(result.large for result in played)), str(sum(result.stopped for result in played))]
    return f"| {' | '.join(cells)} |"


def report(models: Models, tasks: Sequence[Task]) -> list[str]:
    """Return the table: three budgets, the boundaries and the learned switch, on the second half of the tasks."""
    half = len(tasks) // 2
    lines = [
        "| budget, m$ | policy | right | mean, m$ | dearest, m$ | calls | of the large | money ended |",
        "|---" * 8 + "|",
    ]
    for usd in BUDGETS_USD:
        budget = round(usd * 1e9)
        chosen = learned(tasks[:half], models, budget)
        ways: Mapping[str, Policy] = {
            "always small": ALWAYS_SMALL,
            "always large": ALWAYS_LARGE,
            f"learned: {chosen}": chosen,
        }
        for name, policy in ways.items():
            lines.append(line(name, [play(task, policy, models, budget) for task in tasks[half:]], budget))
    return lines


def scripted(request: Request) -> Payload:
    """Stand in for a model: the large one does each task, the small one those whose customers name the order."""
    (task,) = (task for task in tasks() if task.message == request.question.text)
    lost = "1.5b" not in request.model and "by item" in task.name
    calls = ("orders Nobody",) if lost else task.calls
    replies = {message.content for message in request.messages if message.role == "assistant"}
    return reply(next((call for call in calls if call not in replies), "done"), input_tokens=200)


def main() -> None:
    """Play and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    who = parser.add_mutually_exclusive_group(required=True)
    who.add_argument("--journal", type=Path, help="where the calls of the local models are kept")
    who.add_argument("--fake", action="store_true", help="scripted models: nothing is downloaded")
    parser.add_argument("--tasks", type=int, default=60)
    given = parser.parse_args()
    config, fake = CONFIG | ({"provider": "fake", "traces": "off"} if given.fake else {}), FakeProvider(scripted)
    with (
        tempfile.TemporaryDirectory() as folder,
        Orchestrator.from_config(config, providers={"fake": fake}) as orchestrator,
        Journal(Path(folder, "fake.journal") if given.fake else given.journal) as journal,
    ):
        print("\n".join(report(models_of(orchestrator, journal), tasks()[: given.tasks])))


if __name__ == "__main__":
    main()
