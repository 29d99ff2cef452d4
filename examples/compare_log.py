"""Compare all methods on one log, and evaluate a policy of your own on it, exactly and without a model call.

    python examples/compare_log.py

The log here ships with the package, so it runs offline; `open_log("episodes.parquet")` reads a real one.
"""

import cascade


def main() -> None:
    """Print what each way to answer costs and loses, then how often several thresholds are right."""
    log = cascade.open_log("demo")
    print(cascade.compare(log, splits=5))
    for threshold in (0.1, 0.3, 0.6):
        report = cascade.evaluate(log, {"kind": "uala", "threshold": threshold}).reports[0]
        mean, low, high = report.document["figures"]["policy"]["right"]
        print(f"threshold {threshold}: right {mean:.3f} ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
