"""`cascade monitor`: whether a certificate still holds on audited questions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cascade.api.monitoring import MonitoringResult, monitor
from cascade.cli.main import command
from cascade.errors import NotCertifiedError


def _refuse_alarm(found: MonitoringResult, given: Mapping[str, Any]) -> None:
    if found.alarmed:
        raise NotCertifiedError(
            f"{found.alarmed} of {found.watched} certificates no longer hold by these audits. Serve with another "
            f"policy, and calibrate on newer questions: cascade calibrate EPISODES --policy {given['directory']}"
        )


monitor_log = command(monitor, "cascade monitor policy audits.jsonl", after=_refuse_alarm)
