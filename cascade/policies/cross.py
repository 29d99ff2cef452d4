"""Several learned policies that decide together: each ranks a score among its own questions, and the mean rank decides.

Cross-calibration (`training.crossing`) fits a member for each fold of a log, without that fold's questions, and keeps
the critical values of the fold's questions under this member. A member's score of going on becomes a rank among them, a
p-value for "stopping here loses the answer". P-values of several members can be averaged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np

from cascade.checks import refuse
from cascade.conformal.arrays import Floats, ScoreArrays
from cascade.errors import ConfigError, UsageError
from cascade.policies import model_file
from cascade.policies.artifact import MODEL_FILE
from cascade.policies.base import BatchScores, FittedOn, History, Observation, Policy, Scores
from cascade.policies.design import GO_ON, Array
from cascade.policies.learned import LearnedPolicy


@dataclass(frozen=True, slots=True)
class CrossPolicy(Policy):
    """Members that keep every answer, and the critical values that rank their scores.

    The score of going on after a step is the mean over members k of

        rank_k(x) = (1 + #{i: critical_k[i] ≤ x}) / (n_k + 1),   x = the member's own score of going on.

    Every answer is kept; confidences are the strategy's own. If a member goes on because a feature is missing that was
    never missing in training (`design.GO_ON`), its rank is 1.

    Args:
        members: policies with the same sources and steps.
        critical: for each member the critical values of its own questions, float64 (n_k,), ascending, ±∞ allowed.
        kappa: the threshold, a mean rank.
    """

    members: tuple[LearnedPolicy, ...]
    critical: tuple[Floats, ...]
    kappa: float

    def __post_init__(self) -> None:
        problems = list(_problems(self.members, self.critical))
        refuse(problems)

    @property
    def sources(self) -> tuple[str, ...]:
        """The places of a step's candidates, as in `History`."""
        return self.members[0].sources

    @property
    def horizon(self) -> int:
        """The steps that the members have rules for."""
        return self.members[0].horizon

    @property
    def reads(self) -> tuple[str, ...]:
        """The signals that any member reads, sorted."""
        return tuple(sorted({name for one in self.members for name in one.reads}))

    @property
    def needs(self) -> tuple[str, ...]:
        """The signals that any rule of any member requires, sorted."""
        return tuple(sorted({name for one in self.members for name in one.needs}))

    @property
    def fitted_on(self) -> FittedOn:
        """The steps that the members have rules for, and their candidates."""
        return self.members[0].fitted_on

    def scores(self, observation: Observation) -> Scores:
        """Score the latest step. Pure."""
        step = observation.step
        kept = (GO_ON,) * len(step.candidates)
        if step.number >= self.horizon:
            return Scores(kept, GO_ON if step.number > self.horizon else -math.inf)
        total = 0.0
        for member, critical in zip(self.members, self.critical, strict=True):
            onward = member.scores(observation).next
            total += (1 + int(np.searchsorted(critical, onward, side="right"))) / (critical.size + 1)
        return Scores(kept, total / len(self.members))

    def batch(self, history: History) -> BatchScores:
        """Score every logged step with the same bits as `scores`; −∞ for missing steps and candidates."""
        there = np.arange(history.horizon) < history.steps[:, None]
        total = np.zeros(there.shape)
        for member, critical in zip(self.members, self.critical, strict=True):
            total += ranks(critical, member.batch(history).scores.next)
        onward = np.where(there, total / len(self.members), -np.inf)
        onward[:, self.horizon - 1 : self.horizon] = -np.inf  # none of them where the log is shorter
        onward[:, self.horizon :] = np.where(there[:, self.horizon :], GO_ON, -np.inf)
        return BatchScores(ScoreArrays(np.where(history.answer >= 0, GO_ON, -np.inf), onward), None)


def as_crossed(policy: Policy) -> CrossPolicy | None:
    """Return the policy as a `CrossPolicy`; None if it is another kind."""
    return policy if isinstance(policy, CrossPolicy) else None


def ranks(critical: Floats, scores: Floats) -> Floats:
    """Return (1 + #{critical ≤ score}) / (n + 1) for each score: float64, of the scores' shape.

    `critical` is ascending. A score of NaN, which includes "next", ranks highest.

    >>> ranks(np.array([0.2, 0.5, 0.5]), np.array([0.1, 0.2, 0.5, np.inf])).tolist()
    [0.25, 0.5, 1.0, 1.0]
    """
    return np.asarray((1 + np.searchsorted(critical, scores, side="right")) / (critical.size + 1), dtype=np.float64)


def _problems(members: Sequence[LearnedPolicy], critical: Sequence[Floats]) -> list[str]:
    found = []
    if len(members) < 2 or len(critical) != len(members):
        found.append("cross-calibration takes at least two members, and critical values for each")
    if len({(one.sources, one.horizon) for one in members}) > 1:
        found.append("its members must have rules for the same steps and sources")
    if any(scorer is not None for one in members for rule in one.rules for scorer in rule.include):
        found.append("its members must keep every answer")
    if any(one.judges or one.directions is not None for one in members):
        found.append("its members must have no confidences of their own, and read no sentence embedding")
    if any(values.ndim != 1 or np.isnan(values).any() or (values[1:] < values[:-1]).any() for values in critical):
        found.append("critical values must be ascending numbers")
    return found


# --- The numbers of a cross-calibrated policy in a file: `model.safetensors`, all members in one ---
# Member k's tensors are stored as those of a learned policy (`model_file`), with the prefix `member{k}.`; its critical
# values are `member{k}.critical`: float64, ascending, ±∞ allowed.

CRITICAL = "critical"


def settings(
    policy: CrossPolicy, model: bytes, seed: int, fitted: Sequence[Mapping[str, Any]] | None = None
) -> dict[str, Any]:
    """Return a cross-calibrated policy's settings, as the section `policy` of `policy.json`.

    `fitted` has figures on how each member was chosen, which no code reads.
    """
    figures = fitted or [{}] * len(policy.members)
    return {
        "kind": "cross",
        "alpha": float(policy.kappa),
        "seed": seed,
        "members": [model_file.settings(one, model, said) for one, said in zip(policy.members, figures, strict=True)],
        "model": {"file": MODEL_FILE, "sha256": sha256(model).hexdigest()},
    }


def dumps(policy: CrossPolicy) -> bytes:
    """Return a policy's numbers as the bytes of a file; equal policies give equal bytes."""
    arrays: dict[str, Array] = {}
    for number, (member, critical) in enumerate(zip(policy.members, policy.critical, strict=True)):
        held = {**model_file.tensors(member), CRITICAL: critical}
        arrays |= {f"member{number}.{name}": values for name, values in held.items()}
    data = model_file.packed(arrays)
    model_file.check_written(lambda: loads(data, settings(policy, data, 0)))
    return data


def loads(data: bytes, section: Mapping[str, Any], source: str | None = None) -> CrossPolicy:
    """Return the policy from its settings and the file that they name.

    `section` has the form that `learned_config.CrossConfig` checks; errors name `source`.
    """
    features, problems = zip(*map(model_file.features_of, section["members"]), strict=True)
    said = [f"policy.members[{number}]: {one}" for number, some in enumerate(problems) for one in some]
    said += [
        f"policy.members[{number}].model.sha256: all members must be in one file, and this hash is of another"
        for number, member in enumerate(section["members"])
        if member["model"] != section["model"]
    ]
    held = model_file.unpacked(data, section["model"]["sha256"], said, source)
    members, critical = [], []
    for number, member in enumerate(section["members"]):
        part = held.inside(f"member{number}")
        members.append(model_file.policy_of(part, member, features[number]))
        critical.append(part.take(CRITICAL, np.float64, (None,), finite=False))
    model_file.refuse(held, source)
    try:
        return CrossPolicy(tuple(members), tuple(critical), float(section["alpha"]))
    except UsageError as error:
        raise ConfigError([f"{MODEL_FILE}: {error}"], source) from None
