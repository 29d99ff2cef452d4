"""What the benchmarks of fitted policies have in common: the logs, the splits, the opponents, the figures."""
