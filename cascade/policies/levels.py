"""Several levels in one policy directory, each with its own certificate: each question chooses its level.

The directory itself is the default level, a policy directory like any other, so all readers can read that level. The
others are policy directories in `levels/NAME/`. `levels.json` names all of them, with the alpha that each promises and
the SHA-256 of its policy, so that the levels of two fits cannot be mixed. The level that allows the most misses is the
cheapest: "low" means a low budget, not a low risk.

Reading checks everything before anything is used, and names every problem. It follows no path in the file other than
these two forms. Writing is atomic and writes `levels.json` last; `foreign` lists beforehand what it would overwrite.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from cascade.checks import hint_at
from cascade.errors import ConfigError, UsageError
from cascade.files import damaged, json_bytes, there, unwritten, write_whole
from cascade.guarantees.base import is_share
from cascade.policies.artifact import (
    CARD_FILE,
    LEVELS_FILE,
    LEVELS_FOLDER,
    POLICY_FILE,
    PolicyArtifact,
    contents_of,
    levels_gone,
)
from cascade.policies.reading import shape_problems, versioned

SCHEMA_VERSION = 1
MAKE = "cascade fit LOG --promise agreement --confidence 0.9 --levels low=0.1,high=0.02 -o DIR"
"""The command that makes a policy with levels."""
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_HASH = re.compile(r"[0-9a-f]{64}")
_KEYS = ("schema_version", "default", "levels")
_LEVEL_KEYS = ("directory", "alpha", "policy_sha256")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Level:
    """One level of a policy directory.

    Its certificates promise `alpha`; the hash is that of its policy (`PolicyArtifact.policy_sha256`).
    """

    name: str
    alpha: float
    policy_sha256: str


@dataclass(frozen=True, slots=True)
class Levels:
    """The levels of a policy directory.

    Attributes:
        default: the level that serves by default: the directory itself.
        by_name: all levels, the cheapest first: alpha falls.
    """

    default: str
    by_name: Mapping[str, Level]

    @classmethod
    def of(cls, artifacts: Mapping[str, PolicyArtifact], default: str) -> Levels:
        """Return the levels made of these policies, the cheapest first.

        Raises:
            UsageError: they cannot be the levels of one directory; lists every problem.
        """
        problems = [*_name_problems(artifacts, default), *relation_problems(artifacts)]
        if problems:
            raise UsageError(f"These policies cannot be levels of one directory: {'; '.join(problems)}.")
        found = {
            name: Level(name, one.certificates[0].alpha or 0.0, one.policy_sha256) for name, one in artifacts.items()
        }
        return cls(default, in_order({name: one.alpha for name, one in found.items()}, found))

    def chosen(self, level: str | None = None, alpha: float | None = None) -> Level:
        """Return the requested level; by default the default level.

        Args:
            level: its name.
            alpha: the highest alpha allowed; the cheapest level within it is chosen.

        Raises:
            UsageError: there is no such level, or both are given.

        >>> levels = Levels("mid", {"low": Level("low", 0.2, ""), "mid": Level("mid", 0.1, "")})
        >>> levels.chosen("low").alpha, levels.chosen(alpha=0.15).name, levels.chosen().name
        (0.2, 'mid', 'mid')
        """
        if level is not None and alpha is not None:
            raise UsageError(f"Give a level or an alpha, not both: {self.told}.")
        if alpha is not None:
            return self._promising(alpha)
        name = self.default if level is None else level
        if name not in self.by_name:
            hint = hint_at(str(name), self.by_name) or "."
            raise UsageError(f"There is no level {name!r}{hint} There is {self.told}.")
        return self.by_name[name]

    def _promising(self, alpha: float) -> Level:
        if not is_share(alpha):
            raise UsageError(
                f"alpha must be a share of questions, between 0 and 1, not {alpha!r}. There is {self.told}."
            )
        found = next((one for one in self.by_name.values() if one.alpha <= alpha), None)
        if found is None:
            raise UsageError(f"No level promises an alpha of {alpha:g} or less. There is {self.told}.")
        return found

    @property
    def told(self) -> str:
        """All levels in words, as "low (alpha 0.2), high (alpha 0.05)"."""
        return ", ".join(f"{one.name} (alpha {one.alpha:g})" for one in self.by_name.values())

    def directory(self, name: str) -> str:
        """Return where a level is, below the directory: "." for the default one."""
        return directory_of(name, self.default)


def in_order(alphas: Mapping[str, float], what: Mapping[str, _T]) -> dict[str, _T]:
    """Return the values of the levels by name, the cheapest level (with the largest alpha) first.

    >>> in_order({"high": 0.05, "low": 0.2}, {"high": 1, "low": 2})
    {'low': 2, 'high': 1}
    """
    return {name: what[name] for name in sorted(what, key=lambda name: -alphas[name])}


def directory_of(name: str, default: str) -> str:
    """Return where a level is, below the directory: "." for the default one."""
    return "." if name == default else f"{LEVELS_FOLDER}/{name}"


def name_problems(names: Iterable[str]) -> Iterator[str]:
    """Yield the names that levels cannot have, since a level's name is also a folder's, on any disk."""
    for name in names:
        if not _NAME.fullmatch(name):
            yield f"{name!r} is not a name for a level: small letters, digits, - and _, a letter first, at most 32"


# --- writing ---


def write(
    directory: str | Path,
    artifacts: Mapping[str, PolicyArtifact],
    default: str,
    *,
    files: Mapping[str, Mapping[str, bytes]] | None = None,
) -> Levels:
    """Write a policy directory with several levels; the same artefacts give the same bytes.

    The write is atomic. Levels that the directory had before are removed.

    Args:
        directory: the directory; it is created if it does not exist.
        artifacts: two levels or more by name, each with its certificates.
        default: the level of the directory itself.
        files: further files of each level, by its name: a model card, a plot; as in `artifact.write`.

    Raises:
        UsageError: the policies cannot be levels of one directory, or the directory cannot be written.
    """
    levels, folder, beside = Levels.of(artifacts, default), Path(directory), files or {}
    if linked := _linked(folder, levels.by_name):
        raise UsageError(f"{linked} is a link, but levels must be in the directory itself; choose another one.")
    kept = tuple(f"{levels.directory(name)}/" for name in levels.by_name)
    contents = {file: data for file, data in levels_gone(folder).items() if not file.startswith(kept)}
    for name in [*(one for one in levels.by_name if one != default), default]:
        within = levels.directory(name)
        own = contents_of(folder / within, artifacts[name], beside.get(name))
        contents |= {file if name == default else f"{within}/{file}": data for file, data in own.items()}
    contents.pop(LEVELS_FILE, None)
    contents[LEVELS_FILE] = json_bytes(_document(levels))  # written last, since it names the others by their hashes
    try:
        write_whole(folder, contents)
    except OSError as error:
        raise unwritten(folder, error) from None
    return levels


def foreign(directory: str | Path, names: Iterable[str], default: str) -> list[Path]:
    """Return the folders that `write` would write levels into, although they hold another policy or card.

    Empty if the directory has levels already: then the folders are its own. The folder of the level `default` is the
    directory itself, and is not checked.
    """
    folder = Path(directory)
    if (folder / LEVELS_FILE).exists():
        return []
    places = [folder / directory_of(name, default) for name in names if name != default]
    return [place for place in places if any((place / one).exists() for one in (POLICY_FILE, CARD_FILE))]


def _linked(folder: Path, names: Iterable[str]) -> Path | None:
    """Return the first level's folder that is a link; None if none is."""
    within = folder / LEVELS_FOLDER
    return next((one for one in (within, *(within / name for name in names)) if one.is_symlink()), None)


