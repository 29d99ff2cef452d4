"""What is reported of a request: to its client, as headers or in full, and to Prometheus, as counts."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from cascade.budget.caps import Account, label
from cascade.budget.charges import failed_call, paid_call
from cascade.engine import BROKEN_OFF
from cascade.errors import HistoryRefusedError, ProviderError, StoreError
from cascade.money import Price, usd
from cascade.providers.guard import Guard
from cascade.resilience.health import CALLER
from cascade.types import Answer, Completion, Request

if TYPE_CHECKING:
    from cascade.runtime import Runtime

_LONGEST_VALUE = 1_000
"""The most characters of a header's value; longer values are cut. No known model name, or list of fields, is longer."""


class Receipt(NamedTuple):
    """The outcome of a request.

    Attributes:
        served_by: the model whose message is served; None if nothing is served.
        models: the models that were asked, in order; empty while that is unknown.
        cost_nano_usd: the cost of all calls; None if unknown.
        certificate: the id of the certificate that covers the answer.
        uncovered: why no certificate covers the answer, where the policy has one for other requests.
        broken_off: why the cascade ended before its policy did ("budget", "deadline", "provider error"); else None.
        mode: the cascade's mode, if it has modes; "void" or "unknown" where the guide serves for want of one.
        failing: the stores that did not answer when the response began.
        unsent: the fields of the request that at least one model was not sent, since its provider does not know them.
        faulty: the models whose messages had a fault, one for each such message.
        replaced: the models that another one replaced, one for each such call.
        silent: the models whose replies lacked the requested log-probs, one for each such reply.
        skipped: the models that were not asked, having refused the conversation before, one for each such call.
        answered: the models that replied, in order.
    """

    trace_id: str
    served_by: str | None = None
    models: tuple[str, ...] = ()
    cost_nano_usd: int | None = None
    certificate: str | None = None
    uncovered: str | None = None
    broken_off: str | None = None
    mode: str | None = None
    failing: tuple[str, ...] = ()
    unsent: tuple[str, ...] = ()
    faulty: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    answered: tuple[str, ...] = ()

    def of(self, answer: Answer) -> Receipt:
        """Return the receipt of an answer; this one has what was known before it."""
        served, calls = answer.served, answer.calls
        return self._replace(
            served_by=None if served is None else served[0].model,
            models=tuple(dict.fromkeys([call.request.model for call in calls])),
            cost_nano_usd=answer.cost_nano_usd,
            certificate=None if answer.certificate is None else answer.certificate.id,
            uncovered=answer.uncovered or self.uncovered,
            broken_off=answer.stopped if answer.stopped in BROKEN_OFF else None,
            faulty=tuple([call.request.model for call in calls if call.completion and call.completion.faults]),
            replaced=tuple([call.request.instead_of for call in calls if call.completion and call.request.instead_of]),
            silent=tuple([call.request.model for call in calls if call.lacks_logprobs]),
            skipped=tuple([call.request.model for call in calls if call.failed_with == HistoryRefusedError.__name__]),
            answered=tuple(dict.fromkeys([call.request.model for call in calls if call.completion])),
        )

    def headers(self) -> list[tuple[str, str]]:
        """Return the response headers, without unknown values."""
        values = {
            "served-by": self.served_by,
            "asked": ", ".join(self.models) or None,
            "cost-usd": _dollars(self.cost_nano_usd),
            "certificate": self.certificate,
            "uncovered": self.uncovered,
            "broken-off": self.broken_off,
            "trace-id": self.trace_id,
            "mode": self.mode,
            "stores-failing": ", ".join(self.failing) or None,
            "fields-not-sent": ", ".join(self.unsent) or None,
        }
        return [(f"x-cascade-{name}", header_value(value)) for name, value in values.items() if value is not None]

    def extension(self, answer: Answer | None) -> dict[str, Any]:
        """Return the field `cascade` of a response: the receipt, and the steps of the answer.

        It contains no candidates' texts: text that is not served does not leave the server.
        """
        fields: dict[str, Any] = {
            "trace_id": self.trace_id,
            "summary": f"{' and '.join(self.answered)} answered; {self.served_by} is served",
            "served_by": self.served_by,
            "asked": self.models,
            "cost_usd": _dollars(self.cost_nano_usd),
            "certificate": self.certificate,
        }
        if answer is None:
            return fields
        steps = [
            {
                "step": step.number,
                "models": [call.request.model for call in step.calls],
                "cost_usd": _dollars(step.cost_nano_usd),
                "decision": step.reason,
            }
            for step in answer.steps
        ]
        return fields | {"steps": steps, "stopped": answer.stopped, "level": answer.level, "warnings": answer.warnings}


