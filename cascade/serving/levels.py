"""The certified policies in service: one, or one for each level of the policy directory.

Levels differ in their promises, so they share only the models, the strategy and the audit results (`monitors`). Each
level has its own certificate and threshold, and each certificate its own monitor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date

from cascade.checks import hint_at
from cascade.config import CascadeConfig
from cascade.config.policies import DirectoryConfig
from cascade.config.schema import GuaranteeConfig
from cascade.conformal.certificate import Certificate
from cascade.errors import NotCertifiedError, UsageError
from cascade.factory import build_policy, serving_of
from cascade.plans.base import Strategy
from cascade.policies.directory import PolicyDirectory
from cascade.serving.certified import CertifiedPolicy, today_utc
from cascade.serving.monitors import CertificateMonitors, ServiceStatus
from cascade.types import Answer


@dataclass(frozen=True, slots=True)
class ServingState:
    """The policies in service. The object is immutable; a reload replaces it.

    Attributes:
        default: the policy for questions without a level.
        strategy: the strategy of all levels.
        monitors: the audit results of all certificates since the orchestrator was made.
        levels: the risk of each level, the cheapest level first; empty for a policy without levels.
        by_name: the policy of each level.
    """

    default: CertifiedPolicy
    strategy: Strategy
    monitors: CertificateMonitors
    levels: Mapping[str, float] = field(default_factory=dict)
    by_name: Mapping[str, CertifiedPolicy] = field(default_factory=dict)

    def at(self, level: str) -> CertifiedPolicy:
        """Return the policy of a level. Raises UsageError if there is no such level."""
        if level in self.by_name:
            return self.by_name[level]
        listed = ", ".join(f"{name} (risk {risk:g})" for name, risk in self.levels.items())
        raise UsageError(f"There is no level {level!r}{hint_at(level, self.levels) or '.'} There is {listed}.")

    def of(self, answer: Answer) -> CertifiedPolicy:
        """Return the policy that gave an answer; the default policy for a level that no longer exists."""
        return self.default if answer.level is None else self.by_name.get(answer.level, self.default)

    @property
    def alarm(self) -> str | None:
        """A sentence about the audits that withdrew certificates of any level; None without an alarm."""
        if not self.by_name:
            return self.default.alarm
        alarms = {name: serving.alarm for name, serving in self.by_name.items()}
        return "; ".join(f"level {name}: {alarm}" for name, alarm in alarms.items() if alarm is not None) or None

    @property
    def status(self) -> ServiceStatus:
        """Counts of the questions answered since the orchestrator was made, at all levels."""
        return replace(self.monitors.status, alarm=self.alarm)

    @property
    def holding(self) -> tuple[tuple[Certificate, tuple[str, ...]], ...]:
        """The certificates of all levels, each with the reasons why it does not hold here today."""
        return tuple([each for serving in self.by_name.values() or [self.default] for each in serving.holding])


def in_service(
    config: CascadeConfig,
    strategy: Strategy,
    before: ServingState | None = None,
    *,
    today: Callable[[], date] = today_utc,
) -> ServingState:
    """Return a configuration's policy in service, with its certificates.

    Args:
        config: the configuration.
        strategy: the strategy that it describes.
        before: the previous state, whose audit results are kept.
        today: the clock.

    Raises:
        ConfigError, NotCertifiedError: as for `CertifiedPolicy`; nothing has changed then.
        UsageError: audits once raised an alarm about one of the certificates.
    """
    monitors = CertificateMonitors(config.guarantee or GuaranteeConfig()) if before is None else before.monitors
    if not isinstance(config.policy, DirectoryConfig):
        serving = CertifiedPolicy(config, strategy, build_policy(config), monitors=monitors, today=today)
        return ServingState(serving, strategy, monitors)
    read, by_name = PolicyDirectory.read(config.policy.path), dict[str, CertifiedPolicy]()
    for certificate in read.certificates.values():
        if certificate.id in monitors.withdrawn:
            raise UsageError(
                f"The certificate {certificate.id} is the one that was withdrawn. Fit again on newer requests: "
                "cascade fit LOG --promise … --policy DIR -o NEW"
            )
    for level in read.levels or [""]:
        certificates = [read.certificates[level]] if level else list(read.certificates.values())
        live, own = serving_of(config, read, level or None), _of_level(config, read, level)
        try:
            by_name[level] = CertifiedPolicy(
                own, strategy, live, certificates, level=level or None, monitors=monitors, today=today
            )
        except NotCertifiedError as error:
            raise (NotCertifiedError(f"Level {level!r}: {error}") if level else error) from None
    monitors.share(read.certificates.values())  # none of them was refused
    if not read.levels:
        return ServingState(by_name[""], strategy, monitors)
    return ServingState(by_name[read.default_level or next(iter(by_name))], strategy, monitors, read.levels, by_name)


def _of_level(config: CascadeConfig, read: PolicyDirectory, level: str) -> CascadeConfig:
    """Return the configuration for one level.

    The risk of the section `guarantee` applies to the default level; the other levels have their own.
    """
    wanted = config.guarantee
    if level in ("", read.default_level) or wanted is None or wanted.risk is None:
        return config
    return config.model_copy(update={"guarantee": wanted.model_copy(update={"risk": read.levels[level]})})
