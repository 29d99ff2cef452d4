"""A policy directory, format 1.0: a policy, its promise and certificates, and the requests that made and proved it.

It has three files. `policy.json` has the kind of the policy, its settings, and the nodes of its plan by name;
`model.safetensors` its arrays, if it has any; `certificate.json` the promise, the certificates by name, and which
requests fitted, chose and certified, as hashes. Each JSON file has the SHA-256 of the rest of it, `policy.json` also
that of the arrays, and every certificate that of `policy.json`. So a changed file, or a file from another policy, is
refused. Beside these files, `audits-ID.txt` holds the audits of a certificate, and `withdrawn-NAME.txt` says why one
was withdrawn, by audits or by canaries.

Nothing in a directory is ever run: a kind is a name in `ROOMS`, never an import path, and the numbers are plain arrays.
Files are also refused if they have another format, such as one before 1.0, or more than 256 MiB, or contain a duplicate
name, NaN, or a number too large for a float. One error lists every problem of all files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load, save

from cascade.checks import did_you_mean
from cascade.conformal.certificate import Certificate, Promised, Sha256, canonical, digest, plain, problems_of
from cascade.conformal.promise import Promise
from cascade.errors import ConfigError, UsageError
from cascade.files import REPAIR, content, json_bytes, json_of, unwritten, write_whole
from cascade.policies.policy import POLICIES, Policy
from cascade.registry import Registry, subclass_of
from cascade.safety import open_regular
from cascade.table import Log, Node

FORMAT = "1.0"
"""Incremented with every change of these files' fields, a certificate's included."""
POLICY_FILE, MODEL_FILE, CERTIFICATE_FILE = "policy.json", "model.safetensors", "certificate.json"
ROOMS: Registry[type[Policy]] = Registry(
    "policy",
    "cascade.policies",
    {kind: f"{policy.__module__}:{policy.__qualname__}" for kind, policy in POLICIES.items()}
    | {"learned": "cascade.policies.learned:Learned", "network": "cascade.policies.networks:Networks"},
    subclass_of(Policy),
)
"""The kinds of policies that a directory may hold."""


_Ids = tuple[Annotated[str, Field(pattern="^[0-9a-f]{16}$")], ...]


@dataclass(frozen=True, slots=True)
class Requests:
    """Which requests made and proved a policy, as hashes (`hashed`).

    Attributes:
        fitted: those from which it learned; they may not certify it.
        chose: those that chose it among others, or put the points of a path in order.
        certified: those that prove its certificates.
    """

    fitted: _Ids = ()
    chose: _Ids = ()
    certified: _Ids = ()


def hashed(ids: Iterable[str]) -> tuple[str, ...]:
    """Return the hashes of ids, sorted and without repetitions."""
    text = np.unique(first_bits(ids), return_counts=True)[0].astype(">u8").tobytes().hex()  # sorting beats a set
    return tuple([text[at : at + 16] for at in range(0, len(text), 16)])


def first_bits(names: Iterable[str]) -> NDArray[np.uint64]:
    """Return the first 64 bits of the SHA-256 of each name as a number."""
    digests = b"".join([sha256(name.encode("utf-8", "replace")).digest() for name in names])
    return np.frombuffer(digests, dtype=">u8")[::4].astype(np.uint64)


@dataclass(frozen=True, slots=True)
class PolicyDirectory:
    """The contents of a policy directory.

    Attributes:
        plan: the nodes of the plan, of which the policy buys some (`Policy.nodes`).
        policy: the policy.
        promise: the requested promise; None if none was requested.
        certificates: by name: "" for all requests, or segments, or levels; empty if nothing is proven.
        requests: the requests that made and proved it.
    """

    plan: tuple[Node, ...]
    policy: Policy
    promise: Promise | None = None
    certificates: Mapping[str, Certificate] = field(default_factory=dict)
    requests: Requests = field(default=Requests(), repr=False)

    @property
    def policy_sha256(self) -> str:
        """The hash of the policy and its plan, which every certificate names."""
        return str(self._policy_document(self._model())["sha256"])

    @property
    def levels(self) -> Mapping[str, float]:
        """The risk of each level, the cheapest level (of the largest risk) first; empty without levels."""
        levels = [certificate for certificate in self.certificates.values() if certificate.covers == "level"]
        return {level.name: level.promise.risk for level in sorted(levels, key=lambda level: -level.promise.risk)}

    @property
    def default_level(self) -> str | None:
        """The level that serves by default: the one with the promised risk; None without levels."""
        promised = None if self.promise is None else self.promise.risk
        return next((name for name, risk in self.levels.items() if risk == promised), None)

    def refuse_other_plan(self, log: Log) -> None:
        """Raise UsageError if a log comes from another plan."""
        nodes, plan = ([node.name for node in nodes] for nodes in (log.nodes, self.plan))
        if nodes != plan:
            raise UsageError(f"The policy is for {', '.join(plan)}, and {log.name} has {', '.join(nodes)}.")

    def certified(self, *certificates: Certificate) -> PolicyDirectory:
        """Return the directory with these certificates instead."""
        return replace(self, certificates={certificate.name: certificate for certificate in certificates})

    def write(self, folder: str | Path) -> None:
        """Write the directory, all files or none. Equal contents give equal bytes.

        Raises:
            UsageError: it cannot be written there.
            ConfigError: it could not be read back; lists every problem.
        """
        target, files = Path(folder), self.files(str(folder))
        try:
            write_whole(target, files)
        except OSError as error:
            raise unwritten(target, error) from None

    def files(self, folder: str | None = None) -> dict[str, bytes | None]:
        """Return the content of each file; None if it does not exist. Raises ConfigError as `write` does."""
        model = self._model()
        policy = self._policy_document(model)
        _refuse(self._problems(policy["sha256"]), folder)
        for certificate in self.certificates.values():
            Certificate.read(certificate.document, folder)
        files = {MODEL_FILE: model, POLICY_FILE: json_bytes(policy)}
        certified = with_hash(
            promise=None if self.promise is None else plain(self.promise),
            certificates={name: certificate.document for name, certificate in self.certificates.items()},
            requests={name: list(ids) for name, ids in plain(self.requests).items()},
        )
        return {**files, CERTIFICATE_FILE: json_bytes(certified)}

    @classmethod
    def read(cls, folder: str | Path) -> PolicyDirectory:
        """Read a directory.

        Raises:
            ConfigError: lists every problem of all files.
        """
        target, problems = Path(folder), list[str]()
        certificates = dict[str, Certificate]()
        with gather(problems, f"{POLICY_FILE}: "):
            written = document_of(target / POLICY_FILE, _PolicyFile)
            policy = _policy(written, target)
        with gather(problems, f"{CERTIFICATE_FILE}: "):
            promised = document_of(target / CERTIFICATE_FILE, _CertificateFile)
            for name, document in promised.certificates.items():
                with gather(problems, f"{CERTIFICATE_FILE}: certificates.{name or 'all'}."):
                    certificates[name] = Certificate.read(document)
        if problems:
            raise ConfigError(problems, str(folder))
        read = cls(written.plan, policy, promised.promise, certificates, promised.requests)
        if problems := list(read._problems(written.sha256)):
            raise ConfigError(problems, str(folder))
        return read

    def _model(self) -> bytes | None:
        tensors = self.policy.tensors()
        return save({name: np.copy(array, order="C") for name, array in tensors.items()}) if tensors else None

    def _policy_document(self, model: bytes | None) -> dict[str, Any]:
        bought = self.policy.nodes
        return with_hash(
            kind=self.policy.kind,
            settings=self.policy.settings(),
            plan=[{**node._asdict(), "reads": None if node.reads is None else list(node.reads)} for node in self.plan],
            nodes=None if bought is None else [self.plan[at].name for at in bought],
            model_sha256=None if model is None else sha256(model).hexdigest(),
        )

    def _problems(self, policy_sha256: str) -> Iterator[str]:
        """Yield the ways in which the parts are inconsistent."""
        if len({node.name for node in self.plan}) < len(self.plan):
            yield f"{POLICY_FILE}: plan: two nodes have the same name"
        steps = [node.step for node in self.plan]
        if not steps or steps != sorted(steps):
            yield f"{POLICY_FILE}: plan: the nodes must be in ascending order of steps, and there must be one"
        nodes = list(self.policy.nodes or ())
        if nodes != sorted(set(nodes)):
            yield f"{POLICY_FILE}: nodes: they must be in ascending order, each once"
        if not {*self.requests.fitted}.isdisjoint(self.requests.certified):
            yield f"{CERTIFICATE_FILE}: requests: some fitted the policy and certify it too"
        yield from self._certificate_problems(policy_sha256)

    def _certificate_problems(self, policy_sha256: str) -> Iterator[str]:
        if len({certificate.covers for certificate in self.certificates.values()}) > 1:
            yield f"{CERTIFICATE_FILE}: certificates: they cover all requests, or segments, or levels"
        for name, certificate in self.certificates.items():
            prefix = f"{CERTIFICATE_FILE}: certificates.{name or 'all'}"
            if certificate.name != name:
                yield f"{prefix}: it is the certificate of {certificate.name!r}"
            if certificate.policy_sha256 != policy_sha256:
                yield f"{prefix}: it is for another policy, or {POLICY_FILE} was changed after it was made"
            risk = self.promise.risk if self.promise and certificate.covers != "level" else certificate.promise.risk
            if self.promise is None or certificate.promise != replace(self.promise, risk=risk):
                yield f"{prefix}: it promises something other than was asked for"


class Strict(BaseModel):
    """A file of a directory, with its format and the hash of the rest of it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    format: str
    sha256: Sha256