def _dollars(nano_usd: int | None) -> str | None:
    """Return an exact amount in USD as a decimal number, without an exponent."""
    return None if nano_usd is None else f"{usd(nano_usd):f}"


def header_value(text: str) -> str:
    r"""Return a text as a header's value: printable ASCII on one line, anything else a question mark.

    >>> header_value("gpt\r\nset-cookie: a=b"), header_value("modèle")
    ('gpt??set-cookie: a=b', 'mod?le')
    """
    cut = text[:_LONGEST_VALUE]
    plain = cut.isascii() and cut.isprintable()  # as nearly always
    return cut if plain else "".join([char if " " <= char <= "~" else "?" for char in cut])


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ERROR = 400
_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_LEFT = (asyncio.CancelledError, GeneratorExit)
_LAG_EVERY_S = 0.25
_STORE_S = 1.0
"""The longest wait of a scrape for the store of the budgets; without an answer the balances are left out."""
_OF_ACCOUNTS = {
    "cap": "The cap of an account.",
    "spent": "What is booked on an account.",
    "held": "What calls under way may cost an account.",
}
_TALLIES = {
    "faulty": ("faulty_messages_total", "model", "Messages of a model that had a fault."),
    "replaced": ("replaced_calls_total", "model", "Calls that another model answered."),
    "silent": ("missing_logprobs_total", "model", "Replies without the log-probs asked for."),
    "skipped": ("skipped_calls_total", "model", "Calls not made, as the model had refused the conversation."),
    "broken_off": ("broken_off_total", "by", "Requests served before the policy had enough."),
}
"""What is counted by name: by the receipt's field the metric, its label and its help."""


class Histogram:
    """How many durations were at most so long."""

    def __init__(self) -> None:
        self._buckets, self._total_s = [0] * (len(_BOUNDS_S) + 1), 0.0

    def observe(self, seconds: float) -> None:
        """Count a duration."""
        self._buckets[bisect_left(_BOUNDS_S, seconds)] += 1
        self._total_s += seconds

    def lines(self, name: str, labels: Mapping[str, str]) -> Iterator[str]:
        """Yield its samples in Prometheus' text form."""
        below = [*accumulate(self._buckets)]  # each bucket counts those before it, too
        for bound, count in zip([*(f"{bound:g}" for bound in _BOUNDS_S), "+Inf"], below, strict=True):
            yield f"cascade_{name}_bucket{_labels({**labels, 'le': bound})} {count}"
        yield f"cascade_{name}_sum{_labels(labels)} {self._total_s:.6f}"
        yield f"cascade_{name}_count{_labels(labels)} {below[-1]}"


