"""`calibrate` on a policy with levels: every level keeps its alpha, and all are certified anew together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from cascade.api.fit_levels import refuse_foreign
from cascade.api.guarantee_options import GuaranteeOptions
from cascade.api.policies import GivenPolicy
from cascade.errors import UsageError
from cascade.factory import HeldLevels, read_levels
from cascade.guarantees.base import get
from cascade.policies.artifact import LEVELS_FOLDER


class LevelGiven(NamedTuple):
    """One level to calibrate: its policy, and what is asked for, its own alpha among it."""

    given: GivenPolicy
    asked: GuaranteeOptions


class LevelsGiven(NamedTuple):
    """The levels of a policy directory to calibrate, the cheapest first, and the default one."""

    default: str
    each: Mapping[str, LevelGiven]


def levels_given(given: GivenPolicy, asked: GuaranteeOptions, target: Path, *, force: bool) -> LevelsGiven | None:
    """Return the levels of a policy directory, each with what is asked for; None where it has none.

    Args:
        given: the policy.
        asked: what is to be promised.
        target: where the levels are to be written.
        force: whether they may be written over what is there.

    Raises:
        UsageError: what is asked for cannot be of every level, or something else is where a level is to be written.
        ConfigError: the directory cannot be read.
    """
    held = None if given.directory is None else read_levels(given.directory, certificates=False)
    if held is None or given.directory is None:
        return None
    if asked.alpha is not None:
        raise UsageError(
            f"{given.directory} has levels, each with an alpha of its own: {held.levels.told}. Leave --alpha out, or "
            f"calibrate one by itself: --policy {given.directory / LEVELS_FOLDER}/NAME -o OTHER"
        )
    if asked.kind is not None and get(asked.kind).on_cost:
        raise UsageError(f"{given.directory} has levels, and they differ in alpha: a {asked.kind} promises none.")
    if not force:
        refuse_foreign(target, held.levels.by_name, held.levels.default)
    found = {
        name: LevelGiven(_of_level(given, held, name), asked._replace(alpha=level.alpha))
        for name, level in held.levels.by_name.items()
    }
    return LevelsGiven(held.levels.default, found)


def _of_level(given: GivenPolicy, held: HeldLevels, name: str) -> GivenPolicy:
    assert given.directory is not None  # noqa: S101 - the levels were read from there
    policy = held.policies[name]
    return GivenPolicy(policy.section, given.config, given.directory / held.levels.directory(name), policy)
