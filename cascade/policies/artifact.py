"""A policy at a certified threshold, and a policy directory: what decides, and what is certified about it.

The directory has two JSON files, a learned policy's numbers, and its hedge if it has one (`hedging`).

`policy.json` holds the policy's settings, the questions that it has seen (training, selection) and, for a guarantee on
the single answer, the path of thresholds that was ordered before calibration. `certificate.json` holds what was asked
for, the certificates, the questions that they were made from, and the SHA-256 of the rest. The numbers of a learned
policy are in `model.safetensors` (`model_file`), whose SHA-256 stands in `policy.json`, so that a certificate names
them too. Calibrating again writes the certificates anew, and the path where it orders another. Reading checks
everything before anything is used, and names every problem; nothing in these files is ever run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cascade.conformal.served import PathPoint
from cascade.errors import ConfigError, UsageError
from cascade.guarantees.base import Guarantee
from cascade.guarantees.certificate import (
    asked_document,
    asked_of,
    digest,
    from_document,
    known_as,
    number,
    number_of,
    of_segment,
    to_document,
)
from cascade.policies.base import BatchScores, FittedOn, Observation, Policy, Scores, Takes
from cascade.policies.config import HELD
from cascade.policies.files import content, damaged, json_of, there, unwritten, versioned, write_whole
from cascade.types import Certificate

if TYPE_CHECKING:
    from cascade.policies.base import History
    from cascade.policies.question_features import Embedded


class Threshold(NamedTuple):
    """The threshold that a certificate sets."""

    kappa: float
    keeps_everything: bool = False
    abstain_below: float | None = None


EVERYTHING = Threshold(-math.inf, keeps_everything=True)


@dataclass(frozen=True, slots=True)
class CalibratedPolicy(Policy):
    """A policy's scores at a certified threshold: one for all questions, or one for each segment.

    If the certificate keeps everything, every score is +∞: all steps are paid, all answers kept.

    Args:
        inner: the policy that scores.
        threshold: the threshold of questions whose segment is not in `segments`.
        segments: the threshold of each segment, by name.
        by_group: whether the certificates were made by groups, so that a question's group is its segment.
    """

    inner: Policy
    threshold: Threshold
    segments: Mapping[str | None, Threshold] = field(default_factory=dict)
    by_group: bool = False

    @property
    def kappa(self) -> float:
        """The threshold."""
        return self.threshold.kappa

    @property
    def abstain_below(self) -> float | None:
        """The confidence below which nothing is served; None without abstention."""
        return self.threshold.abstain_below

    @property
    def keeps_everything(self) -> bool:
        """Whether every answer of every step is kept."""
        return self.threshold.keeps_everything

    def for_segment(
        self, segment: str | None, group: str | None = None, *, kappa: float | None = None
    ) -> CalibratedPolicy:
        """Return the policy at the threshold of a segment, or else at that of all other questions."""
        name = known_as(segment, group, by_group=self.by_group)
        threshold = of_segment(self.segments, name) or (EVERYTHING if self.segments else self.threshold)
        if kappa is not None:
            threshold = threshold._replace(kappa=kappa)
        return self if threshold == self.threshold else replace(self, threshold=threshold)

    @property
    def depends_on_kappa(self) -> bool:
        """As the inner policy."""
        return self.inner.depends_on_kappa

    @property
    def reads(self) -> tuple[str, ...]:
        """As the inner policy."""
        return self.inner.reads

    @property
    def needs(self) -> tuple[str, ...]:
        """As the inner policy."""
        return self.inner.needs

    @property
    def depth(self) -> int:
        """As the inner policy."""
        return self.inner.depth

    @property
    def takes(self) -> Takes | None:
        """As the inner policy."""
        return self.inner.takes

    @property
    def fitted_on(self) -> FittedOn | None:
        """As the inner policy."""
        return self.inner.fitted_on

    @property
    def asks(self) -> tuple[str, ...]:
        """As the inner policy."""
        return self.inner.asks

    @property
    def embedded(self) -> Embedded | None:
        """As the inner policy."""
        return self.inner.embedded

    def scores(self, observation: Observation) -> Scores:
        """Score as the policy does, or include everything. Its confidences rank the answers either way."""
        found = self.inner.scores(observation)
        if self.threshold.keeps_everything:
            return found._replace(candidates=(math.inf,) * len(observation.step.candidates), next=math.inf)
        return found

    def batch(self, history: History) -> BatchScores | None:
        """Score a whole log as `scores` does; None where the policy scores one observation at a time."""
        found = self.inner.batch(history)
        if found is None or not self.threshold.keeps_everything:
            return found
        import numpy as np  # most configurations do not need it

        there = np.arange(history.horizon) < history.steps[:, None]
        kept = np.where(history.answer >= 0, math.inf, -math.inf)
        return found._replace(scores=type(found.scores)(kept, np.where(there, math.inf, -math.inf)))


POLICY_FILE, CERTIFICATE_FILE, MODEL_FILE = "policy.json", "certificate.json", "model.safetensors"
HEDGE_FILE = "hedge.json"
"""When the reference's call is begun early (`hedging`). It changes no answer, so no certificate names it."""
CARD_FILE, PLOT_FILE, CURVES_FILE, CURVES_PLOT_FILE = "README.md", "frontier.svg", "curves.csv", "curves.svg"
"""A fitted policy's model card, and the plot in it; how a policy network learned, as a table and as a plot."""
_OURS = (MODEL_FILE, HEDGE_FILE, CARD_FILE, PLOT_FILE, CURVES_FILE, CURVES_PLOT_FILE)
LEVELS_FILE, LEVELS_FOLDER = "levels.json", "levels"
"""The file that marks a directory with several levels, and the folder of the levels other than its own (`levels`)."""
SCHEMA_VERSION = 1
_POLICY_KEYS = ("schema_version", "policy", "seen", "path", "ordered_for")
_CERTIFICATE_KEYS = ("schema_version", "asked", "certificates", "questions", "sha256")


