"""`cascade verify`: checks a certificate against a log, without trusting the file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cascade.api.verifying import VerificationResult, verify
from cascade.cli.main import command
from cascade.errors import NotCertifiedError


def _refuse_failed(found: VerificationResult, _: Mapping[str, Any]) -> None:
    if not found.ok:
        raise NotCertifiedError(f"The certificate does not hold. What failed: {'; '.join(found.failed)}.")


verify_log = command(verify, "cascade verify policy episodes.parquet", after=_refuse_failed)
