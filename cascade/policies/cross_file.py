"""The numbers of a cross-calibrated policy in a file: `model.safetensors`, all members in one.

Member k's tensors stand there as a learned policy's would (`model_file`), under `member{k}.`, and beside them its
critical values, `member{k}.critical`: float64, ascending, ±∞ allowed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

import numpy as np

from cascade.errors import ConfigError, UsageError
from cascade.policies import model_file
from cascade.policies.artifact import MODEL_FILE
from cascade.policies.cross import CrossPolicy
from cascade.policies.reading import Array

CRITICAL = "critical"


def settings(
    policy: CrossPolicy, model: bytes, seed: int, fitted: Sequence[Mapping[str, Any]] | None = None
) -> dict[str, Any]:
    """Return a cross-calibrated policy's settings, as the section `policy` of `policy.json`.

    Args:
        policy: the policy.
        model: its numbers, as `dumps` gives them.
        seed: what drew the folds.
        fitted: for each member figures of how it was chosen, plain JSON values; nothing hangs on them.
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
    """Return a policy's numbers as a file; the same policy gives the same bytes.

    Raises:
        UsageError: the policy could not be read again.
    """
    arrays: dict[str, Array] = {}
    for number, (member, critical) in enumerate(zip(policy.members, policy.critical, strict=True)):
        held = {**model_file.tensors(member), CRITICAL: critical}
        arrays |= {f"member{number}.{name}": values for name, values in held.items()}
    data = model_file.packed(arrays)
    model_file.check_written(lambda: loads(data, settings(policy, data, 0)))
    return data


def loads(data: bytes, section: Mapping[str, Any], source: str | None = None) -> CrossPolicy:
    """Return the policy of settings and the file that they name.

    Args:
        data: the file.
        section: the settings, of the form that `learned_config.CrossConfig` checks.
        source: where they stand, for the message.

    Raises:
        ConfigError: everything that is wrong.
    """
    features, problems = zip(*map(model_file.features_of, section["members"]), strict=True)
    said = [f"policy.members[{number}]: {one}" for number, some in enumerate(problems) for one in some]
    said += [
        f"policy.members[{number}].model.sha256: the members are in one file, and this names another"
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