@dataclass(frozen=True, slots=True)
class Seen:
    """The questions that a policy was made with; no certificate may be made from them.

    They are named by `schema.identity`, and by `schema.question_id` if a release before 0.6 wrote them.
    """

    training: tuple[str, ...] = ()
    selection: tuple[str, ...] = ()

    @property
    def all(self) -> frozenset[str]:
        """Every question seen."""
        return frozenset(self.training) | frozenset(self.selection)


@dataclass(frozen=True, slots=True)
class PolicyArtifact:
    """A policy directory as read.

    Attributes:
        policy: the policy's settings, as the section `policy` of a configuration.
        seen: the questions that it was made with.
        path: the points among which a guarantee on the single answer chose, from silent to talkative to cheap.
        ordered_for: the guarantee, share and seed that the path was ordered with; None if unknown.
        certificates: one for all questions, or one for each segment and one without a name for all other segments.
        questions: the questions that the certificates were made from, sorted.
        asked: the request that they were made for; None if unknown.
        unanswered: calibration questions that no step answers rightly, of which most promises say nothing; None where
            that is not known.
        files: what the policy has besides, by the file's name: a learned policy's numbers, and its hedge.
    """

    policy: Mapping[str, Any]
    seen: Seen = field(default_factory=Seen)
    path: tuple[PathPoint, ...] | None = None
    ordered_for: Mapping[str, Any] | None = None
    certificates: tuple[Certificate, ...] = ()
    questions: tuple[str, ...] = ()
    asked: Guarantee | None = None
    unanswered: int | None = None
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    @property
    def hedge(self) -> bytes | None:
        """The file of its hedge (`hedging.loads`); None where it has none."""
        return self.files.get(HEDGE_FILE)

    @property
    def asks_reference(self) -> bool:
        """Whether the policy always asks the reference alone."""
        return self.policy.get("takes") == "reference"

    @property
    def policy_sha256(self) -> str:
        """The SHA-256 of `policy.json` in canonical form, which every certificate names."""
        return digest(_policy_document(self))

    def calibrated(self, policy: Policy) -> CalibratedPolicy:
        """Return the policy that these settings describe with the certified thresholds.

        Args:
            policy: the policy that `factory.policy_of` makes from the settings.

        Raises:
            UsageError: there is no certificate.
        """
        if not self.certificates:
            raise UsageError(
                "This policy has no certificate yet. Make one with: cascade calibrate EPISODES --policy DIR"
            )
        thresholds = {one.name: _threshold(one) for one in self.certificates}
        by_group = any(one.group is not None for one in self.certificates)
        return CalibratedPolicy(policy, thresholds.get(None, EVERYTHING), thresholds, by_group)


