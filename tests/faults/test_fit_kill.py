"""SIGKILL at random moments of `fit`: what goes on from the checkpoint ends with the bytes of a run that never stopped.

Compared are all files of the policy directory: the settings, the numbers, the certificate, the model card, the curves.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE_S

pytest.importorskip("torch")

from simulated import WORLDS, simulate

from cascade.evaluation.card import card_files, facts_of
from cascade.guarantees.base import Guarantee
from cascade.policies.artifact import write
from cascade.training.fitting import fit_policy
from cascade.training.networks.config import CCPOConfig
from cascade.training.networks.progress import CHECKPOINT_FILE, Checkpoints, Progress
from cascade.training.networks.trainer import Networks

ROOT = Path(__file__).parents[2]
STEPS, EVERY = 160, 4
CONFIG = CCPOConfig(layers=(8, 8), batch=30, steps=STEPS)
LOADED = ["cascade.training.networks.checkpoint", "cascade.evaluation.card", "simulated"]
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")


def work(folder: str, last: int) -> None:
    """Fit and write, in a process of its own, which waits at a step until it is killed, if it comes so far.

    It is killed, the machine is not: no write waits for the disk.
    """
    os.fsync = lambda _: None

    def tell(now: Progress) -> None:
        if now.step >= last:
            signal.pause()

    networks = Networks(CONFIG, checkpoints=Checkpoints(Path(folder, "ck"), EVERY, resume=True), tell=tell)
    log = simulate(WORLDS["hotpotqa/llama-2-7b"], 150, 0)
    found = fit_policy([log], Guarantee("coverage", 0.1), method="ccpo", today=date(2026, 11, 21), networks=networks)
    write(Path(folder, "policy"), found.artifact, files=card_files(facts_of(found, {}), None))


def started(folder: Path, last: int = STEPS + 1) -> Any:
    """Return a process forked from one that has torch loaded: it starts in milliseconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, *LOADED])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests")]))
        process = context.Process(target=work, args=(str(folder), last), daemon=True)
        process.start()
    return process


def step_in(folder: Path) -> int:
    """Return the step of the checkpoint, 0 where there is none."""
    try:
        return int(json.loads((folder / CHECKPOINT_FILE).read_bytes())["step"])
    except FileNotFoundError:
        return 0


def contents(folder: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in sorted(folder.iterdir())}


def killed_after(process: Any, folder: Path, step: int, more_s: float) -> bool:
    """Kill a process a moment after it has written a checkpoint of a step; return whether it was still alive."""
    ends = time.monotonic() + PATIENCE_S
    while step_in(folder) < step and process.exitcode is None:
        process.join(0.001)
        assert time.monotonic() < ends, "it neither goes on nor ends"
    process.join(more_s)
    process.kill()
    process.join()
    return bool(process.exitcode == -9)


@pytest.mark.parametrize("aims", [(20, 90), pytest.param((0, 20, 50, 90, 130), marks=pytest.mark.long)])
def test_killed_at_random_a_fit_goes_on_to_the_same_bytes(tmp_path: Path, aims: tuple[int, ...]) -> None:
    (tmp_path / "whole").mkdir()
    (tmp_path / "cut").mkdir()
    whole = started(tmp_path / "whole")
    whole.join()
    assert whole.exitcode == 0
    chance, steps = random.Random(1), [0]
    for aim in aims:
        process = started(tmp_path / "cut", aim + 28)
        assert killed_after(process, tmp_path / "cut" / "ck", aim, chance.uniform(0, 0.03))
        steps.append(step_in(tmp_path / "cut" / "ck"))
    last = started(tmp_path / "cut")
    last.join()
    assert last.exitcode == 0
    assert steps == sorted(steps), "a checkpoint went back"
    assert contents(tmp_path / "cut" / "policy") == contents(tmp_path / "whole" / "policy")
    assert contents(tmp_path / "cut" / "ck") == contents(tmp_path / "whole" / "ck")


@pytest.mark.long  # three processes that load torch and matplotlib: 28 s on two busy cores
def test_the_command_line_is_killed_and_goes_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cascade", "fit", "demo", "--policy", "ccpo"]
    command += ["--steps", str(STEPS), "--checkpoint-every", "2", "--resume", "--json"]

    def run(name: str) -> Any:
        said = [*command, "--checkpoint", f"{name}-ck", "-o", name, "--force"]
        return subprocess.Popen(
            said, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL
        )

    cut = run("cut")
    ends = time.monotonic() + PATIENCE_S
    while step_in(tmp_path / "cut-ck") < 40:
        assert cut.poll() is None
        assert time.monotonic() < ends
    cut.kill()
    assert cut.wait(PATIENCE_S) == -9
    assert 40 <= step_in(tmp_path / "cut-ck") < STEPS
    assert not (tmp_path / "cut").exists()
    assert [one.wait(PATIENCE_S) for one in (run("cut"), run("whole"))] == [0, 0]
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")