def _document(levels: Levels) -> dict[str, Any]:
    entries = {
        one.name: {"directory": levels.directory(one.name), "alpha": one.alpha, "policy_sha256": one.policy_sha256}
        for one in levels.by_name.values()
    }
    return {"schema_version": SCHEMA_VERSION, "default": levels.default, "levels": entries}


# --- reading ---


def read(directory: str | Path) -> Levels | None:
    """Read which levels a policy directory has; None if it has none.

    `check` compares the policies themselves with it.
    """
    folder, file = Path(directory), Path(directory) / LEVELS_FILE
    try:
        if not there(file):
            return None
        document = versioned(file, SCHEMA_VERSION)
    except ConfigError as error:
        raise damaged(error) from None
    problems = list(_file_problems(document))
    if not problems and (linked := _linked(folder, document["levels"])):
        problems = [f"{linked} is a link, but levels must be in the directory itself"]
    if problems:
        raise damaged(ConfigError(problems, str(file)))
    entries = document["levels"]
    found = {name: Level(name, float(one["alpha"]), one["policy_sha256"]) for name, one in entries.items()}
    return Levels(document["default"], in_order({name: one.alpha for name, one in found.items()}, found))


def check(levels: Levels, artifacts: Mapping[str, PolicyArtifact], *, certificates: bool = True) -> Iterator[str]:
    """Yield the differences between the policies of a directory and those that its `levels.json` names."""
    for name, level in levels.by_name.items():
        found = artifacts[name].policy_sha256
        if found != level.policy_sha256:
            yield (
                f"levels.{name}.policy_sha256: it is {level.policy_sha256[:16]}…, and the policy in "
                f"{levels.directory(name)} is {found[:16]}…: another one, or one that was changed since"
            )
        promised = sorted({one.alpha or 0.0 for one in artifacts[name].certificates} - {level.alpha})
        if promised:
            yield f"levels.{name}.alpha: it is {level.alpha:g}, and a certificate promises {promised[0]:g}"
    if certificates:
        yield from relation_problems(artifacts)


