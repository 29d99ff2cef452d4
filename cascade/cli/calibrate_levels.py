"""`calibrate` on a policy with levels: every level keeps its alpha, and all are certified anew together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from cascade.calibration.calibrating import Calibrated
from cascade.cli.certificates import calibrated_document
from cascade.cli.fit_levels import certified_levels, refuse_foreign
from cascade.cli.options import Asked
from cascade.cli.output import console, plain, print_json
from cascade.cli.policies import GivenPolicy
from cascade.errors import UsageError
from cascade.factory import HeldLevels, read_levels
from cascade.guarantees.base import get
from cascade.policies.artifact import LEVELS_FOLDER
from cascade.policies.levels import write
from cascade.text import counted


class LevelGiven(NamedTuple):
    """One level to calibrate: its policy, and what is asked for, its own alpha among it."""

    given: GivenPolicy
    asked: Asked


class LevelsGiven(NamedTuple):
    """The levels of a policy directory to calibrate, the cheapest first, and the default one."""

    default: str
    each: Mapping[str, LevelGiven]


def levels_given(given: GivenPolicy, asked: Asked, target: Path, *, force: bool) -> LevelsGiven | None:
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


def write_and_say_calibrated(done: Mapping[str, Calibrated], default: str, target: Path, *, as_json: bool) -> None:
    """Write all levels, and print what is certified at each."""
    write(target, {name: one.artifact for name, one in done.items()}, default)
    if as_json:
        each = {name: {"alpha": one.guarantee.alpha, **calibrated_document(one)} for name, one in done.items()}
        print_json({"output": str(target), "default": default, "levels": each})
        return
    out = console()
    out.print(f"{counted(done[default].n, 'calibration question')}, the same for all levels", style="bold")
    for part in certified_levels(done, default, out.width):
        out.print(part)
    out.print(f"written: {plain(str(target))}", soft_wrap=True)
