"""How many files of the package a command runs: a command loads what it needs, and nothing of the others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

COUNTED = """
import contextlib, io, sys
from cascade.cli.main import main
sys.argv[0] = "cascade"
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main()
print(*sorted(name for name in sys.modules if name.partition(".")[0] in {"cascade", "torch", "matplotlib", "litellm"}))
"""
CONFIG = """
models: {base: openai/gpt-4o-mini, guide: openai/gpt-4o}
strategy: {kind: ladder, models: [base, guide]}
policy: {kind: threshold, signal: reply_mean_logprob, threshold: 0.16}
provider: fake
"""
FIT = ("fit", "demo-ladder", "--promise", "regret", "--risk", "0.2", "--confidence", "0.9", "-o", "policy")
ASK = ("ask", "Which river runs through Vienna?")
MOST = {FIT: 72, ASK: 64, ("--version",): 12, ("prices", "gpt-4o-mini"): 20, ("ask", "--help"): 30}


def run(command: tuple[str, ...], folder: Path) -> list[str]:
    """Return the modules that a command has loaded when it ends."""
    done = subprocess.run(
        [sys.executable, "-c", COUNTED, *command],
        cwd=folder,
        env={**os.environ, "CASCADE_TRACES": "off", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()[-1].split()


@pytest.mark.parametrize("command", MOST, ids=lambda one: one[0])
def test_a_command_runs_few_files(command: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "cascade.yaml").write_text(CONFIG, "utf-8")
    loaded = run(command, tmp_path)
    ours = [name for name in loaded if name.startswith("cascade")]
    assert len(ours) <= MOST[command], ours
    assert not {"torch", "matplotlib", "litellm"} & set(loaded)
    others = {"cascade.api.study", "cascade.cli.demo", "cascade.orchestrator"}
    assert not (others - ({"cascade.orchestrator"} if command == ASK else set())) & set(loaded)


def test_a_fit_loads_no_study_no_network_no_configuration_and_no_provider(tmp_path: Path) -> None:
    rooms = {"studies", "networks", "learned", "config", "plans", "providers", "server", "serving", "engine"}
    assert [name for name in run(FIT, tmp_path) if rooms & set(name.split("."))] == []
