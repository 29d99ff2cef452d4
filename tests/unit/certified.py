"""Policy directories with certificates that nothing was tested for: what serving reads, made with one call."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from cascade.conformal.certificate import Certificate
from cascade.conformal.promise import Promise
from cascade.policies.directory import PolicyDirectory
from cascade.policies.policy import Policy, Threshold, Uala
from cascade.table import Node

SHOWN = [{many: {"of": 50, "signals": {}} for many in ("1", "2")}] * 20
"""Counts of a log whose steps had one answer or two, and no signal in all of them."""


def rounds(many: int) -> tuple[Node, ...]:
    """Return the plan of rounds of base and guide."""
    return tuple([Node(f"round {t + 1} {source}", t) for t in range(many) for source in ("base", "guide")])


ROUNDS = rounds(3)
RUNGS = (Node("small", 0), Node("large", 1))
SURE = Threshold("reply_mean_logprob", -1.0, tie=None)


def certificate(
    kind: str = "coverage",
    risk: float = 0.1,
    confidence: float | None = None,
    segment: str | None = None,
    **fields: Any,
) -> Certificate:
    """Return a certificate: on coverage, of 99 requests, unless fields say otherwise."""
    given: dict[str, Any] = {"n": 99, "losses": 9.0, "kappa": 0.3, "data_sha256": "0" * 64, "policy_sha256": "1" * 64}
    given |= {"created": "2026-11-21", "level": None if confidence is None else 0.1}
    given |= {} if segment is None else {"covers": "segment", "name": segment}
    given |= fields
    given["made_for"] = {"shown": SHOWN, **given.get("made_for", {})}
    return Certificate(Promise(kind, risk, confidence), **given)


def directory(
    folder: Path, *certificates: Certificate, policy: Policy | None = None, default: str = "", many: int = 3
) -> str:
    """Write a policy directory and return its path: of many rounds, or of a ladder for another policy than UALA."""
    rule = Uala() if policy is None else policy
    promise = next((each.promise for each in certificates if each.name == default or not default), None)
    bare = PolicyDirectory(rounds(many) if policy is None else RUNGS, rule, promise)
    bare.certified(*(replace(each, policy_sha256=bare.policy_sha256) for each in certificates)).write(folder)
    return str(folder)