def _threshold(certificate: Certificate) -> Threshold:
    return Threshold(certificate.kappa, certificate.keeps_everything, certificate.abstain_below)


def write(directory: str | Path, artifact: PolicyArtifact, *, files: Mapping[str, bytes] | None = None) -> None:
    """Write a policy directory; the same artefact gives the same bytes.

    All of it is written, or nothing changes (`files.write_whole`). It removes an earlier policy's certificates if the
    new one has none, another policy's numbers and model card, an older plot that `files` lacks, and earlier levels
    (`levels.write` writes levels).

    Args:
        directory: the directory; it is created if it does not exist.
        artifact: the policy, with its `files`.
        files: further files, by plain names: a model card, a plot. Without it the card and the plots of the same policy
            stay.

    Raises:
        UsageError: it cannot be written there; a name of `files` is no plain file name, or one that the artefact
            writes itself.
    """
    folder = Path(directory)
    contents = contents_of(folder, artifact, files)
    try:
        write_whole(folder, {**levels_gone(folder), **contents})
    except OSError as error:
        raise unwritten(folder, error) from None


def contents_of(
    folder: Path, artifact: PolicyArtifact, files: Mapping[str, bytes] | None = None
) -> dict[str, bytes | None]:
    """Return the files of a policy directory by name; None for files to remove. Raises as `write`."""
    more = {**artifact.files, **(files or {})}
    for name in more:
        if Path(name).name != name or name in {POLICY_FILE, CERTIFICATE_FILE, LEVELS_FILE, "", ".", ".."}:
            raise UsageError(f"{name!r} cannot be the name of a file beside {POLICY_FILE}.")
    written = json_bytes(_policy_document(artifact))
    held = _settings(folder)
    gone = _OURS if held is not None and (files is not None or held != json.loads(written)["policy"]) else ()
    contents: dict[str, bytes | None] = {**dict.fromkeys(gone), **more, POLICY_FILE: written}
    contents[CERTIFICATE_FILE] = json_bytes(_certificate_document(artifact)) if artifact.certificates else None
    return contents


def levels_gone(folder: Path) -> dict[str, bytes | None]:
    """Return the files of a directory's levels, all None (to be removed), `levels.json` first.

    Only files that cascade writes, if there is a `levels.json`; links are not followed.
    """
    within = folder / LEVELS_FOLDER
    if not (folder / LEVELS_FILE).exists() or within.is_symlink() or not within.is_dir():
        return dict.fromkeys([LEVELS_FILE]) if (folder / LEVELS_FILE).exists() else {}
    names = (POLICY_FILE, CERTIFICATE_FILE, *_OURS)
    found = [one for one in sorted(within.iterdir()) if not one.is_symlink() and (one / POLICY_FILE).exists()]
    inner = [f"{LEVELS_FOLDER}/{one.name}/{name}" for one in found for name in names if (one / name).exists()]
    return dict.fromkeys([LEVELS_FILE, *inner])


def _settings(folder: Path) -> Any:
    """Return the settings of a directory's policy; {} if it cannot be read, None if there is none."""
    try:
        if not there(folder / POLICY_FILE):
            return None
        held = json_of(folder / POLICY_FILE)
    except ConfigError:
        return {}
    return held.get("policy", {}) if isinstance(held, dict) else {}


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


def is_policy(folder: Path) -> bool:
    """Whether a directory's `policy.json` has the form that cascade writes, in any release, damaged or not."""
    try:
        held = json_of(folder / POLICY_FILE)
    except ConfigError:
        return True
    return isinstance(held, dict) and "policy" in held


def _absent(folder: Path) -> str:
    made = "cascade calibrate EPISODES --policy … -o DIR makes one"
    if folder.is_file():
        return f"it is a file, not a policy directory; {made}"
    what = f"there is no {POLICY_FILE} in this directory" if folder.is_dir() else "there is no such policy directory"
    return f"{what}; {made}"


def model_problems(data: bytes, sha256_hex: Any) -> list[str]:
    """Return the problem if the file of a learned policy's numbers is not the one that the settings name."""
    found = sha256(data).hexdigest()
    if found == sha256_hex:
        return []
    said = f"its SHA-256 is {found[:16]}…, and {POLICY_FILE} says {str(sha256_hex)[:16]}…"
    return [f"{MODEL_FILE}: {said}: it is another file, or it was changed after it was made"]


