"""A bridge to serving, which reads the old certificate and directory: gone when it reads a `Certificate`."""

from __future__ import annotations

from cascade.config import CascadeConfig
from cascade.errors import ConfigError
from cascade.house.certificate import Certificate
from cascade.house.directory import PolicyDirectory
from cascade.house.live import STRICTEST, Live, places_of
from cascade.policies.artifact import PolicyArtifact
from cascade.types import Certificate as Before


def in_service(config: CascadeConfig, directory: str) -> tuple[Live, PolicyArtifact]:
    """Return the policy of a directory at its certified thresholds, and its certificates as serving reads them.

    Raises:
        ConfigError: it cannot be read, or the configured strategy cannot serve it; lists every problem.
    """
    held = PolicyDirectory.read(directory)
    certificates = held.certificates
    points = {name: each.point for name, each in certificates.items() if each.covers == "segment"}
    live = Live(held.policy, held.plan, certificates[""].point if "" in certificates else STRICTEST, points)
    problems, strategy, takes = list[str](), config.strategy, live.takes
    steps = len(places_of(held.plan))
    if steps != strategy.horizon:
        problems.append(f"policy: it is for a plan of {steps} steps, and the strategy has {strategy.horizon}")
    problems += [f"policy: no step of the strategy gives {name}" for name in live.reads if name not in strategy.given]
    if takes is not None and not (strategy.has_reference if takes.reference else strategy.has_parts):
        problems.append(f"policy: it takes a part of the plan, and the {strategy.kind} strategy has no parts")
    if any(each.covers == "level" for each in certificates.values()):
        problems.append("policy: its certificates are of levels, which are not served yet")
    if problems:
        raise ConfigError(problems, directory)
    settings = {"kind": held.policy.kind, **({"takes": "reference"} if takes is not None and takes.reference else {})}
    return live, PolicyArtifact(settings, certificates=tuple(map(before, certificates.values())))


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
