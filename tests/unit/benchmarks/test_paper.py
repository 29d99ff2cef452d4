"""The paper: what is printed is copied right, the worlds match what they are fitted to, every row is played."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from packages import Package

sys.path.append(str(Path(__file__).parents[3] / "benchmarks" / "paper"))

import printed
import tables
from printed import CCPO, CPO_BATCH, CPO_ONLINE, QUESTIONS, TABLES, UALA
from simulated import WORLDS, simulated_log

from cascade.conformal.promise import Promise
from cascade.policies.networks import NetworkSettings

torch, literal = Package("torch"), Package("literal")
FITTED = [table for table in TABLES.values() if (table.number, UALA) not in printed.IMPOSSIBLE]


def test_the_gains_are_those_that_the_tables_imply():
    """12.5 % and 16.4 % in Table 2, 58 and 64 in Table 4, as worked out from the printed page by hand."""
    rows = [TABLES[number].rows for number in (2, 3, 4, 5)]
    for other, gains in ((CPO_ONLINE, [12.5, 20.0, 58.3, 8.0]), (CPO_BATCH, [16.4, 11.8, 64.3, 10.7])):
        assert [round(100 * (1 - row[CCPO].cents / row[other].cents), 1) for row in rows] == gains


@pytest.mark.parametrize("table", FITTED, ids=lambda table: f"Table {table.number}")
def test_a_world_has_the_printed_uala(table):
    log, row = simulated_log(WORLDS[table.world], 20_000, 11), table.rows[UALA]
    actual = tables.at_kappa(tables.Judged(table.depth), 0.0, log)
    assert actual.length == row.length
    assert actual.cents == pytest.approx(row.cents, rel=0.06)
    assert abs(actual.coverage - row.coverage) <= 2 * math.sqrt(row.coverage * (1 - row.coverage) / QUESTIONS)


def test_every_row_of_a_table_is_played():
    results = tables.play(4, 0, NetworkSettings(steps=3, layers=(8,)))
    assert {*TABLES[4].rows} - {printed.BASE_POLICY} <= {*results}
    for row in results.values():
        assert 0 <= row.coverage <= 1
        assert 1 <= row.length <= 4
    assert results[CCPO].matched > 0
    assert "| CCPO" in "\n".join(tables.lines(TABLES[4], [results]))


@pytest.mark.parametrize("seed", range(20))
def test_a_trust_region_step_is_legal_and_none_is_better(seed):
    rng = torch.Generator().manual_seed(seed)
    root, g, b = (torch.randn(*shape, generator=rng, dtype=torch.float64) for shape in ((6, 6), (6,), (6,)))
    h, c, delta = root @ root.T + torch.eye(6, dtype=torch.float64), (seed % 5 - 2) * 0.05, 0.01
    x, case = literal.trust_region_step(g, b, c, lambda v: h @ v, delta)
    assert 0.5 * x @ h @ x <= delta * (1 + 1e-9)
    if case != "recover":
        assert c + b @ x <= 1e-6
        others = torch.linalg.solve(torch.linalg.cholesky(h).T, torch.randn(6, 20_000, generator=rng, dtype=h.dtype))
        others = others * (2 * delta / (others * (h @ others)).sum(0)).sqrt()
        legal = others[:, c + b @ others <= 0]
        assert g @ x <= (g @ legal).min() + 1e-9


@pytest.mark.parametrize("size", [0.0, 1e-200])
def test_a_gradient_that_is_lost_leaves_a_step_that_is_legal(size):
    g, b = size * torch.ones(3, dtype=torch.float64), torch.eye(3, dtype=torch.float64)[0]
    x, _ = literal.trust_region_step(g, b, 0.01, lambda v: v, 0.01)
    assert torch.isfinite(x).all()
    assert 0.01 + b @ x <= 1e-9


def test_the_mean_level_over_all_paths_is_the_functional():
    """Two steps with two answers each, paths weighted by their chances."""
    rng = np.random.default_rng(3)
    logits = torch.tensor(rng.normal(size=(1, 2, 3)), requires_grad=True)
    member = logits.sigmoid() * torch.tensor([[[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]]])
    policy = (logits.detach() + torch.tensor([[[0.0, 0.0, 0.0], [0.0, 0.0, -math.inf]]])).softmax(-1)
    rewards = torch.tensor(rng.normal(size=(1, 2, 3)))
    functional = literal.Functional(member, rewards, torch.zeros(1, dtype=torch.float64))
    first, second = ((member[0, at] * rewards[0, at]).sum() for at in (0, 1))
    exact = first + member[0, 0, 2] * second
    total = torch.zeros((), dtype=torch.float64)
    for early in range(3):
        for late in range(2):
            actions = torch.tensor([[early, late]])
            alive = torch.tensor([[True, early == 2]])
            chance = policy.gather(-1, actions[..., None])[..., 0]
            path = literal.Rollouts(actions, alive, chance)
            view = literal.seen(functional, path, torch.zeros(1, 2, dtype=torch.float64))
            likely = chance[0, 0] * (chance[0, 1] if early == 2 else 0.5)
            total = total + likely * view.level[0]
    assert float(total) == pytest.approx(float(exact.detach()))


def test_the_printed_method_trains_a_policy_that_can_be_played():
    log = simulated_log(WORLDS["hotpotqa/llama-2-7b"], 60, 1)
    policy = literal.train_printed(log, Promise("coverage", 0.1), steps=3)
    assert np.isfinite(policy.log_probabilities(log)[:, :, 0]).all()
    assert -math.inf < policy.kappa <= 0


def test_the_quickest_run(tmp_path):
    root = Path(__file__).parents[3]
    script = [sys.executable, root / "benchmarks" / "needed_questions.py"]
    printed = subprocess.check_output(script, cwd=tmp_path, text=True).splitlines()
    assert {*printed[:7]} < {*(root / "docs" / "certificates.md").read_text("utf-8").splitlines()}
