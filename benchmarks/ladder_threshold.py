"""Read the demo ladder's threshold off a log: the base answers, the guide where the base's own log-prob is low.

    python benchmarks/ladder_threshold.py [LOG]      the shipped demo log by default; a second

For each threshold on the mean log-prob of the base's reply: accuracy, cost beside guide only, and the accuracy that
tossing a coin between base only and guide only would have at that cost. Exact on the log: nothing is asked again.
"""

from __future__ import annotations

import argparse

import numpy as np

from cascade.evaluation.logs import DEMO, open_log

THRESHOLDS = (0.05, 0.08, 0.1, 0.12, 0.14, 0.16, 0.18, 0.2, 0.25, 0.3, 0.4)


def main() -> None:
    """Print the table of each data set in the log."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log", nargs="?", default=DEMO)
    for table in open_log(parser.parse_args().log).tables:
        base, guide = table.walks["base only"], table.walks["guide only"]
        both = guide.known
        n = int(both.sum())
        doubt = -table.signals["reply_mean_logprob"][both, 0]
        doubt[np.isnan(doubt) | ~base.known[both]] = np.inf
        base_cost, guide_cost = (walk.cost[both].sum() for walk in (base, guide))
        base_right, guide_right = (walk.right[both] & walk.known[both] for walk in (base, guide))
        share = base_cost / guide_cost
        print(f"{table.dataset}: {n} questions; base only {base_right.mean():.1%} at {share:.3f} x guide only")
        print(f"guide only {guide_right.mean():.1%}")
        print("threshold  accuracy  x guide only  coin at that cost  gain")
        for threshold in THRESHOLDS:
            climbs = doubt >= threshold
            right = np.where(climbs, guide_right, base_right).mean()
            cost = base_cost + guide.cost[both][climbs].sum()
            at = (cost - base_cost) / (guide_cost - base_cost) if guide_cost > base_cost else 0.0
            coin = base_right.mean() + (guide_right.mean() - base_right.mean()) * at
            print(f"{threshold:9.2f}  {right:8.1%}  {cost / guide_cost:12.3f}  {coin:17.1%}  {right - coin:+.1%}")


if __name__ == "__main__":
    main()
