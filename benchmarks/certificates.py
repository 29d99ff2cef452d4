"""How long a certificate takes to make, to read and to verify, and how often a promise that is kept is called broken.

    python benchmarks/certificates.py         two minutes; --questions 10000 for less
    python benchmarks/certificates.py --json

Simulated questions, 4 steps × 2 answers, a threshold policy. Timed in one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from published.worlds import WORLDS, simulate

from cascade.calibration.calibrating import calibrate_policy
from cascade.calibration.samples import data_sha256, once
from cascade.calibration.scores import table_scores
from cascade.calibration.verifying import verify
from cascade.config import policy_section
from cascade.conformal.binomial import lower_tail, misses_p_value
from cascade.conformal.split import calibrate
from cascade.errors import ConfigError
from cascade.factory import policy_of
from cascade.guarantees.base import Guarantee
from cascade.guarantees.laws import LEVEL
from cascade.policies.artifact import CERTIFICATE_FILE, write
from cascade.policies.reading import read

WORLD, ALPHA, TODAY = "hotpotqa/llama-2-7b", 0.1, date(2026, 11, 21)
SECTION = policy_section({"kind": "threshold", "keep": "both"})
T = TypeVar("T")


def timed(did: Callable[[], T]) -> tuple[T, float]:
    """Return what a call returned and the processor seconds that it took."""
    start = time.process_time()
    found = did()
    return found, time.process_time() - start


def times(questions: int, folder: Path) -> dict[str, float]:
    """Time each stage on so many questions."""
    table, policy = simulate(WORLDS[WORLD], questions, seed=0), policy_of(SECTION)
    asked = Guarantee("coverage", ALPHA)
    found: dict[str, float] = {"questions": questions}
    _, found["scores_s"] = timed(lambda: table_scores(policy, table))
    _, found["once_s"] = timed(lambda: once(table))
    _, found["hash_s"] = timed(lambda: data_sha256(table))
    done, found["calibrate_s"] = timed(lambda: calibrate_policy([table], policy, SECTION, asked, today=TODAY))
    _, found["write_s"] = timed(lambda: write(folder, done.artifact))
    _, found["read_s"] = timed(lambda: read(folder))
    verdict, found["verify_s"] = timed(lambda: verify(folder, [table], TODAY))
    if not verdict.ok:
        raise SystemExit(f"a certificate that was just made does not verify: {verdict}")
    found["certificate_bytes"] = (folder / CERTIFICATE_FILE).stat().st_size
    return found


def edits(folder: Path) -> dict[str, int]:
    """Replace every byte of a certificate by each of `EDITS`, and count what is refused."""
    table = simulate(WORLDS[WORLD], 9, seed=0)
    write(folder, calibrate_policy([table], policy_of(SECTION), SECTION, Guarantee("coverage"), today=TODAY).artifact)
    file, whole = folder / CERTIFICATE_FILE, read(folder)
    text = file.read_bytes()
    found = {"bytes": len(text), "edits": 0, "refused": 0, "same": 0, "believed": 0}
    for place in range(len(text)):
        for byte in EDITS:
            if byte != text[place]:
                file.write_bytes(text[:place] + bytes([byte]) + text[place + 1 :])
                found["edits"] += 1
                found[_outcome(folder, whole)] += 1
    return found


EDITS = tuple(b'09a"}, \xff')


def _outcome(folder: Path, whole: object) -> str:
    try:
        return "same" if read(folder) == whole else "believed"
    except ConfigError:
        return "refused"


def refutations(repeats: int, n: int, m: int) -> dict[str, float]:
    """Return how often a promise that is kept is refuted: by its own law, and by a binomial test at alpha.

    Critical values without ties, uniform: the coverage at kappa is 1 − kappa, and the law of misses is exact.
    """
    rng = np.random.default_rng(0)
    own = plain = 0
    for _ in range(repeats):
        found = calibrate(rng.random(n), ALPHA)
        misses = int(np.count_nonzero(rng.random(m) < found.kappa))
        own += misses_p_value(misses, m, n, found.k) <= LEVEL
        plain += lower_tail(m - misses, m, 1 - ALPHA) <= LEVEL
    return {"repeats": repeats, "n": n, "m": m, "own_law": own / repeats, "binomial": plain / repeats}


def measured(largest: int) -> dict[str, Any]:
    """Return everything that is printed."""
    with tempfile.TemporaryDirectory() as folder:
        sizes = [size for size in (1_000, 10_000, 100_000) if size <= largest]
        return {
            "times": [times(size, Path(folder) / str(size)) for size in sizes],
            "edits": edits(Path(folder) / "edits"),
            "refutations": [
                refutations(4_000, n, m) for n, m in ((50, 200), (200, 200), (200, 2_000), (1_000, 10_000))
            ],
        }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--questions", type=int, default=100_000)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = measured(given.questions)
    if given.json:
        print(json.dumps(found))
        return
    machine = f"{os.cpu_count()} cores, {platform.machine()}, numpy {np.__version__}"
    print(f"{datetime.now(UTC):%Y-%m-%d}, {machine}, load average {os.getloadavg()[0]:.1f}\n")
    for one in found["times"]:
        stages = ", ".join(f"{name.removesuffix('_s')} {one[name]:.3g}" for name in one if name.endswith("_s"))
        print(f"{one['questions']:>7,} questions, seconds: {stages}; {one['certificate_bytes']:,} bytes")
    print("\nreplacing each byte:", ", ".join(f"{count:,} {name}" for name, count in found["edits"].items()))
    print("\nkept promises refuted at 5 %")
    for one in found["refutations"]:
        print(
            f"  n {one['n']:>5,}, {one['m']:>6,} fresh: {one['own_law']:.4f}; by a binomial test {one['binomial']:.4f}"
        )


if __name__ == "__main__":
    main()