_Form = TypeVar("_Form", bound=Strict)


class _PolicyFile(Strict):
    kind: str
    settings: dict[str, Any]
    plan: Annotated[tuple[Node, ...], Field(min_length=1)]
    nodes: Annotated[tuple[str, ...], Field(min_length=1)] | None
    model_sha256: Sha256 | None


class _CertificateFile(Strict):
    promise: Promised | None
    certificates: dict[str, Any]
    requests: Requests


def with_hash(**document: Any) -> dict[str, Any]:
    """Return a document with the format and the hash of everything else."""
    unsigned = {"format": FORMAT, **document}
    return unsigned | {"sha256": digest(unsigned)}


def _refuse(problems: Iterable[str], source: str | None = None) -> None:
    """Raise the problems, if there are any."""
    if listed := list(problems):
        raise ConfigError(listed, source)


@contextmanager
def gather(problems: list[str], prefix: str) -> Iterator[None]:
    """Add the problems that a block raises to the others, each with the prefix that says where it is."""
    try:
        yield
    except ValidationError as error:
        problems += [f"{prefix}{problem}" for problem in problems_of(error)]
    except ConfigError as error:
        problems += [f"{prefix}{problem}" for problem in error.problems]
    except (ValueError, TypeError, LookupError, RecursionError, UsageError) as error:
        problems.append(f"{prefix}{type(error).__name__}: {error}")


