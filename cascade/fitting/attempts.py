"""How often the requests of a log have been used to certify: fitting again until one fit is cheap must cost something.

Beside a log lies a small file with the requests, as hashes, of every attempt that read their outcomes, failed ones
too. The k-th attempt that shares a request with those before is tested at a smaller level: the first has .95 δ, the
k-th .05 δ / (k (k − 1)), so that of attempts on the same requests any breaks its promise with probability δ at most.
Only the same fit of the same log is free. Where no file can be, or it cannot be written, the number is unknown.

What this cannot see: a file that was deleted, a log that was copied elsewhere, and a choice among fits of different
requests, each of which is a first attempt.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cascade.errors import ConfigError

FIRST = 0.95
"""The part of δ that the first attempt may use."""
_BYTES = 8
_SUFFIX = ".attempts.jsonl"


class Attempts(NamedTuple):
    """The number of this attempt on its requests, from 1; None where it is unknown, and why."""

    number: int | None
    why: str | None = None


def level_of(number: int | None, delta: float) -> float:
    """Return the level at which the attempt of a number is tested; an unknown one as the first.

    >>> [round(level_of(k, 0.1), 6) for k in (1, 2, 3)], round(sum(level_of(k, 0.1) for k in range(1, 10_000)), 4)
    ([0.095, 0.0025, 0.000833], 0.1)
    """
    if number is None or number == 1:
        return FIRST * delta
    return (1 - FIRST) * delta / (number * (number - 1))


def place_of(log: str | Path) -> Path:
    """Return the file beside a log that has its attempts."""
    path = Path(log)
    return path.with_name(path.name + _SUFFIX)


def count(file: Path | None, requests: Iterable[str], fit: str) -> Attempts:
    """Record an attempt before its outcome is known, and return its number on these requests.

    Args:
        file: the file with the attempts so far; None: there is no place for one.
        requests: the ids of the requests whose outcomes it reads.
        fit: a hash of everything that decides its outcome; the same fit again keeps its number.

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
            same = [other["number"] for other in earlier if other["fit"] == fit]
            if same:
                return Attempts(same[0])
            number = _next(here, earlier)
            line = {"fit": fit, "number": number, "requests": base64.b64encode(here.tobytes()).decode("ascii")}
            out.write(json.dumps(line) + "\n")
            out.flush()
            os.fsync(out.fileno())
    except OSError as error:
        return Attempts(None, f"{file} cannot be written: {error.strerror}")
    return Attempts(number)


def upcoming(file: Path, requests: Iterable[str]) -> int:
    """Return the number that a further attempt on these requests would have.

    Raises:
        ConfigError: the file is not one of attempts.
    """
    return _next(_hashes(requests), _read(file)) if file.is_file() else 1


def _next(here: np.ndarray[tuple[int], np.dtype[np.uint64]], earlier: Iterable[Mapping[str, Any]]) -> int:
    return 1 + sum(bool(np.isin(here, other["requests"]).any()) for other in earlier)


def _hashes(requests: Iterable[str]) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    digests = [hashlib.sha256(name.encode("utf-8", "replace")).digest()[:_BYTES] for name in set(requests)]
    return np.unique(np.frombuffer(b"".join(digests), dtype="<u8"))


def _read(file: Path) -> list[dict[str, Any]]:
    """Return the attempts so far."""
    found = []
    for number, line in enumerate(file.read_text("utf-8").splitlines(), 1):
        try:
            attempt = json.loads(line)
            requests = np.frombuffer(base64.b64decode(attempt["requests"], validate=True), dtype="<u8")
            found.append({"fit": str(attempt["fit"]), "number": int(attempt["number"]), "requests": requests})
        except (ValueError, KeyError, TypeError) as error:
            problem = f"line {number} is no attempt ({error}): restore the file, or fit on requests that are new"
            raise ConfigError([problem], str(file)) from None
    return found
