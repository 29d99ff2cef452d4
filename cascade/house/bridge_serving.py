"""A bridge to serving, which reads the old certificate and directory: gone when it reads a `Certificate`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from cascade.conformal.scope import LENGTHS
from cascade.house.certificate import Certificate
from cascade.house.directory import PolicyDirectory
from cascade.house.live import STRICTEST, Live, places_of
from cascade.policies.artifact import PolicyArtifact, Seen
from cascade.policies.levels import Level, Levels, in_order
from cascade.types import Certificate as Before

if TYPE_CHECKING:
    from cascade.config import CascadeConfig


class Served(NamedTuple):
    """The policy of a directory at its certified thresholds, and its certificates as serving reads them."""

    live: Live
    artifact: PolicyArtifact


def served(read: PolicyDirectory) -> tuple[Levels | None, Mapping[str, Served]]:
    """Return the levels of a policy directory, and what each serves by name; without levels one by the name ""."""
    certificates = read.certificates
    risks = {name: each.promise.risk for name, each in certificates.items() if each.covers == "level"}
    if not risks:
        points = {name: each.point for name, each in certificates.items() if each.covers == "segment"}
        point = certificates[""].point if "" in certificates else STRICTEST
        return None, {"": _served(read, Live(read.policy, read.plan, point, points), certificates.values())}
    levels = in_order(risks, {name: Level(name, risk, read.policy_sha256) for name, risk in risks.items()})
    default = next(name for name, risk in risks.items() if read.promise is not None and risk == read.promise.risk)
    each = {
        name: _served(read, Live(read.policy, read.plan, certificates[name].point), [certificates[name]])
        for name in levels
    }
    return Levels(default, levels), each


def _served(read: PolicyDirectory, live: Live, certificates: Iterable[Certificate]) -> Served:
    takes = live.takes
    settings = {"kind": read.policy.kind, **({"takes": "reference"} if takes is not None and takes.reference else {})}
    seen, each = read.requests, tuple(map(before, certificates))
    return Served(
        live, PolicyArtifact(settings, Seen(seen.fitted, seen.chose), certificates=each, questions=seen.certified)
    )


def problems(config: CascadeConfig, live: Live) -> Iterator[str]:
    """Yield why the configured strategy cannot serve a policy."""
    strategy, takes, steps = config.strategy, live.takes, len(places_of(live.plan))
    if steps != strategy.horizon:
        yield f"policy: it is for a plan of {steps} steps, and the strategy has {strategy.horizon}"
    yield from (
        f"policy: no step of the strategy gives {name}"
        for name in live.reads
        if name not in {*strategy.given, *LENGTHS}
    )
    if takes is not None and takes.calls and not strategy.has_calls:
        yield f"policy: it decides before each call, and the {strategy.kind} strategy has no single calls"
    elif takes is not None and not (strategy.has_reference if takes.reference else strategy.has_parts or takes.calls):
        yield f"policy: it takes a part of the plan, and the {strategy.kind} strategy has no parts"


def before(certificate: Certificate) -> Before:
    """Return a certificate as serving reads it, under the same id."""
    promise = certificate.promise
    return Before(
        kind=promise.kind,
        alpha=promise.risk,
        n=certificate.n,
        calibration_id=certificate.id,
        delta=promise.delta,
        k=round(certificate.losses) + 1 if promise.delta is None else None,  # the rank of the threshold
        kappa=certificate.kappa,
        abstain_below=None if certificate.bar == STRICTEST.bar else certificate.bar,
        data_sha256=certificate.data_sha256,
        policy_sha256=certificate.policy_sha256,
        made_for=certificate.made_for,
        created=certificate.created,
        expires=certificate.expires,
        assumptions=certificate.assumptions,
        segment=certificate.segment,
        unit="group" if certificate.unit == "group" else "question",
        reference=certificate.reference,
        comparator=certificate.comparator,
    )