def _with_model(artifact: PolicyArtifact, folder: Path) -> PolicyArtifact:
    """Return the artefact with its hedge, if it has one, and with a learned policy's numbers."""
    hedge = folder / HEDGE_FILE
    artifact = replace(artifact, files={HEDGE_FILE: content(hedge)}) if there(hedge) else artifact
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


def _certificate_document(artifact: PolicyArtifact) -> dict[str, Any]:
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "asked": None if artifact.asked is None else asked_document(artifact.asked),
        "certificates": [to_document(one) for one in artifact.certificates],
        "questions": sorted(artifact.questions),
    }
    document |= {} if artifact.unanswered is None else {"unanswered": artifact.unanswered}
    return document | {"sha256": digest(document)}


def _policy_document(artifact: PolicyArtifact) -> dict[str, Any]:
    path = artifact.path
    return {
        "schema_version": SCHEMA_VERSION,
        "policy": dict(artifact.policy),
        "seen": {"training": sorted(artifact.seen.training), "selection": sorted(artifact.seen.selection)},
        "path": None if path is None else [[number(point.kappa), number(point.abstain_below)] for point in path],
        "ordered_for": None if artifact.ordered_for is None else dict(artifact.ordered_for),
    }


def _policy_of(document: Any, source: str) -> PolicyArtifact:
    checks = {"policy": _is_object, "seen": _is_seen, "path": _is_path, "ordered_for": _is_object_or_none}
    problems = list(_shape_problems(document, _POLICY_KEYS, checks))
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
    checks = {
        "asked": _is_object_or_none,
        "certificates": _is_list,
        "questions": _is_ids,
        "sha256": lambda value: isinstance(value, str),
        "unanswered": _is_count,
    }
    problems = list(_shape_problems(document, _CERTIFICATE_KEYS, checks, optional=("unanswered",)))
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
        problems.append("sha256: it is not that of the rest: the file was changed after it was made")
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
        if one.name in names:
            yield f"certificates[{place}]: there is another certificate for the same questions"
        names.add(one.name)


def _asked_problems(asked: Guarantee, certificates: Iterable[Certificate]) -> Iterator[str]:
    """Yield where a certificate promises something other than the request."""
    for place, one in enumerate(certificates):
        wanted: dict[str, Any] = {name: getattr(asked, name) for name in ("kind", "alpha", "budget_nano_usd")}
        wanted |= {"group": one.group if asked.by_group else None, "pool": asked.separate and one.name is None}
        wanted |= {"segment": one.segment if asked.by_segment else None, "delta": asked.each_delta(one.together or 1)}
        wanted |= {} if asked.abstain else {"abstain_below": None}
        differ = [f"{name} is {getattr(one, name)}" for name, value in wanted.items() if getattr(one, name) != value]
        most = one.made_for.get("most_nano_usd")
        differ += [] if most == asked.most_nano_usd else [f"most_nano_usd is {most}"]
        if differ:
            yield f"certificates[{place}]: it is not what was asked for: {', '.join(differ)}"


def _shape_problems(
    document: Any, keys: Iterable[str], checks: Mapping[str, Callable[[Any], bool]], optional: Iterable[str] = ()
) -> Iterator[str]:
    if not isinstance(document, dict):
        yield "it is an object with named fields"
        return
    yield from (f"{name}: is missing" for name in keys if name not in document)
    yield from (f"{name}: there is no such field" for name in document if name not in {*keys, *optional})
    version = document.get("schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION or isinstance(version, bool):
        yield f"schema_version: it is {version!r}, and this release reads {SCHEMA_VERSION}"
    yield from (
        f"{name}: is not of its form" for name, fits in checks.items() if name in document and not fits(document[name])
    )


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_object_or_none(value: Any) -> bool:
    return value is None or isinstance(value, dict)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


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


def json_bytes(document: Mapping[str, Any]) -> bytes:
    """Return a document as the bytes of a file: the same values give the same bytes."""
    return (json.dumps(document, sort_keys=True, indent=1, allow_nan=False) + "\n").encode("ascii")
