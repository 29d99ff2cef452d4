"""The certified policies in service: one, or one for each level of the policy directory.

Levels differ in their promises, so they share only the models, the strategy and the audit results (`monitors`). Each
level has its own certificates and thresholds, and each certificate its own monitor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from typing import TYPE_CHECKING

from cascade.config import CascadeConfig
from cascade.config.schema import GuaranteeConfig
from cascade.errors import NotCertifiedError, UsageError
from cascade.factory import build_policy, certified_policy, fitting, read_levels
from cascade.policies.base import Policy
from cascade.policies.config import DirectoryConfig
from cascade.serving.certified import CertifiedPolicy, today_utc
from cascade.serving.monitors import CertificateMonitors, ServiceStatus
from cascade.strategies.base import Strategy
from cascade.types import Answer, Certificate

if TYPE_CHECKING:
    from cascade.policies.artifact import PolicyArtifact
    from cascade.policies.levels import Levels


@dataclass(frozen=True, slots=True)
class ServingState:
    """The policies in service. The object is immutable; a reload replaces it.

    Attributes:
        default: the policy for questions without a level.
        strategy: the strategy of all levels.
        levels: the levels; None for a policy without levels.
        by_name: the policy of each level.
        monitors: the audit results of all certificates since the orchestrator was made.
    """

    default: CertifiedPolicy
    strategy: Strategy
    monitors: CertificateMonitors
    levels: Levels | None = None
    by_name: Mapping[str, CertifiedPolicy] = field(default_factory=dict)

    def of(self, answer: Answer) -> CertifiedPolicy:
        """Return the policy that gave an answer; the default policy for a level that no longer exists."""
        return self.default if answer.level is None else self.by_name.get(answer.level, self.default)

    @property
    def alarm(self) -> str | None:
        """A sentence about the audits that withdrew certificates of any level; None without an alarm."""
        if not self.by_name:
            return self.default.alarm
        found = {name: one.alarm for name, one in self.by_name.items()}
        return "; ".join(f"level {name}: {said}" for name, said in found.items() if said is not None) or None

    @property
    def status(self) -> ServiceStatus:
        """Counts of the questions answered since the orchestrator was made, at all levels."""
        return replace(self.monitors.status, alarm=self.alarm)

    @property
    def holding(self) -> tuple[tuple[str | None, Certificate, tuple[str, ...]], ...]:
        """The certificates of all levels, each with its level and the reasons why it does not hold here today."""
        if not self.by_name:
            return tuple([(None, *one) for one in self.default.holding])
        return tuple([(name, *one) for name, serving in self.by_name.items() for one in serving.holding])


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
    levels, found = _read(config)
    monitors = CertificateMonitors(config.guarantee or GuaranteeConfig()) if before is None else before.monitors
    made = dict[str, CertifiedPolicy]()
    for name, (policy, artifact) in found.items():
        own, level = _of_level(config, levels, name), None if levels is None else name
        try:
            for one in () if artifact is None else artifact.certificates:
                if one.calibration_id in monitors.withdrawn:
                    raise UsageError(
                        f"The certificate {one.calibration_id} is the one that was withdrawn. Calibrate again with "
                        "newer questions: cascade fit LOG --promise … --policy DIR -o NEW"
                    )
            made[name] = CertifiedPolicy(own, strategy, policy, artifact, level=level, monitors=monitors, today=today)
        except NotCertifiedError as error:
            raise (error if levels is None else NotCertifiedError(f"Level {name!r}: {error}")) from None
    monitors.share([one for serving in made.values() for one in serving.certificates])  # none of them was refused
    if levels is None:
        return ServingState(made[""], strategy, monitors)
    return ServingState(made[levels.default], strategy, monitors, levels, made)


def _read(config: CascadeConfig) -> tuple[Levels | None, Mapping[str, tuple[Policy, PolicyArtifact | None]]]:
    """Return the levels of the policy, and their policies by name; the name is "" without levels."""
    wanted = config.policy
    if not isinstance(wanted, DirectoryConfig):
        return None, {"": (build_policy(config), None)}
    held = read_levels(wanted.path)
    if held is None:
        return None, {"": certified_policy(config, wanted.path)}
    for one in held.policies.values():
        fitting(config, one, wanted.path)
    return held.levels, {name: (one.deciding, one.artifact) for name, one in held.policies.items()}


def _of_level(config: CascadeConfig, levels: Levels | None, name: str) -> CascadeConfig:
    """Return the configuration for one level.

    The alpha of the section `guarantee` applies to the default level; the other levels have their own.
    """
    asked = config.guarantee
    if levels is None or name == levels.default or asked is None or asked.alpha is None:
        return config
    own = asked.model_copy(update={"alpha": levels.by_name[name].alpha})
    return config.model_copy(update={"guarantee": own})