def document_of(file: Path, form: type[_Form]) -> _Form:
    """Read a file of this form. Raises ConfigError and ValidationError, which `gather` collects."""
    document = json_of(file)
    version = document.get("format") if isinstance(document, dict) else None
    problem = "it is from a release before 1.0: fit the policy again" if version is None else f"it is {version!r}"
    _refuse([] if version == FORMAT else [f"format: {problem}; this release of cascade reads {FORMAT}"])
    read = form.model_validate_json(canonical(document))
    rest = {name: value for name, value in document.items() if name != "sha256"}
    _refuse([] if digest(rest) == read.sha256 else [f"sha256: the rest of the file was changed; {REPAIR}"])
    return read


def _policy(written: _PolicyFile, folder: Path) -> Policy:
    names = [node.name for node in written.plan]
    unknown = [name for name in written.nodes or () if name not in names]
    kind, problems = ROOMS.find(written.kind), [f"nodes: the plan has no node {name!r}" for name in unknown]
    if kind is None:
        problems.append(f"kind: there is no policy {written.kind!r}{did_you_mean(written.kind, ROOMS.names)}")
    _refuse(problems)
    assert kind is not None  # noqa: S101 - refused above
    nodes = None if written.nodes is None else tuple([names.index(name) for name in written.nodes])
    policy = kind.read({**written.settings, "nodes": nodes}, _tensors(written.model_sha256, folder / MODEL_FILE))
    unchanged = policy.settings() == written.settings and policy.nodes == nodes
    _refuse([] if unchanged else [f"settings: they are not those of the policy {written.kind!r}"])
    return policy


