"""A policy at a certified threshold, and a policy directory: the policy and its certificates.

The directory has two JSON files and a learned policy's numbers.

`policy.json` has the policy's settings, the questions that it has seen (training, selection) and, for a guarantee on
the single answer, the path of thresholds that was ordered before calibration. `certificate.json` has the requested
guarantee, the certificates, their calibration questions, and the SHA-256 of the other files. The numbers of a learned
policy are in `model.safetensors` (`model_file`); its SHA-256 is in `policy.json`, so that a certificate covers it.
A new calibration replaces the certificates, and the path if it orders a new one. `reading` reads a directory.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cascade.conformal.served import PathPoint
from cascade.errors import ConfigError, UsageError
from cascade.files import json_bytes, json_of, there, unwritten, writable, write_whole
from cascade.guarantees.base import Guarantee
from cascade.guarantees.certificate import asked_document, digest, number, of_segment, to_document
from cascade.policies.base import BatchScores, Observation, Policy, Scores
from cascade.registry import passes_on
from cascade.types import Certificate

if TYPE_CHECKING:
    from cascade.policies.base import History


# --- the contents of a policy directory ---


class Threshold(NamedTuple):
    """The threshold that a certificate sets."""

    kappa: float
    keeps_everything: bool = False
    abstain_below: float | None = None


UNCERTIFIED = "This policy has no certificate yet. Make one with: cascade fit LOG --promise … -o DIR"
EVERYTHING = Threshold(-math.inf, keeps_everything=True)


@passes_on("inner", "depends_on_kappa", "reads", "needs", "depth", "takes", "fitted_on")
@dataclass(frozen=True, slots=True)
class CalibratedPolicy(Policy):
    """A policy's scores at a certified threshold: one for all questions, or one for each segment.

    If the certificate keeps everything, every score is +∞: all steps are paid, all answers kept. `segments` has the
    threshold of each; other questions then keep everything.
    """

    inner: Policy
    threshold: Threshold
    segments: Mapping[str | None, Threshold] = field(default_factory=dict)

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

    def for_segment(self, segment: str | None) -> CalibratedPolicy:
        """Return the policy at the threshold that serves a segment; keeping everything if there is none."""
        threshold = of_segment(self.segments, segment) or (EVERYTHING if self.segments else self.threshold)
        return self if threshold == self.threshold else replace(self, threshold=threshold)

    def scores(self, observation: Observation) -> Scores:
        """Return the inner policy's scores, or include everything. The inner confidences are always returned."""
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
CARD_FILE = "README.md"
"""The file of a fitted policy's model card."""
_OURS = (MODEL_FILE, CARD_FILE)
LEVELS_FILE, LEVELS_FOLDER = "levels.json", "levels"
"""The file that marks a directory with levels, and the folder of all levels but the default one (`levels`)."""
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Seen:
    """The questions (`schema.identity`) from which a policy was made; they must not certify it."""

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
        seen: the questions from which it was made.
        path: the points that a guarantee on the single answer tests in order: from those that answer nothing, over
            those that answer everything, to the cheap ones.
        ordered_for: the guarantee, share and seed for which the path was ordered; None if unknown.
        certificates: one for all questions, or one for each segment that has enough questions.
        questions: the questions that the certificates were made from, sorted.
        asked: the requested guarantee; None if unknown.
        unanswered: the number of calibration questions that no step answers rightly, which most promises do not cover;
            None if unknown.
        files: further files by name: a learned policy's numbers.
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
    def asks_reference(self) -> bool:
        """Whether the policy always asks the reference alone."""
        return self.policy.get("takes") == "reference"

    @property
    def policy_sha256(self) -> str:
        """The SHA-256 of `policy.json` in canonical form, which is in every certificate."""
        return digest(_policy_document(self))

    def calibrated(self, policy: Policy) -> CalibratedPolicy:
        """Return the policy that these settings describe with the certified thresholds.

        `policy` is made by `factory.policy_of`.
        """
        if not self.certificates:
            raise UsageError(UNCERTIFIED)
        thresholds = {
            one.segment: Threshold(one.kappa, one.keeps_everything, one.abstain_below) for one in self.certificates
        }
        return CalibratedPolicy(policy, thresholds.get(None, EVERYTHING), thresholds)


def write(directory: str | Path, artifact: PolicyArtifact, *, files: Mapping[str, bytes] | None = None) -> None:
    """Write a policy directory. Equal artefacts give equal bytes.

    The write is atomic (`write_whole`). It also removes an earlier policy's certificates if the new one has none,
    another policy's numbers and model card, an older plot that `files` lacks, and earlier levels (`levels.write`
    writes levels).

    Args:
        directory: the directory; it is created if it does not exist.
        artifact: the policy, with its `files`.
        files: further files by name, such as a model card and a plot. By default those of the same policy stay.

    Raises:
        UsageError: the directory cannot be written; or a name in `files` is not a plain file name, or is reserved.
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

    It includes only files that cascade writes, and only if there is a `levels.json`; links are not followed.
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


def is_policy(folder: Path) -> bool:
    """Whether a directory's `policy.json` was written by cascade, even if it is damaged."""
    try:
        held = json_of(folder / POLICY_FILE)
    except ConfigError:
        return True
    return isinstance(held, dict) and "policy" in held


def model_problems(data: bytes, sha256_hex: Any) -> list[str]:
    """Return the problem if the file of a learned policy's numbers does not match the settings' hash."""
    found = sha256(data).hexdigest()
    if found == sha256_hex:
        return []
    said = f"its SHA-256 is {found[:16]}…, and {POLICY_FILE} says {str(sha256_hex)[:16]}…"
    return [f"{MODEL_FILE}: {said}: it is another file, or it was changed after it was made"]


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


def check_target(target: Path, *, same: bool, force: bool, otherwise: str) -> None:
    """Refuse a path that cannot become a policy directory, or that has another policy.

    `same` says that the policy there is written again, and `force` that another may be overwritten. `otherwise` is
    other advice, ending with "choose".
    """
    _refuse_level(target)
    writable(target)
    if (target / POLICY_FILE).exists() and not same and not force:
        if not is_policy(target):
            raise UsageError(f"{target} holds a {POLICY_FILE} that cascade did not write; choose another --output.")
        raise UsageError(f"{target} holds a policy already. {otherwise} another --output, or --force to overwrite it.")


def _refuse_level(target: Path) -> None:
    """Refuse to write into a level of a policy with levels, since `levels.json` has the hash of each level."""
    within = target.resolve().parent
    if within.name == LEVELS_FOLDER and (within.parent / LEVELS_FILE).exists():
        shown = target.parent.parent
        raise UsageError(
            f"{target} is a level of the policy {shown}, whose levels are calibrated together: --policy {shown}. To "
            "calibrate one level by itself, choose another --output."
        )
