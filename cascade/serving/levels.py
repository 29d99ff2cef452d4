"""What serves a configuration: one `CertifiedPolicy`, or one for each level of its policy directory.

Levels differ in what they promise, so nothing is shared between them but the models, the strategy and what audits told
(`monitors`): each has its own certificates and thresholds, and each certificate its own monitor.
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
    """What serves: replaced whole.

    Attributes:
        default: serves where no level is asked for.
        strategy: the strategy that all of it serves with.
        levels: which there are; None for a policy without.
        by_name: what serves each.
        monitors: what audits told of all certificates since the orchestrator was made.
    """

    default: CertifiedPolicy
    strategy: Strategy
    monitors: CertificateMonitors
    levels: Levels | None = None
    by_name: Mapping[str, CertifiedPolicy] = field(default_factory=dict)

    def of(self, answer: Answer) -> CertifiedPolicy:
        """Return what gave an answer; of a level that is no more, the default one, which does not know it either."""
        return self.default if answer.level is None else self.by_name.get(answer.level, self.default)

    @property
    def alarm(self) -> str | None:
        """What audits found that withdrew certificates, in words, of all levels; None while all is well."""
        if not self.by_name:
            return self.default.alarm
        found = {name: one.alarm for name, one in self.by_name.items()}
        return "; ".join(f"level {name}: {said}" for name, said in found.items() if said is not None) or None

    @property
    def status(self) -> ServiceStatus:
        """What became of the questions answered since the orchestrator was made, at all levels."""
        return replace(self.monitors.status, alarm=self.alarm)

    @property
    def holding(self) -> tuple[tuple[str | None, Certificate, tuple[str, ...]], ...]:
        """The certificates of all levels, each with its level, and why it does not hold here today."""
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
    """Return what serves a configuration's policy, with what is certified about it.

    Args:
        config: the configuration.
        strategy: the strategy that it describes.
        before: what served until now: what audits told of any certificate is kept.
        today: the clock.

    Raises:
        ConfigError, NotCertifiedError: as `CertifiedPolicy`; nothing has changed then.
        UsageError: a certificate is one that audits once raised an alarm about.
    """
    levels, found = _read(config)
    monitors = CertificateMonitors(config.guarantee or GuaranteeConfig()) if before is None else before.monitors
    made = dict[str, CertifiedPolicy]()
    for name, (policy, artifact) in found.items():
        own, level = _of_level(config, levels, name), None if levels is None else name
        try:
            _refuse_withdrawn(artifact, monitors)
            made[name] = CertifiedPolicy(own, strategy, policy, artifact, level=level, monitors=monitors, today=today)
        except NotCertifiedError as error:
            raise (error if levels is None else NotCertifiedError(f"Level {name!r}: {error}")) from None
    monitors.share([one for serving in made.values() for one in serving.certificates])  # none of them was refused
    if levels is None:
        return ServingState(made[""], strategy, monitors)
    return ServingState(made[levels.default], strategy, monitors, levels, made)


def _read(config: CascadeConfig) -> tuple[Levels | None, Mapping[str, tuple[Policy, PolicyArtifact | None]]]:
    """Return the levels of the policy, and what is to be served by their names; "" where there are none."""
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
    """Return the configuration as it is asked of a level.

    What the section `guarantee` asks of alpha it asks of the default level; of the others, their own.
    """
    asked = config.guarantee
    if levels is None or name == levels.default or asked is None or asked.alpha is None:
        return config
    own = asked.model_copy(update={"alpha": levels.by_name[name].alpha})
    return config.model_copy(update={"guarantee": own})


def _refuse_withdrawn(artifact: PolicyArtifact | None, monitors: CertificateMonitors) -> None:
    withdrawn = monitors.withdrawn
    for one in () if artifact is None else artifact.certificates:
        if one.calibration_id in withdrawn:
            raise UsageError(
                f"The certificate {one.calibration_id} is the one that was withdrawn. Calibrate again with "
                "newer questions: cascade calibrate EPISODES --policy DIR"
            )
