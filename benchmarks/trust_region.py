"""The step of constrained policy optimisation against a convex solver, Clarabel, on random problems of every kind.

    python benchmarks/trust_region.py            10,000 problems, about two minutes on two cores
    python benchmarks/trust_region.py --quick    600

Each problem is min g·x subject to c + b·x ≤ 0 and ½ x'Hx ≤ δ in 1 to 8 dimensions. Clarabel gets it with the trust
region as the unit ball and both gradients at length 1, so that its tolerances are shares of what a step can do;
everything is checked at our x in the problem's own units. Ends with 1 if a step is wrong. Needs cvxpy-base, clarabel.

Install what it needs, in the clone: pip install -c constraints.txt -e ".[dev-train]"
"""

from __future__ import annotations

import extras  # noqa: F401 - before the packages that it speaks of

import argparse
import math
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from functools import partial
from multiprocessing import get_context
from typing import Any, NamedTuple

import cvxpy
import numpy as np
import torch
from literal.trust_region import Step, conjugate_gradient, trust_region_step
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]

HOLDS = 1e-9
"""By how much of what it can change a step may break a constraint: rounding, in H of condition up to 10⁶."""
MOVED = 1e-7
"""Clarabel stops at constraints that hold to 1e-8; what ten times that changes in the objective is no error of ours."""
KINDS = (
    "random",
    "units",
    "stiff",
    "parallel",
    "anti-parallel",
    "nearly parallel",
    "b = 0",
    "g = 0",
    "on the edge",
    "just reachable",
)


class Problem(NamedTuple):
    """min g·x subject to c + b·x ≤ 0 and ½ x'Hx ≤ δ, H the Fisher matrix."""

    kind: str
    g: Floats
    b: Floats
    fisher: Floats
    c: float
    delta: float


class Whitened(NamedTuple):
    """The same with z = L'x/√(2δ), H = LL': min g·z subject to c + b·z ≤ 0 and |z| ≤ 1, with |g| = |b| = 1, or 0.

    `objective` and `constraint` are what g·x and b·x come to at |z| = 1, `lower` is L/√(2δ).
    """

    g: Floats
    b: Floats
    c: float
    objective: float
    constraint: float
    lower: Floats


class Verdict(NamedTuple):
    """How a step compares, in shares of what a step can do.

    Attributes:
        gap: of its objective to Clarabel's.
        violation: of the constraints, by the worse of our two steps.
        short: by how much the step with conjugate gradients improves less than the exact one.
        formula: violation of the constraints by the closed form, put together from conjugate gradients as it stands.
        wrong: what is wrong with our steps, "" if nothing.
    """

    kind: str
    case: str
    gap: float
    violation: float
    short: float
    formula: float
    wrong: str


def drawn(seed: int) -> Problem:
    """Return the problem of a number, of each kind in turn."""
    rng, kind = np.random.default_rng(seed), KINDS[seed % len(KINDS)]
    n = int(rng.integers(1, 9))
    root = rng.normal(size=(n, n + 2))
    fisher = root @ root.T / (n + 2) + 0.05 * np.eye(n)
    g, b, delta = rng.normal(size=n), rng.normal(size=n), float(10 ** rng.uniform(-4, 0))
    if kind == "stiff":
        axes = np.linalg.qr(rng.normal(size=(n, n)))[0]
        fisher = (axes * 10 ** rng.uniform(-3, 3, n)) @ axes.T
    if "parallel" in kind:
        toward = rng.choice([-1.0, 1.0]) if kind == "nearly parallel" else 1.0 if kind == "parallel" else -1.0
        g = toward * float(10 ** rng.uniform(-2, 2)) * b
        if kind == "nearly parallel":
            g = g + np.linalg.norm(g) * 10 ** rng.uniform(-14, -2) * rng.normal(size=n)
    if kind == "units":
        scales = 10 ** rng.uniform(-3, 3, n)
        fisher, g, b = (
            fisher * np.outer(scales, scales),
            g * scales * 10 ** rng.uniform(-8, 8),
            b * scales * 10 ** rng.uniform(-8, 8),
        )
    g, b = g * (kind != "g = 0"), b * (kind != "b = 0")
    fisher = (fisher + fisher.T) / 2
    reach = math.sqrt(2 * delta * float(b @ np.linalg.solve(fisher, b))) or 1.0
    share = {"on the edge": 0.0, "just reachable": rng.choice([-1.0, 1.0])}.get(kind, rng.uniform(-1.5, 1.5))
    return Problem(kind, g, b, fisher, float(share) * reach, delta)


def whitened(problem: Problem) -> Whitened:
    """Return a problem in the units of its own trust region."""
    lower = np.linalg.cholesky(problem.fisher) / math.sqrt(2 * problem.delta)
    g, b = np.linalg.solve(lower, problem.g), np.linalg.solve(lower, problem.b)
    objective, constraint = float(np.linalg.norm(g)), float(np.linalg.norm(b))
    c = problem.c / constraint if constraint else problem.c
    return Whitened(g / (objective or 1.0), b / (constraint or 1.0), c, objective or 1.0, constraint or 1.0, lower)


def solved(problem: Whitened) -> float | None:
    """Return the least objective by Clarabel, None where it says that no z is feasible, NaN where it cannot tell."""
    z = cvxpy.Variable(problem.g.size)
    rules: list[cvxpy.Constraint] = [z @ problem.b + problem.c <= 0, cvxpy.SOC(cvxpy.Constant(1.0), z)]
    program = cvxpy.Problem(cvxpy.Minimize(z @ problem.g), rules)
    with warnings.catch_warnings(action="ignore"):  # that it may be inaccurate: its status says so too
        try:
            program.solve(solver=cvxpy.CLARABEL)  # type: ignore[no-untyped-call]
        except cvxpy.SolverError:
            return math.nan
    if program.status == "infeasible":
        return None
    return float(program.value) if program.status == "optimal" else math.nan


