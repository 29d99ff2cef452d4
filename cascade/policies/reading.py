"""Reads a policy directory: checks everything before anything is used, and names every problem.

Nothing in these files is ever run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cascade.conformal.served import PathPoint
from cascade.errors import ConfigError, refuse_newer
from cascade.files import content, damaged, json_of, there
from cascade.guarantees.base import Guarantee
from cascade.guarantees.certificate import asked_of, digest, from_document, number_of
from cascade.policies.artifact import (
    CERTIFICATE_FILE,
    MODEL_FILE,
    POLICY_FILE,
    SCHEMA_VERSION,
    PolicyArtifact,
    Seen,
    model_problems,
)
from cascade.types import Certificate

_POLICY_KEYS = ("schema_version", "policy", "seen", "path", "ordered_for")
_CERTIFICATE_KEYS = ("schema_version", "asked", "certificates", "questions", "sha256")


def read(directory: str | Path, *, certificates: bool = True) -> PolicyArtifact:
    """Read a policy directory.

    Args:
        directory: the policy directory.
        certificates: whether to read the certificates too, if there are any.

    Raises:
        ConfigError: lists every problem: a file that is absent, too large or not JSON, another schema version, a field
            that is missing, unknown or of a wrong type, a file or certificate that was changed after it was made; for a
            learned policy also numbers that are missing or do not match `policy.json`.
    """
    folder = Path(directory)
    try:
        absent = not there(folder / POLICY_FILE)
        if not absent:
            return _read(folder, certificates=certificates)
    except ConfigError as error:
        raise damaged(error) from None
    raise ConfigError([_absent(folder)], str(directory))


def _read(folder: Path, *, certificates: bool) -> PolicyArtifact:
    policy, certificate = folder / POLICY_FILE, folder / CERTIFICATE_FILE
    artifact = _with_model(_policy_of(versioned(policy, SCHEMA_VERSION), str(policy)), folder)
    if not certificates or not there(certificate):
        return artifact
    return _certified(artifact, versioned(certificate, SCHEMA_VERSION), str(certificate))


def _absent(folder: Path) -> str:
    made = "cascade fit LOG --promise … -o DIR makes one"
    if folder.is_file():
        return f"it is a file, not a policy directory; {made}"
    what = f"there is no {POLICY_FILE} in this directory" if folder.is_dir() else "there is no such policy directory"
    return f"{what}; {made}"


def _with_model(artifact: PolicyArtifact, folder: Path) -> PolicyArtifact:
    """Return the artefact with a learned policy's numbers."""
    from cascade.policies.config import HELD  # who writes a policy needs no settings

    found = HELD.class_at(artifact.policy)
    if found is None or found.not_by_hand is None:
        return artifact
    named, file = artifact.policy.get("model"), folder / MODEL_FILE
    if not isinstance(named, dict) or named.get("file") != MODEL_FILE:
        raise ConfigError([f"policy.model.file: a learned policy's numbers are in {MODEL_FILE}"], str(folder))
    data = content(file)
    problems = model_problems(data, named.get("sha256"))
    if problems:
        raise ConfigError(problems, str(folder))
    return replace(artifact, files={**artifact.files, MODEL_FILE: data})


def _policy_of(document: Any, source: str) -> PolicyArtifact:
    checks: dict[str, Callable[[Any], bool]] = {
        "policy": lambda value: isinstance(value, dict),
        "seen": _is_seen,
        "path": _is_path,
        "ordered_for": _is_object_or_none,
    }
    problems = list(shape_problems(document, _POLICY_KEYS, checks))
    if problems:
        raise ConfigError(problems, source)
    path = document["path"]
    return PolicyArtifact(
        policy=document["policy"],
        seen=Seen(tuple(document["seen"]["training"]), tuple(document["seen"]["selection"])),
        path=None if path is None else tuple([PathPoint(*map(number_of, point)) for point in path]),
        ordered_for=document["ordered_for"],
    )


