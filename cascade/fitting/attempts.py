"""How often the requests of a log have been used to certify: fitting again until one fit is cheap must cost something.

Beside a log lies a small file with the requests, as hashes, of every attempt that read their outcomes, failed ones
too; all requests of a group are one piece of evidence. The first may spend .99 δ, each later one half of what the
attempts with its most used request left. Losses are whole, so an exact test spends less than its level, by an amount
that the numbers of requests alone decide: what it spends is recorded before an outcome is read, and the rest stays. A
fit on average spends its share, since it shows outcomes. What the attempts with one request spend sums to less than δ,
so any of them breaks its promise with probability δ at most. Only the same fit of the same log is free. Where no file
can be, or it cannot be written, the number is unknown.

What this cannot see: a file that was deleted, a log that was copied without it, and a choice among fits that share no
request: each is a first attempt.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cascade.errors import ConfigError, UsageError

FIRST, LATER = 0.99, 0.5
"""The part of δ that the first attempt may spend, and the part that a later one may of what those before it left."""
_BYTES = 8
_SUFFIX = ".attempts.jsonl"


class Attempts(NamedTuple):
    """The number of this attempt on its requests, from 1; None where it is unknown, and why.

    `share` is the part of δ that it may spend: unknown attempts count as the first.
    """

    number: int | None
    why: str | None = None
    share: float = FIRST


def place_of(log: str | Path) -> Path:
    """Return the file beside a log that has its attempts."""
    path = Path(log)
    path = path.resolve()
    return path.with_name(path.name + _SUFFIX)


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
        return Attempts(None, "the log is no file, beside which the attempts could be counted")
    here = _hashes(requests)
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


def upcoming(file: Path, requests: Iterable[str]) -> Attempts:
    """Return the number and the share that a further attempt on these requests would have.

    Raises:
        ConfigError: the file is not one of attempts.
    """
    return _next(_hashes(requests), _read(file) if file.is_file() else [])


def _next(here: np.ndarray[tuple[int], np.dtype[np.uint64]], earlier: Iterable[Mapping[str, Any]]) -> Attempts:
    """Return the number of a further attempt, and its share: of what is left of the request that was used most."""
    spent, number = np.zeros(here.size), 1
    for attempt in earlier:
        shared = np.isin(here, attempt["requests"])
        spent += shared * attempt["spent"]
        number += bool(shared.any())
    left = 1 - float(spent.max(initial=0.0))
    if number > 1 and left <= 0:
        raise UsageError("All of δ is spent on a request of this log by earlier fits: fit on requests that are new.")
    return Attempts(number, share=FIRST if number == 1 else LATER * left)


def _hashes(requests: Iterable[str]) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    digests = [hashlib.sha256(name.encode("utf-8", "replace")).digest()[:_BYTES] for name in set(requests)]
    return np.unique(np.frombuffer(b"".join(digests), dtype="<u8"))


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
