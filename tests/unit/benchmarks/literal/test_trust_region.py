"""The trust-region step against worked vectors and duality."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from literal.trust_region import Step, trust_region_step  # noqa: E402

import cascade  # noqa: E402  (torch is an optional package)

ROOT = Path(cascade.__file__).parents[1]
SHARED = ROOT.parent / "shared" / "vectors" / "algorithms-vectors.json"
DENSE = [
    [0.339389, -0.37672, -0.159524, -0.222264],
    [-0.37672, 0.847471, 0.336712, 0.451216],
    [-0.159524, 0.336712, 0.348642, 0.189816],
    [-0.222264, 0.451216, 0.189816, 0.440296],
]
G4, B4, ONE = [0.3, -1.2, 0.5, 0.9], [-0.7, 0.4, 0.2, -1.0], [[1.0, 0.0], [0.0, 1.0]]
# δ = 0.01 in all: g, b, H, c, the case, and the step by the closed form, checked against Clarabel.
WORKED: dict[str, tuple[Any, Any, Any, float, str, list[float]]] = {
    "all of the region is feasible": ([1, 0], [0, 1], ONE, -1.0, "inactive", [-0.1414213562373095, 0]),
    "the step leads away from the edge": ([1, 0], [1, 0], ONE, -0.05, "inactive", [-0.1414213562373095, 0]),
    "the edge cuts the region": ([1, 0], [-1, 0.5], ONE, -0.05, "active", [-0.1, -0.1]),
    "infeasible and within reach": ([1, 0], [-1, 0.5], ONE, 0.05, "active", [-0.02, -0.14]),
    "infeasible, orthogonal": ([1, 0], [0, 1], ONE, 0.05, "active", [-0.13228756555322954, -0.05]),
    "infeasible, out of reach": ([1, 0], [0, 1], ONE, 1.0, "recover", [0, -0.1414213562373095]),
    "dense": (
        G4,
        B4,
        DENSE,
        -0.05,
        "active",
        [0.15952834937993607, 0.2583011789201921, -0.21270696064972275, -0.10089076512782305],
    ),
    "dense, infeasible": (
        G4,
        B4,
        DENSE,
        0.05,
        "active",
        [0.19757440878096208, 0.2375574178299741, -0.21601836987364817, -0.03648279298941353],
    ),
}


def vector(values: Any) -> Any:
    return torch.tensor(values, dtype=torch.float64)


def close(found: Any, wanted: Any, within: float = 1e-12) -> None:
    torch.testing.assert_close(found, wanted, rtol=within, atol=within)


def by(matrix: Any) -> Callable[[Any], Any]:
    return lambda v: matrix @ v


def step_of(g: Any, b: Any, c: float, fisher: Any = ONE, delta: float = 0.01, **more: Any) -> Step:
    return trust_region_step(vector(g), vector(b), c, by(vector(fisher)), delta, **more)


def definite(seed: int, n: int) -> Any:
    root = torch.randn(n, n + 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return root @ root.T / n + 0.05 * torch.eye(n, dtype=torch.float64)


class TestWorked:
    @pytest.mark.parametrize("name", WORKED)
    def test_steps(self, name: str) -> None:
        g, b, fisher, c, case, wanted = WORKED[name]
        step = step_of(g, b, c, fisher)
        assert step.case == case
        close(step.x, vector(wanted))
        assert step.objective == pytest.approx(float(vector(g) @ step.x), abs=1e-15)
        assert step.constraint == pytest.approx(float(vector(b) @ step.x), abs=1e-15)
        assert step.quadratic == pytest.approx(0.01, rel=1e-12)

    @pytest.mark.skipif(not SHARED.is_file(), reason="the shared vectors are not beside the project")
    def test_shared_vectors(self) -> None:
        names = {"trpo": "inactive", "active": "active", "recover": "recover"}
        items = json.loads(SHARED.read_text("utf-8"))["cpo_lqclp"]["items"]
        assert len(items) == 8
        for one in items:
            step = step_of(one["g"], one["b"], one["c"], one["H"], one["delta"])
            assert step.case == names[one["case"]], one["name"]
            close(step.x, vector(one["step"]))
            assert step.objective == pytest.approx(one["objective"], abs=1e-12)
            assert one["c"] + step.constraint == pytest.approx(one["constraint"], abs=1e-12)
            assert step.quadratic == pytest.approx(one["quad"], rel=1e-12)


class TestDuality:
    """A lower bound that needs no solver: for any ν ≥ 0, νc − √(2δ (g + νb)'H⁻¹(g + νb)) is below every feasible g·x."""

    @pytest.mark.parametrize("n", range(1, 9))
    def test_no_feasible_step_is_better(self, n: int) -> None:
        rng = np.random.default_rng(n)
        seen = set()
        for seed in range(40):
            fisher, g, b = definite(seed, n), vector(rng.normal(size=n)), vector(rng.normal(size=n))
            w = torch.linalg.solve(fisher, b)
            c = float(rng.uniform(-0.99, 0.99)) * math.sqrt(0.02 * float(b @ w))
            step = trust_region_step(g, b, c, by(fisher), 0.01, solve=partial(torch.linalg.solve, fisher))
            seen.add(step.case)
            v = torch.linalg.solve(fisher, g)
            q, r, s = float(g @ v), float(g @ w), float(b @ w)

            nu = np.concatenate(
                [[0.0, max(-r / s, 0.0)], np.geomspace(1e-6, 1e6, 20_001)]
            )  # at −r/s it may have a kink
            highest = (nu * c - np.sqrt(np.maximum(0.02 * (q + 2 * nu * r + nu**2 * s), 0.0))).max()
            assert step.objective == pytest.approx(highest, abs=2e-6 * math.sqrt(0.02 * q))
            assert c + step.constraint <= 1e-12
            assert step.quadratic <= 0.01 * (1 + 1e-12)
        assert seen == {"inactive", "active"}
