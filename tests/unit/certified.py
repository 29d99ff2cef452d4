"""Policy directories with certificates that nothing was calibrated for: what serving reads, made with one call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cascade.guarantees.certificate import make
from cascade.policies.artifact import PolicyArtifact, write
from cascade.types import Certificate

INNER: Mapping[str, Any] = {"kind": "threshold", "keep": "both", "when": "uncertain", "threshold": 0.4}

SHOWN = [{many: {"of": 50, "signals": {}} for many in ("1", "2")}] * 20
"""Counts of a calibration whose steps had one answer or two, and no signal in all of them."""


def certificate(**fields: Any) -> Certificate:
    """Return a certificate without an id: on coverage, of 99 questions, unless fields say otherwise."""
    given: dict[str, Any] = {"kind": "coverage", "alpha": 0.1, "n": 99, "k": 10, "kappa": 0.3, "calibration_id": ""}
    given |= {"data_sha256": "0" * 64, "created": "2026-11-21"}
    found = Certificate(**(given | fields))
    return replace(found, made_for={"shown": SHOWN, **found.made_for})


def directory(folder: Path, *certificates: Certificate, policy: Mapping[str, Any] = INNER) -> str:
    """Write a policy directory and return its path."""
    made = PolicyArtifact(dict(policy))
    signed = [make(replace(one, policy_sha256=made.policy_sha256)) for one in certificates]
    write(folder, replace(made, certificates=tuple(signed)))
    return str(folder)
