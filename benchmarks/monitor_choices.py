"""What the constants of the monitor are worth, and two other designs: audits from a jump of the miss rate to the alarm.

    python benchmarks/monitor_choices.py                  about ten minutes of one core
    python benchmarks/monitor_choices.py --streams 40     a minute

The jump is that of `drift.py`, from 10 % to 25 %, at once or after 500 audits; n calibration questions, no δ. Each
cell: within how many audits half of the streams alarm; 95 % of them.

Install what it needs, in the clone: pip install -c constraints.txt -e ".[report]"
"""

from __future__ import annotations

import extras  # noqa: F401 - before the packages that it speaks of

import argparse
import math
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import drift
import numpy as np

import cascade.conformal.monitor as monitor_module
from cascade.conformal.binomial import upper_bound
from cascade.conformal.monitor import Monitor

CHOICES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("as it is", {"_POWER": 0.2}),
    ("p = 0.1", {"_POWER": 0.1}),
    ("p = 0.3", {"_POWER": 0.3}),
    ("p = 0.4", {"_POWER": 0.4}),
    ("4 steps of h", {"_HURDLES": 4}),
    ("16 steps of h", {"_HURDLES": 16}),
    ("odds 2, 4", {"_ODDS": (2.0, 4.0)}),
    ("odds 1.25, 1.5, 2, 2.5, 3, 4, 6, 9", {"_ODDS": (1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 9.0)}),
)


def _one_bound(n: int) -> Monitor:
    """Return a monitor that takes the worst of 97.5 % of calibrations for granted, and alarms at twice the evidence."""
    k = drift.watched("exchangeable", n).k
    return Monitor.start(alpha=upper_bound(k - 1, n, drift.LEVEL / 2), delta=drift.LEVEL / 2, level=drift.LEVEL / 2)


def _urn_alone(monitor: Monitor) -> float:
    """Return the logarithm of Q against the urn's own predictions: a martingale where there are no ties."""
    urn = monitor._log_urn  # noqa: SLF001 - the alternative to it is measured here
    logs = np.logaddexp.reduce(monitor.joint) - math.log(len(monitor.joint))
    return float(np.logaddexp(logs, urn - math.log(math.log2(monitor.audits + 2)))) - urn


def choice_lines(streams: int) -> Iterator[str]:
    """Yield the table of delays under other constants."""
    yield "| constants | n = 50, jump at once | n = 50, after 500 | n = 200, at once | n = 200, after 500 |"
    yield "|---|---|---|---|---|"
    for name, constants in CHOICES:
        with mock.patch.multiple(monitor_module, **constants):
            monitor_module._hurdles.cache_clear()  # noqa: SLF001 - the constants are not among its arguments
            yield _choice(name, lambda n: drift.watched("exchangeable", n), streams)
    monitor_module._hurdles.cache_clear()  # noqa: SLF001 - as above
    yield _choice("one bound on the rate, half the level for it", _one_bound, streams)
    with mock.patch.object(Monitor, "_log_e_value", property(_urn_alone)):
        yield _choice("the urn alone (not proven with ties)", lambda n: drift.watched("exchangeable", n), streams)


def _choice(name: str, start: Callable[[int], Monitor], streams: int) -> str:
    rows = [drift.delay(start(n), quiet, streams) for n in (50, 200) for quiet in (0, 500)]
    return f"| {name} | " + " | ".join(f"{drift.shown(row.median)}; {drift.shown(row.late)}" for row in rows) + " |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=400)
    for line in choice_lines(parser.parse_args().streams):
        print(line, flush=True)


if __name__ == "__main__":
    main()
