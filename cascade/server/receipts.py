"""The receipt of a request: what its client is told, in headers or in full. `metrics` counts it."""

from __future__ import annotations

from typing import Any, NamedTuple

from cascade.engine import BROKEN_OFF
from cascade.errors import HistoryRefusedError
from cascade.money import usd
from cascade.types import Answer

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
        mode: the cascade's mode, if it has modes; "void" or "unknown" if the guide serves for lack of one.
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
        """Return the receipt of an answer; `self` has what was known before it."""
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
            "uncovered": self.uncovered,
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

    >>> header_value("gpt\r\nset-cookie: a=b"), header_value("modèle"), len(header_value("x" * 9_999)) <= 1_000
    ('gpt??set-cookie: a=b', 'mod?le', True)
    """
    cut = text[:_LONGEST_VALUE]
    plain = cut.isascii() and cut.isprintable()  # nearly always
    return cut if plain else "".join([char if " " <= char <= "~" else "?" for char in cut])
