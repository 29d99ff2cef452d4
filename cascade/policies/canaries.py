"""Canaries: frozen inputs of a judge whose P(yes) shows whether the same weights still answer under its name.

Up to 100 inputs that a fit saw are kept with P(yes) of five repeats, whose spread is the jitter. A run sends each once
and makes one test. While the judge is the same, a run's P(yes) is exchangeable with the R recorded ones: each of the
R + 1 values of an input may be the run's. Given them, the sum over inputs of how far out the run's lies has the bound

    p = min over λ ≥ 0 of Π_i mean_j exp(λ d_ij)        d_ij: how much further out value j lies than the run's

It holds for any distribution of the jitter, even without any, and needs no random draws. Three sums share the level: of
P(yes), of −P(yes), and of the distance from the mean of the other values, since other weights may keep the mean. A
run's values are first moved by `TOLERANCE` towards the recorded ones, so smaller changes of P(yes) never count.

Assumption: calls are independent, given the judge. Reference: Chernoff (1952).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from cascade.conformal.certificate import Sha256
from cascade.errors import ConfigError, UsageError
from cascade.files import json_bytes, write_whole
from cascade.policies.directory import FORMAT, Strict, document_of, gather, with_hash, withdraw
from cascade.table import Floats

MOST, LEAST, REPEATS = 100, 20, 5
"""The most canaries, the fewest that a run decides on, and the repeats of each."""
TOLERANCE = 0.01
"""A change of P(yes) that never counts: another order of summation, or another GPU, may cause it."""
FALSE_A_YEAR, RUNS_A_YEAR = 0.01, 400
"""The probability of a false suspension in a year of runs: one per day, and some by hand."""
CANARY_FILE, RUNS_FILE = "canaries.json", "canary_runs.jsonl"
_STAKES, _DOUBLINGS = (0.5, 0.7), 6
"""Multiples of the λ that is best for a normal sum, and how often each is doubled. Any λ gives a bound."""


def p_value(recorded: Floats, run: Floats) -> Floats:
    """Return an upper bound on the probability that the recorded judge gives runs as far out as these: float64 (…).

    Guarantee: for runs of the recorded judge, even with each P(yes) moved by up to `TOLERANCE`, a value of p or less
    has a probability of at most p, over recording and run.

    Args:
        recorded: P(yes) of the repeats, float64 (m, R).
        run: P(yes) of each canary in each run, float64 (…, m); NaN, for no verdict, is ignored.

    >>> p_value(np.full((100, 5), 0.6), np.full(100, 0.61)), bool(p_value(np.full((9, 5), 0.6), np.full(9, 0.7)) < 1e-5)
    (array(1.), True)
    """
    mean, size = recorded.mean(axis=-1), recorded.shape[-1]
    jitter, shift = (recorded - mean[:, None]).T.reshape(size, *[1] * (run.ndim - 1), -1), run - mean
    distance = np.maximum(np.abs(shift) - TOLERANCE, 0.0)
    from_others = np.abs(jitter * (1 + 1 / size) - np.sign(shift) * distance / size)
    further = (jitter - (shift - TOLERANCE), (shift + TOLERANCE) - jitter, from_others - distance)
    return np.asarray(np.minimum(1.0, len(further) * np.min([_tail(d) for d in further], axis=0)))


def _tail(further: Floats) -> Floats:
    """Return the bound on Pr[Σ d_i ≥ 0] from the d_ij, (R, …, m), of the recorded values; the run's own d is 0."""
    d = np.nan_to_num(further.round(9), nan=0.0)  # without rounding errors
    size, mean = len(d) + 1, d.sum(axis=0) / (len(d) + 1)
    out, spread = -mean.sum(axis=-1), ((d**2).sum(axis=0) / size - mean**2).sum(axis=-1)
    beyond, least = np.asarray((out > 0) & (spread > 0)), np.zeros(out.shape)
    best = (out / np.where(beyond, spread, 1.0))[beyond][:, None]
    for stake in _STAKES:
        powers = np.exp(best * stake * d[:, beyond])
        for _ in range(_DOUBLINGS):
            least[beyond] = np.minimum(least[beyond], np.log((1 + powers.sum(axis=0)) / size).sum(axis=-1))
            powers = np.minimum(powers, 1e150) ** 2  # e^709 is about the largest float
    return np.asarray(np.exp(least))


