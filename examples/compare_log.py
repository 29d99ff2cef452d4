"""Compare every way to answer on one log, and judge a policy of your own on it: exact, no model is asked.

    python examples/compare_log.py

The log here is a simulated world, so it runs offline; `open_log("episodes.parquet")` reads a real one.
"""

import cascade


def main() -> None:
    """Print what the simple ways cost and cover, then one threshold after another."""
    log = cascade.open_log("simulated:mmlu/llama-2-7b,500")
    print(cascade.compare(log, alpha=0.1, splits=5))
    for threshold in (0.1, 0.3, 0.6):
        found = cascade.evaluate(log, f"{{kind: threshold, threshold: {threshold}}}").datasets[0]
        low, high = found.intervals["coverage"]
        print(f"threshold {threshold}: coverage {found.mean.coverage:.3f} ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
