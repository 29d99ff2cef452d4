"""How often the requests of a log have been used to certify: fitting again until one fit is cheap must cost something.

In the folder of a log lies a small file with the requests, as hashes, of every attempt on logs of this folder that
read their outcomes, failed ones too; all requests of a group are one piece of evidence. A copy, an import and a part of
a log have the same requests, and count with it. The first may spend .99 δ, each later one half of what the attempts
with its most used request left. Losses are whole, so an exact test spends less than its level, by an amount that the
numbers of requests alone decide: what it spends is recorded before an outcome is read, and the rest stays. One that can
prove nothing spends nothing: the next is as the first. A fit on average spends its share, since it shows outcomes. What
the attempts with one request spend sums to less than δ, so with probability 1 − δ no attempt of a list that was fixed
beforehand breaks its promise; settings that an earlier outcome suggested are on no such list. Only the same fit of the
same log by the same code is free. Where no file can be, or it cannot be written, the number is unknown.

What this cannot see: a file that was deleted, a log in another folder, and a choice among fits that share no request.
Each of those is a first attempt, since its requests are new evidence, and its own certificate holds as it says. To let
the fits of all parts of a log share one δ would leave a log that grows nothing to spend on its new requests.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import inspect
import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import numpy as np

from cascade._version import __version__
from cascade.conformal.certificate import plain
from cascade.conformal.promise import Promise
from cascade.errors import ConfigError, UsageError
from cascade.policies.directory import first_bits
from cascade.policies.policy import Policy
from cascade.table import Log

FIRST, LATER = 0.99, 0.5
"""The part of δ that the first attempt may spend, and the part that a later one may of what those before it left."""
NAME = "cascade.attempts.jsonl"
"""The file's name."""


class Attempts(NamedTuple):
    """The number of this attempt on its requests, from 1; None where it is unknown, and why.

    `share` is the part of δ that it may spend: unknown attempts count as the first.
    """

    number: int | None
    why: str | None = None
    share: float = FIRST


def place_of(log: str | Path) -> Path:
    """Return the file in the folder of a log that has its attempts."""
    return Path(log).resolve().with_name(NAME)


def count(file: Path | None, requests: Iterable[str], fit: str, spends: Callable[[float], float]) -> Attempts:
    """Record an attempt before its outcome is known, and return its number on these requests.

    Args:
        file: the file with the attempts so far; None: there is no place for one.
        requests: the ids of the requests whose outcomes it reads.
        fit: a hash of everything that decides its outcome; the same fit again keeps its number and its share.
        spends: returns how much of δ its tests spend of the share that they may; it reads no outcome.

    Raises:
        ConfigError: the file is not one of attempts.
    """
    if file is None:
        return Attempts(None, "the log is no file, in whose folder the attempts could be counted")
    here = np.unique(first_bits(requests).byteswap(), return_counts=True)[0]  # sorts, faster than hashes
    try:
        with file.open("a", encoding="utf-8") as out:
            fcntl.flock(out, fcntl.LOCK_EX)  # another fit may count at the same time
            earlier = _read(file)
            repeated = [attempt for attempt in earlier if attempt["fit"] == fit]
            if repeated:
                return Attempts(repeated[0]["number"], share=repeated[0]["share"])
            attempt = _next(here, earlier)
            line = {"fit": fit, "number": attempt.number, "share": attempt.share, "spent": spends(attempt.share)}
            line["requests"] = base64.b64encode(here.tobytes()).decode("ascii")
            out.write(json.dumps(line) + "\n")
            out.flush()
            os.fsync(out.fileno())
    except OSError as error:
        return Attempts(None, f"{file} cannot be written: {error.strerror}")
    return attempt


def counted(file: Path | None, hashes: Iterable[str]) -> dict[int, float]:
    """Return the part of δ that each attempt on any of some requests may spend, by its number; empty without a file.

    Args:
        file: the file of attempts.
        hashes: the requests, as in a policy directory (`directory.hashed`).

    Raises:
        ConfigError: the file is not one of attempts.
    """
    numbers = np.array([int.from_bytes(bytes.fromhex(name), "little") for name in hashes], dtype=np.uint64)
    attempts = _read(file) if file is not None and file.is_file() else []
    return {attempt["number"]: attempt["share"] for attempt in attempts if np.isin(attempt["requests"], numbers).any()}


