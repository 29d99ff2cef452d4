"""Counts of served requests, in Prometheus' text form. Labels come only from the configuration."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import accumulate

from cascade.money import usd
from cascade.records.writer import TraceWriter
from cascade.server.receipt import Receipt

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ERROR = 400
_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_TALLIES = {
    "faulty": ("faulty_messages_total", "model", "Messages of a model that had a fault."),
    "replaced": ("replaced_calls_total", "model", "Calls that another model answered."),
    "silent": ("missing_logprobs_total", "model", "Replies without the log-probs asked for."),
    "broken_off": ("broken_off_total", "by", "Requests served before the policy had enough."),
}
"""What is counted by name: by the receipt's field the metric, its label and its help."""


class Metrics:
    """Counts since the process began. Only one event loop writes them."""

    def __init__(self) -> None:
        self.in_flight = 0
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._tallies: dict[str, Counter[str]] = {name: Counter() for name in _TALLIES}
        self._buckets = [0] * (len(_BOUNDS_S) + 1)
        self._seconds = 0.0
        self._first_text_s = 0.0
        self._streams = 0
        self._cost_nano_usd = self._saved_nano_usd = self._unknown_costs = 0

    def count(self, model: str, status: int, seconds: float, receipt: Receipt | None = None) -> None:
        """Count a request that has ended.

        Args:
            model: the name that was asked for; "" if the server has no such model.
            status: HTTP's; 499 if the client hung up.
            seconds: how long it took.
            receipt: the outcome, if it was answered.
        """
        served = "" if receipt is None else receipt.served_by or ""
        self._requests[model, served, status] += 1
        self._buckets[bisect_left(_BOUNDS_S, seconds)] += 1
        self._seconds += seconds
        if receipt is None:
            return
        for name, tally in self._tallies.items():
            found = getattr(receipt, name)
            tally.update((found,) if isinstance(found, str) else found or ())
        self._unknown_costs += receipt.cost_nano_usd is None
        self._cost_nano_usd += receipt.cost_nano_usd or 0
        self._saved_nano_usd += receipt.saved_nano_usd or 0

    @property
    def unserved(self) -> int:
        """How many requests ended without an answer."""
        return sum(count for (_, _, status), count in self._requests.items() if status >= _ERROR)

    def first_text(self, seconds: float) -> None:
        """Count a stream, with the seconds until its first text."""
        self._streams += 1
        self._first_text_s += seconds

    def text(self, *, alarm: bool) -> str:
        """Return all counts. `alarm` says whether audits withdrew a certificate."""
        total = sum(self._buckets)
        requests = [
            ({"model": model, "served_by": served, "status": str(status)}, count)
            for (model, served, status), count in sorted(self._requests.items())
        ]
        bounds = [*(f"{bound:g}" for bound in _BOUNDS_S), "+Inf"]  # each bucket counts those before it, too
        seconds = [({"le": le}, count) for le, count in zip(bounds, accumulate(self._buckets), strict=True)]
        tallies = list[str]()
        for of, (family, label, says) in _TALLIES.items():
            counted = [({label: name}, count) for name, count in sorted(self._tallies[of].items())]
            tallies += _family(family, "counter", says, counted)
        lines = [
            *_family("requests_total", "counter", "Requests that have ended.", requests),
            *_family("request_seconds", "histogram", "Time of a whole request.", seconds, suffix="_bucket"),
            f"cascade_request_seconds_sum {self._seconds:.6f}",
            f"cascade_request_seconds_count {total}",
            *_family("first_text_seconds", "summary", "Time to a stream's first text.", []),
            f"cascade_first_text_seconds_sum {self._first_text_s:.6f}",
            f"cascade_first_text_seconds_count {self._streams}",
            *_family("in_flight", "gauge", "Requests under way.", [({}, self.in_flight)]),
            *_family("cost_usd_total", "counter", "Known cost of all calls.", [({}, f"{usd(self._cost_nano_usd):f}")]),
            *_family("unknown_costs_total", "counter", "Requests of unknown cost.", [({}, self._unknown_costs)]),
            *_family("saved_usd", "gauge", "Saved against the guide alone.", [({}, f"{usd(self._saved_nano_usd):f}")]),
            *tallies,
            *_family("alarm", "gauge", "1: audits withdrew a certificate.", [({}, int(alarm))]),
        ]
        return "\n".join(lines) + "\n"


def of_traces(writer: TraceWriter) -> str:
    """Return the counts of the answers that were recorded."""
    counts = writer.counts
    lines = [
        *_family("traces_written_total", "counter", "Answers in the traces.", [({}, counts.written)]),
        *_family("traces_lost_total", "counter", "Answers that could not be recorded.", [({}, counts.lost)]),
        *_family("traces_waiting", "gauge", "Answers that wait for the store.", [({}, counts.waiting)]),
        *_family("traces_failing", "gauge", "1: the last write failed.", [({}, int(writer.problem is not None))]),
    ]
    return "\n".join(lines) + "\n"


def _family(
    name: str, kind: str, says: str, samples: Iterable[tuple[Mapping[str, str], object]], suffix: str = ""
) -> list[str]:
    """Return the lines of one metric."""
    full = f"cascade_{name}"
    head = [f"# HELP {full} {says}", f"# TYPE {full} {kind}"]
    return head + [f"{full}{suffix}{_labels(labels)} {value}" for labels, value in samples]


def _labels(labels: Mapping[str, str]) -> str:
    r"""Return labels in the form that follows a metric's name.

    >>> _labels({"model": 'a"b'}), _labels({})
    ('{model="a\\"b"}', '')
    """
    escapes = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
    listed = ",".join(f'{name}="{value.translate(escapes)}"' for name, value in labels.items())
    return f"{{{listed}}}" if listed else ""
