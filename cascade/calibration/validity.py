"""Whether a certificate holds with a configuration, and whether audits can watch it as the configuration asks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cascade.calibration.fingerprint import differences, made_for
from cascade.config import CascadeConfig
from cascade.config.schema import GuaranteeConfig
from cascade.errors import UsageError
from cascade.guarantees.base import get
from cascade.guarantees.certificate import UNWATCHED, shortfalls
from cascade.strategies.prompts import Prompts
from cascade.types import Certificate


def voids(config: CascadeConfig, certificate: Certificate, templates: Prompts | None = None) -> Iterator[str]:
    """Yield why a certificate does not hold with a configuration, or promises less than it asks for.

    `templates` are the prompts in service; by default those that the configuration names, as they are on the disk.
    """
    yield from differences(certificate.made_for, made_for(config, templates))
    asked = config.guarantee
    if asked is None:
        return
    try:
        wanted = asked.wanted(certificate.kind, certificate.alpha, certificate.delta, certificate.budget_nano_usd)
    except UsageError:  # what is asked for and what the certificate has make no guarantee together
        yield f"it promises {certificate.kind}, and {asked.kind or 'a budget'} is asked for"
        return
    yield from shortfalls(certificate, wanted)
    if asked.kind is None and asked.alpha is not None and certificate.alpha is None:
        yield f"its alpha is none, and {asked.alpha:g} is asked for"


def watch_problems(wanted: GuaranteeConfig, certificates: Sequence[Certificate]) -> Iterator[str]:
    """Yield what of the watching that a configuration asks for cannot be done with these certificates."""
    for kind in dict.fromkeys(one.kind for one in certificates):
        if wanted.audit is not None and not get(kind).monitored:
            yield f"guarantee.audit: audits cost money and would not count: {kind} is no promise on single questions"
        if "monitor" in wanted.model_fields_set and not get(kind).monitored:
            yield f"guarantee.monitor: audits cannot watch {kind}, which is no promise on single questions"
        if wanted.online is not None and not get(kind).followed:
            yield f"guarantee.online: {kind} does not fall with the threshold, so no threshold can follow it"
    if "monitor" in wanted.model_fields_set and certificates and all(one.pool for one in certificates):
        yield f"guarantee.monitor: {UNWATCHED}"