def stepped(problem: Problem, *, exact: bool) -> Step:
    """Return our step, with H⁻¹ from a factorisation or from ten conjugate gradients."""
    g, b, fisher = (torch.from_numpy(one) for one in (problem.g, problem.b, problem.fisher))
    solve = partial(torch.linalg.solve, fisher) if exact else None
    return trust_region_step(g, b, problem.c, lambda v: fisher @ v, problem.delta, solve=solve)


def closed_form(problem: Problem) -> Step:
    """Return the closed form with v ≈ H⁻¹g and w ≈ H⁻¹b in place of the exact ones."""
    g, b, fisher = (torch.from_numpy(one) for one in (problem.g, problem.b, problem.fisher))
    v, w = (conjugate_gradient(lambda one: fisher @ one, given) for given in (g, b))
    q, r, s, c, region = float(g @ v), float(g @ w), float(b @ w), problem.c, 2 * problem.delta
    free = -math.sqrt(region / q) * v if q else v
    if c > 0 and (not s or c * c / s > region):
        return Step(-math.sqrt(region / s) * w if s else w, "recover", 0.0, 0.0, 0.0)
    if c + float(b @ free) <= 0:
        return Step(free, "inactive", 0.0, 0.0, 0.0)
    across, left = q - r * r / s, max(region - c * c / s, 0.0)
    aside = math.sqrt(left / across) * (v - (r / s) * w) if across > 1e-12 * q else 0 * v
    return Step(-(c / s) * w - aside, "active", 0.0, 0.0, 0.0)


def allowance(c: float) -> float:
    """Return what a constraint moved by `MOVED` changes in the objective: its chord has half a length of √(1 − c²)."""
    half = math.sqrt(max(1 - c * c, 0.0)) if abs(c) <= 1 + MOVED else 1.0
    return 2 * MOVED + math.sqrt(half * half + 2 * MOVED) - half


def judged(seed: int) -> Verdict:
    """Solve one problem in both ways, and say what is wrong with ours."""
    problem = drawn(seed)
    white, step, by_cg = whitened(problem), stepped(problem, exact=True), stepped(problem, exact=False)
    best = solved(white)
    z, z_cg = (white.lower.T @ one.x.numpy() for one in (step, by_cg))
    objective = float(problem.g @ step.x.numpy()) / white.objective
    broken = max(broken_by(problem, white, step), broken_by(problem, white, by_cg))
    undecided = abs(white.c - 1) <= MOVED and bool(white.b.any())
    gap, wrong = 0.0, ""
    if undecided or best is None or step.case == "recover":
        lost = float(np.linalg.norm(z + white.b))
        wrong = "" if undecided or (best is None) == (step.case == "recover") else "feasible or not"
        # Half of the chord that is left there is √(2·MOVED) long.
        wrong = wrong or ("recovery" if lost > (math.sqrt(2 * MOVED) if undecided else HOLDS) else "")
    else:
        gap = objective - best
        wrong = "" if abs(gap) <= allowance(white.c) else "objective"
    short = float(white.g @ z_cg) - float(white.g @ z) if by_cg.case == step.case != "recover" else 0.0
    wrong = wrong or ("" if broken <= HOLDS else "constraints")
    return Verdict(
        problem.kind, step.case, abs(gap), broken, short, broken_by(problem, white, closed_form(problem)), wrong
    )


def broken_by(problem: Problem, white: Whitened, step: Step) -> float:
    """Return by how much a step breaks its constraints, in the problem's own units over what a step can change."""
    x = step.x.numpy()
    region = float(x @ problem.fisher @ x) / (2 * problem.delta) - 1
    edge = (problem.c + float(problem.b @ x)) / white.constraint if step.case != "recover" else 0.0
    return max(region, edge, 0.0)


def table(verdicts: Sequence[Verdict]) -> list[str]:
    """Return the lines of the table: a row a kind, then one a case; the largest of each figure."""
    lines = [
        "| problems | number | off Clarabel | breaks by | CG worse by | formula with CG breaks by | wrong |",
        "|---|---|---|---|---|---|---|",
    ]
    rows = [(kind, [one for one in verdicts if one.kind == kind]) for kind in KINDS]
    rows += [
        (f"case {case}", [one for one in verdicts if one.case == case]) for case in ("recover", "inactive", "active")
    ]
    for name, found in [*rows, ("all", list(verdicts))]:
        worst = [
            max((getattr(one, field) for one in found), default=0.0)
            for field in ("gap", "violation", "short", "formula")
        ]
        wrong = sum(bool(one.wrong) for one in found)
        lines.append(f"| {name} | {len(found):,} | {' | '.join(f'{one:.1e}' for one in worst)} | {wrong} |")
    return lines


def main() -> int:
    """Print the table, and 1 if a step is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=10_000)
    parser.add_argument("--quick", action="store_true", help="600 problems")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(1)
    with get_context("spawn").Pool(given.processes, torch.set_num_threads, (1,)) as pool:
        verdicts = pool.map(judged, range(600 if given.quick else given.problems), chunksize=50)
    print("\n".join(table(verdicts)))
    reasons = Counter(one.wrong for one in verdicts if one.wrong)
    if reasons:
        print("wrong:", ", ".join(f"{name} {count}" for name, count in sorted(reasons.items())))
    return 1 if reasons else 0


if __name__ == "__main__":
    sys.exit(main())