def _tensors(model_sha256: str | None, file: Path) -> Mapping[str, NDArray[Any]]:
    """Return the arrays of a policy, if it has any."""
    if model_sha256 is None:
        return {}
    data = content(file)
    changed = sha256(data).hexdigest() != model_sha256
    _refuse([f"model_sha256: {MODEL_FILE} is another file, or was changed; {REPAIR}"] if changed else [])
    try:
        return load(data)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise ConfigError([f"model_sha256: {MODEL_FILE} has no plain arrays: {error}"]) from None


def withdraw(folder: str | Path, name: str, reason: str) -> None:
    """Record why a certificate is withdrawn, for every process that reads the policy directory.

    `name` is its id, or the hash of its requests, which withdraws all certificates on them. Raises OSError.
    """
    _mark(folder, name).write_text(reason, "utf-8")


def withdrawal(folder: str | Path, *certificates: Certificate) -> tuple[str, str] | None:
    """Return what withdrew one of these certificates ("audits" or "canaries"), and why; None if nothing did."""
    for by, names in (("audits", "id"), ("canaries", "data_sha256")):
        for mark in (_mark(folder, getattr(certificate, names)) for certificate in certificates):
            if mark.exists():
                with suppress(ConfigError):  # a mark counts even if it cannot be read, or is half written
                    return by, content(mark).decode("utf-8", "replace") or "it was withdrawn"
                return by, "it was withdrawn"
    return None


def record_audit(folder: str | Path, certificate: str, group: str, missed: bool) -> None:
    """Record an audit of a group, a hash, for every process that reads a policy directory. Raises OSError."""
    with _mark(folder, certificate, "audits").open("ab", buffering=0) as file:  # one write per line
        file.write(f"\n{group} {missed:d}\n".encode("ascii"))  # a killed process may have left half a line


def audits_on_record(folder: str | Path, certificate: str, begin: int) -> tuple[list[tuple[str, bool]], int]:
    """Return group and miss of each audit recorded after byte `begin`, and the byte up to which the record was read.

    A line that a killed process left half written is skipped. Raises OSError if the record cannot be read.
    """
    with suppress(FileNotFoundError), open_regular(_mark(folder, certificate, "audits")) as file:
        file.seek(begin)
        text = file.read()
        text = text[: text.rfind(b"\n") + 1]
        audits = re.findall(rb"^([0-9a-f]{16}) ([01])$", text, re.MULTILINE)
        return [(group.decode(), missed == b"1") for group, missed in audits], begin + len(text)
    return [], begin


@lru_cache  # each request needs the same few, and making a path takes longer than checking whether it exists
def _mark(folder: str | Path, name: str, what: str = "withdrawn") -> Path:
    return Path(folder) / f"{what}-{name}.txt"
