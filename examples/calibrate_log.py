"""Calibrate a policy on a log, check the certificate, and serve fresh questions under it.

    python examples/calibrate_log.py

The log ships with the package: two real local models, both asked every question, read here as a ladder. Half of the
questions calibrate, the others are asked and answered from the same log, so it runs offline. On the command line it is
`cascade calibrate`, `cascade verify`, and `policy: ./policy` in the configuration.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cascade import Orchestrator
from cascade.calibration.calibrating import calibrate_policy
from cascade.calibration.verifying import verify
from cascade.config import load
from cascade.evaluation.logs import open_log
from cascade.factory import build_policy
from cascade.guarantees.base import Guarantee
from cascade.guarantees.certificate import statement
from cascade.matching import exact_match
from cascade.policies.artifact import write
from cascade.providers.replay import Replay
from cascade.types import Question

CONFIG = {
    "models": {
        "base": {"model": "qwen2.5-coder-0.5b", "price": {"input": 0.1, "output": 0.4}, "max_tokens": 128},
        "guide": {"model": "qwen2.5-coder-1.5b", "price": {"input": 1.0, "output": 4.0}, "max_tokens": 128},
    },
    "strategy": {"kind": "ladder", "models": ["base", "guide"]},
    "policy": {"kind": "threshold", "when": "reply_logprob", "keep": "both"},  # the guide where the base is in doubt
    "traces": "off",
}


def main() -> None:
    """Write a policy directory, verify it, and answer under its certificate."""
    config = load({**CONFIG, "provider": "local"})
    log = open_log("demo-ladder")
    (table,) = log.tables
    half = np.arange(table.n) % 2 == 0
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder, "policy")
        asked = Guarantee("coverage", alpha=0.1, delta=0.1)
        done = calibrate_policy([table.take(half)], build_policy(config), config.policy, asked, config=config)
        write(directory, done.artifact)
        print(statement(done.artifact.certificates[0]))
        for check in verify(directory, [table]).checks:
            print(f"{'ok' if check.ok else 'NO'} {check.name}: {check.said}")
        solvable = dict(zip(np.array(table.ids)[~half], table.arrays.solvable[~half], strict=True))
        rows = list(log.rows())
        fresh = {row["episode_id"]: row for row in rows if row["episode_id"] in solvable}
        serve(directory, Replay.of(rows), solvable, fresh)


def serve(directory: Path, models: Replay, solvable: dict[str, bool], fresh: dict[str, Mapping[str, Any]]) -> None:
    """Ask the other half, and count the misses: some step has a right answer, and none of those kept is right."""
    settings = {**CONFIG, "policy": str(directory), "provider": "local"}
    with Orchestrator.from_config(settings, providers={"local": models}) as orchestrator:
        answers = [orchestrator.ask(Question(row["question"], row["context"])) for row in fresh.values()]
    missed = sum(
        solvable[name] and not any(exact_match(text, row["gold"]) for text in answer.answers)
        for (name, row), answer in zip(fresh.items(), answers, strict=True)
    )
    steps = sum(len(answer.steps) for answer in answers) / len(answers)
    print(f"{missed} of {len(fresh)} fresh questions missed, in {steps:.2f} steps of 2 on average")
    for said in {answer.certificate.calibration_id for answer in answers if answer.certificate}:
        print(f"each answered under certificate {said}")


if __name__ == "__main__":
    main()
