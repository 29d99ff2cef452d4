"""Compare every way to answer on one log, and judge a policy of your own on it: exact, nothing is asked again.

    python examples/compare_log.py

The log here is a simulated world, so it runs offline; `open_log("episodes.parquet")` reads a real one.
"""

from cascade.evaluation.compare import compare
from cascade.evaluation.evaluate import evaluate
from cascade.evaluation.logs import open_log
from cascade.policies.threshold import ThresholdPolicy


def main() -> None:
    """Print what the simple ways cost and cover, then one threshold after another."""
    (table,) = open_log("simulated:mmlu/llama-2-7b,500").tables
    found = compare(table, alpha=0.1, count=5, seed=0)
    for row in found.rows:
        cost = "unknown" if row.mean.cost_usd is None else f"${row.mean.cost_usd * 1_000:.3f}"
        print(f"{row.policy:36} {cost:>8} per 1,000 questions, coverage {row.mean.coverage:.3f}")
    for threshold in (0.1, 0.3, 0.6):
        one = evaluate(table, ThresholdPolicy(threshold), resamples=200)
        low, high = one.intervals["coverage"]
        print(f"threshold {threshold}: coverage {one.mean.coverage:.3f} ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
