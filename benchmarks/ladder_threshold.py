"""Read the ladder's threshold off the log split of the demo questions, with the two real local models.

    python benchmarks/ladder_threshold.py --questions 130      about 6 minutes on 2 cores

For each threshold on the mean log-prob of the base's reply: accuracy, cost beside guide only, and the accuracy that
tossing a coin between base only and guide only would have at that cost.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from cascade import Orchestrator
from cascade.demo import PAIR, demo_config, demo_questions, sample
from cascade.episodes.matching import exact_match
from cascade.sections import FixedConfig, LadderConfig
from cascade.types import Step

THRESHOLDS = (0.1, 0.12, 0.14, 0.16, 0.18, 0.2, 0.25, 0.3)


@dataclass(frozen=True, slots=True)
class Pair:
    """One question: whether base and guide were right, what each cost, and the base's mean log-prob."""

    base_right: bool
    guide_right: bool
    base_nano_usd: int
    guide_nano_usd: int
    doubt: float


def run(count: int, seed: int) -> list[Pair]:
    """Ask both models every question."""
    changes = {
        "strategy": LadderConfig(kind="ladder", models=("base", "guide")),
        "policy": FixedConfig(kind="fixed", depth=2),
    }
    config = demo_config(*PAIR).model_copy(update=changes)
    pairs = []
    with Orchestrator.from_config(config) as orchestrator:
        for asked in sample(demo_questions("log"), count, seed):
            base, guide = orchestrator.ask(asked.question).steps
            value = base.signals.get("reply_mean_logprob")
            doubt = float("inf") if value is None or not base.candidates else -value
            if base.cost_nano_usd is None or guide.cost_nano_usd is None:
                raise SystemExit(f"the cost of {asked.question_id} is unknown")
            rights = _right(base, asked.answers), _right(guide, asked.answers)
            pairs.append(Pair(*rights, base.cost_nano_usd, guide.cost_nano_usd, doubt))
    return pairs


def _right(step: Step, gold: tuple[str, ...]) -> bool:
    return any(exact_match(candidate.text, gold) for candidate in step.candidates)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=130)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    pairs = run(options.questions, options.seed)
    n = len(pairs)
    base, guide = sum(p.base_right for p in pairs) / n, sum(p.guide_right for p in pairs) / n
    base_cost, guide_cost = sum(p.base_nano_usd for p in pairs), sum(p.guide_nano_usd for p in pairs)
    print(f"{n} questions; base only {base:.1%} at {base_cost / guide_cost:.3f} × guide only; guide only {guide:.1%}")
    print("threshold  accuracy  × guide only  coin at that cost")
    for threshold in THRESHOLDS:
        climbs = [p for p in pairs if p.doubt >= threshold]
        right = sum(p.guide_right if p.doubt >= threshold else p.base_right for p in pairs) / n
        cost = base_cost + sum(p.guide_nano_usd for p in climbs)
        coin = base + (guide - base) * (cost - base_cost) / (guide_cost - base_cost)
        print(f"{threshold:9.2f}  {right:8.1%}  {cost / guide_cost:12.3f}  {coin:8.1%}")


if __name__ == "__main__":
    main()
