"""The report on one request: the models that answered, the cost and the saving, as headers or in full."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from cascade.budget.charges import cost_of
from cascade.engine import BROKEN_OFF
from cascade.money import Price, usd
from cascade.types import Answer

_LONGEST_VALUE = 1_000
"""The most characters of a header's value; longer values are cut. No known model name, or list of fields, is longer."""


class Receipt(NamedTuple):
    """The outcome of a request.

    Attributes:
        trace_id: the id of the episode in the traces.
        served_by: the model whose message is served; None if nothing is served.
        cost_nano_usd: the cost of all calls; None if unknown.
        saved_nano_usd: an estimate: the cost of the guide alone, minus the cost of the cascade. It assumes that the
            guide would have read and written as many tokens as the model that is served. Below 0 if the cascade cost
            more. None if a price or a usage is unknown, or if no policy decided.
        certificate: the id of the certificate that covers the answer.
        faulty: the models whose messages had a fault, one for each such message.
        replaced: the models that another one replaced, one for each such call.
        broken_off: why the cascade ended before its policy did ("budget", "deadline", "provider error"); else None.
        silent: the models whose replies lacked the requested log-probs, one for each such reply.
        mode: the cascade's mode, if it has modes: "observe", "enforce", "fallback", or "killed".
        uncovered: why no certificate covers the answer, where the policy has one for other requests.
        unsent: the fields of the request that at least one model was not sent, since its provider does not know them.
    """

    trace_id: str
    served_by: str | None = None
    cost_nano_usd: int | None = None
    saved_nano_usd: int | None = None
    certificate: str | None = None
    faulty: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    broken_off: str | None = None
    mode: str | None = None
    silent: tuple[str, ...] = ()
    unsent: tuple[str, ...] = ()
    uncovered: str | None = None

    @classmethod
    def of(cls, answer: Answer, trace_id: str, guide: Price | None, *, cascaded: bool) -> Receipt:
        """Return the receipt of an answer.

        Args:
            answer: the answer to the request.
            trace_id: its id in the traces.
            guide: the price of the guide, None if it is unknown.
            cascaded: whether a policy decided who answers.
        """
        served, cost = answer.served, answer.cost_nano_usd
        alone = None
        if cascaded and served is not None and guide is not None and served[1].completion is not None:
            alone = cost_of(served[1].request, served[1].completion, guide).nano_usd
        return cls(
            trace_id,
            None if served is None else served[0].model,
            cost,
            None if alone is None or cost is None else alone - cost,
            None if answer.certificate is None else answer.certificate.id,
            tuple([call.request.model for call in answer.calls if call.completion and call.completion.faults]),
            tuple([one.request.instead_of for one in answer.calls if one.completion and one.request.instead_of]),
            answer.stopped if answer.stopped in BROKEN_OFF else None,
            uncovered=answer.uncovered,
            silent=tuple([call.request.model for call in answer.calls if call.lacks_logprobs]),
        )

    def headers(self) -> list[tuple[str, str]]:
        """Return the response headers, without unknown values."""
        known = {
            "served-by": self.served_by,
            "cost-usd": _dollars(self.cost_nano_usd),
            "saved-usd": _dollars(self.saved_nano_usd),
            "certificate": self.certificate,
            "uncovered": self.uncovered,
            "broken-off": self.broken_off,
            "trace-id": self.trace_id,
            "mode": self.mode,
            "fields-not-sent": ", ".join(self.unsent) or None,
        }
        return [(f"x-cascade-{name}", header_value(value)) for name, value in known.items() if value is not None]

    def extension(self, answer: Answer | None) -> dict[str, Any]:
        """Return the field `cascade` of a response: the receipt, and the steps of the answer.

        It contains no candidates' texts: text that is not served does not leave the server.
        """
        shown: dict[str, Any] = {
            "trace_id": self.trace_id,
            "served_by": self.served_by,
            "cost_usd": _dollars(self.cost_nano_usd),
            "saved_usd": _dollars(self.saved_nano_usd),
            "certificate": self.certificate,
        }
        if answer is None:
            return shown
        steps = [
            {
                "step": step.number,
                "models": [call.request.model for call in step.calls],
                "cost_usd": _dollars(step.cost_nano_usd),
                "decision": step.reason,
            }
            for step in answer.steps
        ]
        return shown | {"steps": steps, "stopped": answer.stopped, "level": answer.level, "warnings": answer.warnings}


def _dollars(nano_usd: int | None) -> str | None:
    """Return an exact amount in USD as a decimal number, without an exponent."""
    return None if nano_usd is None else f"{usd(nano_usd):f}"


def header_value(text: str) -> str:
    r"""Return a text as a header's value: printable ASCII on one line, anything else a question mark.

    >>> header_value("gpt\r\nset-cookie: a=b"), header_value("modèle")
    ('gpt??set-cookie: a=b', 'mod?le')
    """
    return "".join([char if " " <= char <= "~" else "?" for char in text[:_LONGEST_VALUE]])


def flag(headers: Mapping[str, str], name: str) -> bool:
    """Return whether a request's header is set: "1", "true", "yes" or "on".

    >>> flag({"x-cascade-explain": "1"}, "x-cascade-explain"), flag({}, "x-cascade-explain")
    (True, False)
    """
    return headers.get(name, "").strip().lower() in {"1", "true", "yes", "on"}