class Canary(NamedTuple):
    """A frozen input of a judge: its step of the plan, what is sent (roles and texts), and P(yes) of each repeat."""

    step: int
    messages: tuple[tuple[Literal["system", "user", "assistant"], str], ...]
    recorded: tuple[Annotated[float, Field(ge=0, le=1)], ...] = ()


class CanaryRun(BaseModel):
    """A run, stored as a line of an append-only file; `p` is None if there were too few verdicts to decide."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    at: str
    data: tuple[str, ...]
    verdicts: int
    unknown: int
    p: float | None
    suspends: bool
    cost_nano_usd: int | None

    def add(self, folder: Path) -> None:
        """Append the run to those of a policy directory, and withdraw the certificates that it suspends."""
        why = f"it is suspended: canaries of {self.at} show another judge under its name (p = {self.p})"
        for requests in self.data if self.suspends else ():
            withdraw(folder, requests, f"{why}; collect its verdicts and fit again")
        with (folder / RUNS_FILE).open("a", encoding="ascii") as file:
            file.write(self.model_dump_json() + "\n")


class Canaries(Strict):
    """The canaries of a policy directory, by the hashes of the requests of its certificates (`data`).

    At most `runs_a_year` runs decide within 365 days, and share `FALSE_A_YEAR` evenly.
    """

    format: str = FORMAT
    sha256: str = ""
    data: tuple[Sha256, ...]
    runs_a_year: Annotated[int, Field(ge=1)]
    canaries: Annotated[tuple[Canary, ...], Field(min_length=LEAST, max_length=MOST)]

    @property
    def level(self) -> float:
        """The level of a run."""
        return FALSE_A_YEAR / self.runs_a_year

    @property
    def jitter(self) -> float:
        """The standard deviation of repeats, as a root mean square over canaries."""
        return float(np.sqrt(np.var([each.recorded for each in self.canaries], axis=1, ddof=1).mean()).round(9))

    def judged(self, p_yes: Iterable[float | None], at: datetime, cost_nano_usd: int | None) -> CanaryRun:
        """Return the outcome of a run; None is no verdict. Verdicts on fewer than half, or `LEAST`, do not decide."""
        run = np.array([np.nan if p is None else p for p in p_yes])
        known, p = int(np.count_nonzero(~np.isnan(run))), None
        if known >= max(LEAST, run.size / 2):
            p = float(p_value(np.array([canary.recorded for canary in self.canaries]), run))
        return CanaryRun(
            at=at.isoformat(timespec="seconds"), data=self.data, verdicts=known, unknown=run.size - known, p=p,
            suspends=p is not None and p <= self.level, cost_nano_usd=cost_nano_usd,
        )  # fmt: skip

    def refuse_too_many(self, runs: Iterable[CanaryRun], now: datetime) -> None:
        """Raise UsageError if as many runs as share the level have decided within the last 365 days."""
        since = (now - timedelta(days=365)).isoformat()
        if sum(run.p is not None and run.at > since and run.data == self.data for run in runs) >= self.runs_a_year:
            raise UsageError(f"{self.runs_a_year} runs a year share the level, and all of them were made: wait.")

    def write(self, folder: Path) -> None:
        """Write the canaries into a policy directory."""
        document = self.model_dump(mode="json", exclude={"format", "sha256"})
        write_whole(folder, {CANARY_FILE: json_bytes(with_hash(**document))})

    @classmethod
    def read(cls, folder: Path, data: tuple[str, ...]) -> Canaries | None:
        """Return a directory's canaries for these requests, if any. Raises ConfigError if the file was changed."""
        problems, read = list[str](), None
        with gather(problems, f"{CANARY_FILE}: "):
            read = document_of(folder / CANARY_FILE, cls) if (folder / CANARY_FILE).exists() else None
        if problems:
            raise ConfigError(problems, str(folder))
        return read if read is not None and read.data == data else None


def runs_of(folder: Path) -> list[CanaryRun]:
    """Return the runs of a policy directory. Raises ConfigError if a line is not a run."""
    try:
        text = (folder / RUNS_FILE).read_text("ascii") if (folder / RUNS_FILE).exists() else ""
        return [CanaryRun.model_validate_json(line) for line in text.split("\n")[:-1]]  # the last may be half written
    except (OSError, ValueError) as error:
        raise ConfigError([f"a line is not a run of canaries: {error}"], str(folder / RUNS_FILE)) from None