def _next(here: np.ndarray[tuple[int], np.dtype[np.uint64]], earlier: Iterable[Mapping[str, Any]]) -> Attempts:
    """Return the number of a further attempt, and its share: of what is left of the request that was used most."""
    spent, number = np.zeros(here.size), 1
    for attempt in earlier:
        shared = np.isin(here, attempt["requests"])
        spent += shared * attempt["spent"]
        number += bool(shared.any())
    left = 1 - float(spent.max(initial=0.0))
    if left <= 0:
        raise UsageError("All of δ is spent on a request of this log by earlier fits: fit on requests that are new.")
    return Attempts(number, share=FIRST if left == 1 else LATER * left)


def _read(file: Path) -> list[dict[str, Any]]:
    """Return the attempts so far."""
    attempts = []
    for number, line in enumerate(file.read_text("utf-8").splitlines(), 1):
        try:
            attempt = json.loads(line)
            requests = np.frombuffer(base64.b64decode(attempt["requests"], validate=True), dtype="<u8")
            numbers = {"number": int(attempt["number"]), **{name: float(attempt[name]) for name in ("share", "spent")}}
            attempts.append({"fit": str(attempt["fit"]), "requests": requests, **numbers})
        except (ValueError, KeyError, TypeError) as error:
            problem = f"line {number} is no attempt ({error}): restore the file, or fit on requests that are new"
            raise ConfigError([problem], str(file)) from None
    return attempts


def fingerprint(log: Log, promise: Promise, policy: Any, kinds: Iterable[type | None], **settings: Any) -> str:
    """Return a hash of everything that decides a fit: the promise, the policy, the settings, the log, and the code.

    Args:
        log: the requests that may certify or learn.
        promise: what is promised.
        policy: what was asked for: a policy, or its name and settings.
        kinds: the classes that may be a user's own; None: none.
        settings: how the fit is made.
    """
    if isinstance(policy, Policy):
        numbers = [array.tobytes().hex() for _, array in sorted(policy.tensors().items())]
        policy = [policy.kind, policy.settings(), policy.nodes, numbers]
    code = [_code(kind) for kind in kinds if kind is not None]
    about = [log.nodes, log.ids, log.groups, log.segments, sorted(log.hidden)]
    head = [__version__, code, plain(promise), policy, settings, about]
    digest = hashlib.sha256(json.dumps(head, default=str, sort_keys=True).encode())
    columns: dict[str, Any] = {name: column for name, column in plain(log).items() if isinstance(column, np.ndarray)}
    columns |= {**log.signals, **{f"feature {name}": column for name, column in log.features.items()}}
    if log.reference is not None:
        columns |= {"reference right": log.reference.right, "reference cost": log.reference.cost_nano_usd}
    for name, column in sorted(columns.items()):
        digest.update(name.encode() + np.ascontiguousarray(column).tobytes())
    return digest.hexdigest()


def _code(kind: type) -> str:
    """Return a hash of a user's own class: of the functions of it and its bases, and of the files that define them.

    The version stands for what is cascade's own.
    """
    digest = hashlib.sha256()
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] in {"cascade", "builtins", "abc"}:
            continue
        functions = [(name, value) for name, value in sorted(vars(base).items()) if inspect.isfunction(value)]
        digest.update(repr([(name, _bytecode(function.__code__)) for name, function in functions]).encode())
        with suppress(TypeError, OSError):  # written into a session of Python, it has no file
            digest.update(Path(inspect.getfile(base)).read_bytes())
    return digest.hexdigest()


def _bytecode(code: CodeType) -> list[object]:
    """Return what a function does, without its place: the same in every process."""
    constants = [
        _bytecode(value) if isinstance(value, CodeType) else sorted(map(repr, value))
        if isinstance(value, frozenset) else repr(value)
        for value in code.co_consts
    ]  # fmt: skip
    return [code.co_code, code.co_names, constants]
