"""Compare all methods on one log, and evaluate a policy of your own on it, exactly and without a model call.

    python examples/compare_log.py

The log here ships with the package, so it runs offline; `open_log("episodes.parquet")` reads a real one.
"""

import cascade


def main() -> None:
    """Print what each way to answer costs and loses, then the coverage of several thresholds."""
    log = cascade.open_log("demo")
    print(cascade.compare(log, splits=5))
    for threshold in (0.1, 0.3, 0.6):
        found = cascade.evaluate(log, f"{{kind: threshold, threshold: {threshold}}}").datasets[0]
        low, high = found.intervals["coverage"]
        print(f"threshold {threshold}: coverage {found.mean.coverage:.3f} ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