def _certified(artifact: PolicyArtifact, document: Any, source: str) -> PolicyArtifact:
    checks: dict[str, Callable[[Any], bool]] = {
        "asked": _is_object_or_none,
        "certificates": lambda value: isinstance(value, list),
        "questions": _is_ids,
        "sha256": lambda value: isinstance(value, str),
        "unanswered": _is_count,
    }
    problems = list(shape_problems(document, _CERTIFICATE_KEYS, checks, optional=("unanswered",)))
    if problems:
        raise ConfigError(problems, source)
    rest = {name: value for name, value in document.items() if name != "sha256"}
    found, asked = [], None
    for place, held in enumerate(document["certificates"]):
        try:
            found.append(from_document(held))
        except ConfigError as error:
            problems += [f"certificates[{place}].{problem}" for problem in error.problems]
    try:
        asked = None if document["asked"] is None else asked_of(document["asked"])
    except ConfigError as error:
        problems += [f"asked.{problem}" for problem in error.problems]
    if digest(rest) != document["sha256"]:
        problems.append("sha256: it does not match the rest of the file, which was changed after it was made")
    problems += _relation_problems(artifact, found)
    problems += [] if asked is None else _asked_problems(asked, found)
    if problems:
        raise ConfigError(problems, source)
    questions, unanswered = tuple(document["questions"]), document.get("unanswered")
    return replace(artifact, certificates=tuple(found), questions=questions, asked=asked, unanswered=unanswered)


def _relation_problems(artifact: PolicyArtifact, certificates: Iterable[Certificate]) -> Iterator[str]:
    wanted, names = artifact.policy_sha256, set()
    for place, one in enumerate(certificates):
        if one.policy_sha256 != wanted:
            said = f"{POLICY_FILE} beside it is {wanted[:16]}…: another policy, or one that was changed since"
            yield f"certificates[{place}].policy_sha256: it is for the policy {one.policy_sha256[:16]}…, and {said}"
        if one.segment in names:
            yield f"certificates[{place}]: there is another certificate for the same questions"
        names.add(one.segment)


def _asked_problems(asked: Guarantee, certificates: Iterable[Certificate]) -> Iterator[str]:
    """Yield where a certificate promises something other than the request."""
    for place, one in enumerate(certificates):
        wanted: dict[str, Any] = {name: getattr(asked, name) for name in ("kind", "alpha")}
        wanted |= {"delta": asked.delta} if asked.abstain else {"delta": asked.delta, "abstain_below": None}
        differ = [f"{name} is {getattr(one, name)}" for name, value in wanted.items() if getattr(one, name) != value]
        differ += [f"segment is {one.segment}"] if asked.by_segment == (one.segment is None) else []
        if differ:
            yield f"certificates[{place}]: it differs from the request: {', '.join(differ)}"


def shape_problems(
    document: Any,
    keys: Iterable[str],
    checks: Mapping[str, Callable[[Any], bool]] = MappingProxyType({}),
    optional: Iterable[str] = (),
) -> Iterator[str]:
    """Yield the problems of a file's document: missing or unknown fields, another version, values of another form."""
    if not isinstance(document, dict):
        yield "it must be an object with named fields"
        return
    yield from (f"{name}: is missing" for name in keys if name not in document)
    yield from (f"{name}: there is no such field" for name in document if name not in {*keys, *optional})
    version = document.get("schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION or isinstance(version, bool):
        yield f"schema_version: it is {version!r}, and this release reads {SCHEMA_VERSION}"
    yield from (
        f"{name}: has an invalid value"
        for name, fits in checks.items()
        if name in document and not fits(document[name])
    )


def _is_object_or_none(value: Any) -> bool:
    return value is None or isinstance(value, dict)


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_seen(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"training", "selection"} and all(map(_is_ids, value.values()))


def _is_path(value: Any) -> bool:
    return value is None or (isinstance(value, list) and bool(value) and all(map(_is_point, value)))


def _is_point(value: Any) -> bool:
    if not isinstance(value, list) or len(value) != 2:
        return False
    try:
        return all(isinstance(number_of(one), float) for one in value)
    except (ValueError, TypeError, OverflowError):
        return False


def versioned(file: Path, known: int) -> Any:
    """Read a JSON file as `json_of`, unless its `schema_version` is newer than the `known` one."""
    document = json_of(file)
    if isinstance(document, dict):
        refuse_newer(document.get("schema_version"), known, str(file))
    return document