class Metrics:
    """Counts of a cascade since the process began. Only one event loop writes them.

    Labels come only from the configuration, from statuses and from classes of errors.
    """

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._tallies: dict[str, Counter[str]] = {name: Counter() for name in _TALLIES}
        self._seconds, self.first_text, self._lag = Histogram(), Histogram(), Histogram()
        self._key_costs: Counter[str] = Counter()
        self._unknown_costs = 0
        self._calls: defaultdict[str, Histogram] = defaultdict(Histogram)
        self._errors: Counter[tuple[str, str]] = Counter()
        self._tokens: Counter[tuple[str, str]] = Counter()
        self._unknown: Counter[str] = Counter()
        self.retried, self.tried = Counter[str](), Counter[tuple[str, str, str]]()  # guards count them
        self._reading: asyncio.Task[Mapping[str, tuple[int, Account]]] | None = None

    def count(self, model: str, status: int, duration_s: float, receipt: Receipt | None = None) -> None:
        """Count a request that has ended.

        `model` is the name that was asked for, "" if the server has no such model; the status is 499 if the
        client hung up.
        """
        self._requests[model, "" if receipt is None else receipt.served_by or "", status] += 1
        self._seconds.observe(duration_s)
        if receipt is None:
            return
        for field, tally in self._tallies.items():
            if names := getattr(receipt, field):
                tally.update((names,) if isinstance(names, str) else names)
        self._unknown_costs += receipt.cost_nano_usd is None

    @property
    def unserved(self) -> int:
        """How many requests ended without an answer."""
        return sum(count for (_, _, status), count in self._requests.items() if status >= _ERROR)

    def count_call(
        self,
        request: Request,
        seconds: float,
        reply: Completion | None,
        error: BaseException | None,
        price: Price | None,
    ) -> None:
        """Count a call that has ended, with its retries, by its reply or by its error."""
        call = None if reply is None else paid_call(request, reply, price)
        if call is None and isinstance(error, ProviderError):
            call = failed_call(request, error, price)
        self._key_costs[CALLER.get() or ""] += 0 if call is None else call.cost_nano_usd or 0  # only what is known
        model = request.model
        self._calls[model].observe(seconds)
        if error is not None:
            self._errors[model, "Cancelled" if isinstance(error, _LEFT) else type(error).__name__] += 1
        if reply is not None:
            usage = reply.usage
            for kind, tokens in (("input", usage.input_tokens), ("output", usage.output_tokens)):
                if tokens is None:
                    self._unknown[model] += 1
                else:
                    self._tokens[model, kind] += tokens

    async def watch_loop(
        self,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Measure for ever how late the event loop wakes a task."""
        while True:
            due_s = clock() + _LAG_EVERY_S
            await sleep(_LAG_EVERY_S)
            self._lag.observe(max(0.0, clock() - due_s))

    async def text(self, runtime: Runtime, alarm: str | None = None) -> str:
        """Return all counts, and the state of alarm, stores, breakers and caps, in Prometheus' text form.

        `alarm` is that of the modes.
        """
        guards, balances = runtime.guards, await self._balances(runtime)
        withdrawn = int((alarm or runtime.alarm) is not None)
        unknown, retried = ({name: counts[name] for name in guards} for counts in (self._unknown, self.retried))
        whys = {} if runtime.service is None else runtime.service.monitors.uncovered  # none is a client's words
        return "".join([
            family("requests_total", "Requests that have ended.", self._requests, "model", "served_by", "status"),
            family("request_seconds", "Time of a whole request.", self._seconds),
            family("first_text_seconds", "Time to a stream's first text.", self.first_text),
            family("cost_usd_total", "Known cost of all calls, also for drawn requests.", self._key_costs.total()),
            family("key_cost_usd_total", "The same, by the key of the request.", self._key_costs, "key"),
            family("unknown_costs_total", "Requests of unknown cost.", self._unknown_costs),
            *(family(name, help_, self._tallies[field], by) for field, (name, by, help_) in _TALLIES.items()),
            family("alarm", "1: audits, canaries or a changed model withdrew a certificate.", withdrawn),
            _of_stores(runtime),
            family("uncovered_total", "Answers without a certificate, by the reason.", whys, "why"),
            family("call_seconds", "Time of a call to a model, with its retries.", self._calls, "model"),
            family("loop_lag_seconds", "How late the event loop wakes a task.", self._lag),
            family("call_errors_total", "Calls that failed after their retries.", self._errors, "model", "error"),
            family("tokens_total", "Tokens that providers reported.", self._tokens, "model", "kind"),
            family("unknown_tokens_total", "Counts of tokens that a reply lacked.", unknown, "model"),
            family("retries_total", "Calls that were made again.", retried, "model"),
            _deployments(guards),
            *(family(f"budget_{kind}_usd", help_, {label(name): at[place] for name, at in balances.items()}, "account")
              for place, (kind, help_) in enumerate(_OF_ACCOUNTS.items()) if balances),
        ])  # fmt: skip

    async def _balances(self, runtime: Runtime) -> Mapping[str, tuple[int, int, int]]:
        """Return of each account what `_OF_ACCOUNTS` names; nothing while the store does not answer.

        One reading is under way.
        """
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(asyncio.to_thread(runtime.balances))
        await asyncio.wait([self._reading], timeout=_STORE_S)
        with suppress(StoreError, asyncio.InvalidStateError):
            return {name: (cap, stands.spent, stands.held) for name, (cap, stands) in self._reading.result().items()}
        return {}


def _deployments(guards: Mapping[str, Guard]) -> str:
    """Return the state of the circuits of models and of their deployments, and the tries at these."""
    models, sites, tries = dict[str, int](), dict[tuple[str, str], int](), dict[tuple[str, str, str], int]()
    for model, guard in guards.items():
        opened = {at: int(circuit is not None and circuit.open) for at, circuit in guard.circuits(model).items()}
        models[model] = int(all(opened.values()))
        sites |= {(model, at): broke for at, broke in opened.items() if at}
        tries |= {place: count for place, count in guard.tried.items() if place[0] == model}
    text = family("breaker_open", "1: the model is not asked, having failed often, at any deployment.", models, "model")
    text += family(
        "deployment_open", "1: the deployment is not asked, having failed often.", sites, "model", "deployment"
    )
    labels = "model", "deployment", "outcome"
    return text + family("deployment_tries_total", "Tries of calls at a deployment, by the outcome.", tries, *labels)


def _of_stores(runtime: Runtime) -> str:
    """Return the counts of traces, of stores that failed requests, and of calls that no ledger allowed."""
    failures, failing = {name: link.failures for name, link in runtime.links.items()}, runtime.failing_stores
    now = {name: int(name in failing) for name in (*failures, *(("traces",) if runtime.traces else ()))}
    text = family("store_failures_total", "Calls to a store that failed or were late.", failures, "store")
    text += family("store_failing", "1: the store does not answer.", now, "store")
    if (traces := runtime.traces) is not None:
        text += family("traces_written_total", "Answers in the traces.", traces.counts.written)
        text += family("traces_lost_total", "Answers that could not be recorded.", traces.counts.lost)
        text += family("traces_waiting", "Answers that wait for the store.", traces.counts.waiting)
    bookings = runtime.bookings
    if bookings is None:
        return text
    text += family("budget_unasked_total", "Calls made without the budget's store.", bookings.allowed)
    text += family("budget_waiting", "Costs that wait for the budget's store.", bookings.waiting)
    return text + family("budget_lost_usd_total", "Costs that were never booked.", bookings.lost_nano_usd)


def family(
    name: str,
    help_: str,
    samples: Mapping[Any, float | str] | Mapping[Any, Histogram] | Histogram | float | str,
    *labels: str,
) -> str:
    r"""Return one metric in Prometheus' text form: its only value, or its values by their labels.

    Amounts in USD are given in nano-dollars. What is called a total is a counter; seconds are a histogram.

    >>> family("up", "Up.", 1)
    '# HELP cascade_up Up.\n# TYPE cascade_up gauge\ncascade_up 1\n'
    >>> family("cost_usd_total", "Cost.", {("a", "b"): 5 * 10**8}, "key", "model").splitlines()[-1]
    'cascade_cost_usd_total{key="a",model="b"} 0.500000000'
    """
    listed = dict(sorted(samples.items())) if isinstance(samples, Mapping) else {(): samples}
    kind = {"total": "counter", "seconds": "histogram"}.get(name.rpartition("_")[2], "gauge")
    lines = [f"# HELP cascade_{name} {help_}", f"# TYPE cascade_{name} {kind}"]
    for key, value in listed.items():
        named = dict(zip(labels, map(str, key if isinstance(key, tuple) else (key,)), strict=True))
        if isinstance(value, Histogram):
            lines += value.lines(name, named)
        else:
            amount = f"{usd(value):f}" if "usd" in name and isinstance(value, int) else value
            lines.append(f"cascade_{name}{_labels(named)} {amount}")
    return "\n".join([*lines, ""])


def _labels(labels: Mapping[str, str]) -> str:
    r"""Return labels in the form that follows a metric's name.

    >>> _labels({"model": 'a"b'}), _labels({})
    ('{model="a\\"b"}', '')
    """
    escapes = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
    listed = ",".join(f'{name}="{value.translate(escapes)}"' for name, value in labels.items())
    return f"{{{listed}}}" if listed else ""
