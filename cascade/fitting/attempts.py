"""How often the requests of a log have been used to certify: fitting again until a fit is cheap must have a price.

A small file in a log's folder lists, as hashes, the requests of every attempt, failed ones too, that read outcomes of
logs in this folder; all requests of a group are one piece of evidence. A copy, an import and a part of a log have the
same requests, so they count together. The first attempt may spend .99 δ, each later one half of what earlier attempts
left of its most used request. Losses are whole, so an exact test spends less than its level, by an amount that depends
only on numbers of requests. What it spends is recorded before an outcome is read; the rest is kept. An attempt that can
prove nothing spends nothing: the next may spend as much as a first. A fit on average spends its share, since it shows
outcomes. Attempts with a common request spend less than δ in sum, so with probability 1 − δ no attempt on a list fixed
beforehand breaks its promise; settings suggested by an earlier outcome are on no such list. Only the same fit of the
same log by the same code is free. If there is no place for the file, or it cannot be written, the number is unknown.

What this cannot see: a deleted file, a log in another folder, and a choice among fits that share no request. Each of
those is a first attempt, since its requests are new evidence, and its own certificate holds as stated. If the fits of
all parts of a log shared one δ, a growing log would have nothing left to spend on its new requests.
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
"""The part of δ that the first attempt may spend, and the part of what is left that each later one may spend."""
NAME = "cascade.attempts.jsonl"
"""The file's name."""


class Attempts(NamedTuple):
    """The number of this attempt on its requests, from 1; if unknown, None and the reason.

    `share` is the part of δ that it may spend; an attempt of unknown number counts as the first. `level` is the product
    of both; None for a promise on average.
    """

    number: int | None
    why: str | None = None
    share: float = FIRST
    level: float | None = None


def place_of(log: str | Path) -> Path:
    """Return the file in the folder of a log that has its attempts."""
    return Path(log).resolve().with_name(NAME)


def count(file: Path | None, requests: Iterable[str], fit: str, spends: Callable[[float], float]) -> Attempts:
    """Record an attempt before its outcome is known, and return its number on these requests.

    Args:
        file: the file with the attempts so far; None if there is no place for one.
        requests: the ids of the requests whose outcomes the attempt reads.
        fit: a hash of everything that decides its outcome; the same fit again keeps its number and its share.
        spends: returns the part of δ that its tests spend if they may spend a share; it reads no outcome.

    Raises:
        ConfigError: the file is not a file of attempts.
    """
    if file is None:
        return Attempts(None, "the log is not a file, so no folder counts attempts")
    here = np.unique(first_bits(requests).byteswap(), return_counts=True)[0]  # sorts with counts: faster than hashing
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
    """Return the part of δ that each attempt on any of these requests may spend, by its number; empty without a file.

    Args:
        file: the file of attempts.
        hashes: the requests, as in a policy directory (`directory.hashed`).

    Raises:
        ConfigError: the file is not a file of attempts.
    """
    numbers = np.array([int.from_bytes(bytes.fromhex(name), "little") for name in hashes], dtype=np.uint64)
    attempts = _read(file) if file is not None and file.is_file() else []
    return {attempt["number"]: attempt["share"] for attempt in attempts if np.isin(attempt["requests"], numbers).any()}


def _next(here: np.ndarray[tuple[int], np.dtype[np.uint64]], earlier: Iterable[Mapping[str, Any]]) -> Attempts:
    """Return the number of a further attempt, and its share of what is left of its most used request."""
    spent, number = np.zeros(here.size), 1
    for attempt in earlier:
        shared = np.isin(here, attempt["requests"])
        spent += shared * attempt["spent"]
        number += bool(shared.any())
    left = 1 - float(spent.max(initial=0.0))
    if left <= 0:
        raise UsageError("Earlier fits have spent all of δ on a request of this log: fit on new requests.")
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
            problem = f"line {number} is not an attempt ({error}): restore the file, or fit on new requests"
            raise ConfigError([problem], str(file)) from None
    return attempts


def fingerprint(log: Log, promise: Promise, policy: Any, kinds: Iterable[type | None], **settings: Any) -> str:
    """Return a hash of everything that decides a fit: the promise, the policy, the settings, the log, and the code.

    Args:
        log: the requests that may certify or learn.
        promise: what is promised.
        policy: the requested policy, or its name and settings.
        kinds: the classes that may be a user's own; None entries are ignored.
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
    """Return a hash of a user's own class: the functions of it and its bases, and the files that define them.

    Cascade's own code is left out: its version stands for it.
    """
    digest = hashlib.sha256()
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] in {"cascade", "builtins", "abc"}:
            continue
        functions = [(name, value) for name, value in sorted(vars(base).items()) if inspect.isfunction(value)]
        digest.update(repr([(name, _bytecode(function.__code__)) for name, function in functions]).encode())
        with suppress(TypeError, OSError):  # a class typed into an interactive session has no file
            digest.update(Path(inspect.getfile(base)).read_bytes())
    return digest.hexdigest()


def _bytecode(code: CodeType) -> list[object]:
    """Return the bytecode of a function, its names and constants, without file and line: equal in every process."""
    constants = [
        _bytecode(value) if isinstance(value, CodeType) else sorted(map(repr, value))
        if isinstance(value, frozenset) else repr(value)
        for value in code.co_consts
    ]  # fmt: skip
    return [code.co_code, code.co_names, constants]