def relation_problems(artifacts: Mapping[str, PolicyArtifact]) -> Iterator[str]:
    """Yield why policies are not levels of one cascade and one kind of promise that differ only in alpha."""
    for name, one in artifacts.items():
        if not one.certificates:
            yield f"levels.{name}: it has no certificate"
    certified = {name: one for name, one in artifacts.items() if one.certificates}
    if not certified:
        return
    first = next(iter(certified))
    for name, one in certified.items():
        if _promise(one) != _promise(certified[first]):
            yield f"levels.{name}: its promise differs from that of {first} in more than alpha"
        if any(held.made_for != certified[first].certificates[0].made_for for held in one.certificates):
            yield f"levels.{name}: it was made for another cascade than {first}"
    alphas = [one.certificates[0].alpha for one in certified.values()]
    if len(set(alphas)) < len(alphas):
        yield "two levels have the same alpha"


def _promise(artifact: PolicyArtifact) -> Any:
    """Return the promise without its alpha."""
    if artifact.asked is not None:
        return replace(artifact.asked, alpha=0.5)
    first = artifact.certificates[0]
    return first.kind, first.delta, first.abstain_below is None


def _name_problems(names: Iterable[str], default: Any) -> Iterator[str]:
    there_are = list(names)
    yield from name_problems(there_are)
    if len(there_are) < 2:
        yield "levels: there must be at least two"
    if default not in there_are:
        yield f"default: there is no level {default!r}, only {', '.join(there_are) or 'none'}"


def _file_problems(document: Any) -> Iterator[str]:
    yield from shape_problems(document, _KEYS)
    if not isinstance(document, dict):
        return
    levels: Any = document.get("levels", {})
    default: Any = document.get("default")
    if not isinstance(levels, dict):
        yield "levels: it must be an object with a name for each level"
        return
    yield from _name_problems(levels, default)
    for name, one in levels.items():
        yield from _level_problems(name, one, directory_of(name, default))
    alphas = [one.get("alpha") for one in levels.values() if isinstance(one, dict)]
    if any(alphas.count(one) > 1 for one in alphas if is_share(one)):
        yield "levels: two of them have the same alpha"


def _level_problems(name: str, level: Any, directory: str) -> Iterator[str]:
    if not isinstance(level, dict):
        yield f"levels.{name}: it must be an object with named fields"
        return
    yield from (f"levels.{name}.{said}" for said in shape_problems(level, _LEVEL_KEYS))
    if level.get("directory", directory) != directory:
        yield f"levels.{name}.directory: it is {level['directory']!r}, and can only be {directory!r}"
    if "alpha" in level and not is_share(level["alpha"]):
        yield f"levels.{name}.alpha: it is {level['alpha']!r}, but must lie between 0 and 1"
    held = level.get("policy_sha256", "0" * 64)
    if not isinstance(held, str) or not _HASH.fullmatch(held):
        yield f"levels.{name}.policy_sha256: it is not a SHA-256"
