"""The trust-region step against worked vectors and duality; conjugate gradients; backtracking."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from literal.trust_region import (  # noqa: E402
    KL_SLACK,
    Measured,
    Step,
    _best,
    _Pair,
    backtrack,
    conjugate_gradient,
    trust_region_step,
)

import cascade  # noqa: E402  (torch is an optional package)
from cascade.errors import UsageError  # noqa: E402

ROOT = Path(cascade.__file__).parents[1]
SHARED = ROOT.parent / "shared" / "vectors" / "algorithms-vectors.json"
NAN, INF = math.nan, math.inf
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


class TestCorners:
    def test_without_a_constraint_gradient_it_is_the_natural_gradient(self) -> None:
        step = step_of([3.0, 4.0], [0.0, 0.0], 0.0, delta=0.5)
        assert step.case == "inactive"
        close(step.x, vector([-0.6, -0.8]))

    def test_nothing_mends_a_constraint_that_nothing_moves(self) -> None:
        step = step_of([3.0, 4.0], [0.0, 0.0], 0.1)
        assert (step.case, step.x.tolist(), step.quadratic) == ("recover", [0.0, 0.0], 0.0)

    def test_without_an_objective_it_is_the_shortest_way_to_the_constraint(self) -> None:
        for c in (-0.1, 0.0):
            step = step_of([0.0, 0.0], [1.0, 2.0], c)
            assert (step.case, step.x.tolist()) == ("inactive", [0.0, 0.0])
        step = step_of([0.0, 0.0], [1.0, 2.0], 0.1)
        assert step.case == "active"
        close(step.x, vector([-0.02, -0.04]))

    def test_without_either_it_stays(self) -> None:
        for c, case in ((-1.0, "inactive"), (0.0, "inactive"), (1.0, "recover")):
            step = step_of([0.0, 0.0], [0.0, 0.0], c)
            assert (step.case, step.x.tolist()) == (case, [0.0, 0.0])

    @pytest.mark.parametrize("c", [-1.0, -0.05, 0.0, 0.05])
    def test_parallel_gradients_take_the_whole_region(self, c: float) -> None:
        step = step_of([1.0, 2.0], [10.0, 20.0], c)
        assert step.case == "inactive"
        close(step.x, vector([1.0, 2.0]) * -math.sqrt(0.02 / 5))

    @pytest.mark.parametrize(("c", "x"), [(0.0, 0.0), (-0.05, 0.01), (0.05, -0.01)])
    def test_opposed_gradients_go_to_the_edge_and_no_further(self, c: float, x: float) -> None:
        step = step_of([-0.3, -0.6], [1.0, 2.0], c)
        assert step.case == "active"
        close(step.x, vector([x, 2 * x]))

    @pytest.mark.parametrize("n", [2, 5, 8])
    def test_opposed_gradients_make_no_step_along_the_edge_out_of_rounding(self, n: int) -> None:
        for seed in range(40):
            fisher, b = definite(seed, n), definite(seed + 100, n)[0]
            step = trust_region_step(-0.3 * b, b, 0.0, by(fisher), 0.01, solve=partial(torch.linalg.solve, fisher))
            assert step.case == "active"
            assert step.quadratic < 1e-20

    def test_of_a_chord_whose_ends_are_equally_good_it_takes_the_middle(self) -> None:
        assert _best(_Pair(1.0, 0.0), _Pair(-1.0, 0.0), 0.5, 1.0).at == (0.5, 0.0)

    @pytest.mark.parametrize("sign", [1, -1])
    def test_a_constraint_that_the_region_just_touches(self, sign: int) -> None:
        step = step_of([1.0, 0.0], [0.0, 1.0], sign * math.sqrt(0.02))
        close(step.x, vector([0.0, -math.sqrt(0.02)] if sign > 0 else [-math.sqrt(0.02), 0.0]), 1e-7)

    @pytest.mark.parametrize("g_unit", [1e-200, 1e-20, 1e200])
    @pytest.mark.parametrize("b_unit", [1e-200, 1e-20, 1e200])
    def test_units_do_not_move_the_step(self, g_unit: float, b_unit: float) -> None:
        g, b, fisher, c, case, wanted = WORKED["dense"]
        step = step_of(vector(g).mul(g_unit).tolist(), vector(b).mul(b_unit).tolist(), c * b_unit, fisher)
        assert step.case == case
        close(step.x, vector(wanted))

    def test_no_curvature_anywhere_is_no_step_and_no_nan(self) -> None:
        for fisher in ([[0.0, 0.0], [0.0, 0.0]], [[-1.0, 0.0], [0.0, -1.0]]):
            step = step_of([1.0, 0.0], [0.0, 1.0], -0.1, fisher)
            assert step.x.tolist() == [0.0, 0.0]
        assert step_of([1.0, 0.0], [0.0, 1.0], -0.1, [[0.0, 0.0], [0.0, 0.0]], damping=1.0).quadratic == pytest.approx(
            0.01
        )

    def test_damping_is_added_to_the_diagonal(self) -> None:
        g, b, fisher, c, _, _ = WORKED["dense"]
        whole = (vector(fisher) + 0.1 * torch.eye(4, dtype=torch.float64)).tolist()
        close(step_of(g, b, c, fisher, damping=0.1).x, step_of(g, b, c, whole).x)

    def test_float32_stays_and_holds_the_constraints_to_its_rounding(self) -> None:
        g, b, fisher = (vector(one).float() for one in (G4, B4, DENSE))
        step = trust_region_step(g, b, -0.05, by(fisher), 0.01)
        assert step.x.dtype == torch.float32
        assert step.quadratic == pytest.approx(0.01, rel=1e-5)
        assert -0.05 + step.constraint == pytest.approx(0.0, abs=1e-6)

    def test_the_region_holds_where_the_matrix_is_singular_to_its_dtype(self) -> None:
        """0.5.0: ½ x'Hx was up to 4.4·δ where the step said δ, by an amount that depended on the processor."""
        rng = np.random.default_rng(0)
        for rank in (1, 2, 3, 6):
            for _ in range(200):
                root = torch.from_numpy(rng.normal(size=(7, rank))).float()
                g, b = (torch.from_numpy(rng.normal(size=7)).float() for _ in range(2))
                fisher = root @ root.T
                step = trust_region_step(g, b, float(rng.normal()), by(fisher), 0.01)
                x = step.x.double()
                assert 0.0 <= step.quadratic <= 0.01
                assert 0.5 * float(x @ fisher.double() @ x) <= 0.01 * 1.01  # what rounding may hide

    def test_a_step_that_float32_can_tell_has_no_floor(self) -> None:
        g, b, fisher, c, _, wanted = WORKED["dense"]
        step = trust_region_step(vector(g).float(), vector(b).float(), c, by(vector(fisher).float()), 0.01)
        close(step.x, vector(wanted).float(), within=1e-5)

    def test_a_step_is_frozen(self) -> None:
        with pytest.raises(dataclasses.FrozenInstanceError):
            step_of([1.0], [1.0], 0.0, [[1.0]]).case = "active"  # type: ignore[misc]


class TestNetwork:
    """A policy of 1,155 parameters whose Fisher matrix is known by products alone: ten conjugate gradients do not converge."""

    @staticmethod
    def problem(seed: int) -> tuple[Any, Any, Callable[[Any], Any]]:
        torch.manual_seed(seed)
        net = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.Tanh(), torch.nn.Linear(32, 28), torch.nn.Tanh())
        net = torch.nn.Sequential(net, torch.nn.Linear(28, 3)).double()
        seen, parameters = torch.randn(200, 4, dtype=torch.float64), list(net.parameters())
        logs = torch.log_softmax(net(seen), dim=1)
        old = logs.detach()
        kl = (old.exp() * (old - logs)).sum(dim=1).mean()
        slope = torch.cat([one.flatten() for one in torch.autograd.grad(kl, parameters, create_graph=True)])

        def fisher_product(v: Any) -> Any:
            return torch.cat([one.flatten() for one in torch.autograd.grad(slope @ v, parameters, retain_graph=True)])

        gain = torch.autograd.grad(logs[:, 0].mean(), parameters, retain_graph=True)
        limit = torch.autograd.grad(logs[:, 1].mean(), parameters, retain_graph=True)
        g, b = (torch.cat([one.flatten() for one in grads]) for grads in (gain, limit))
        return g, b, fisher_product

    @pytest.mark.parametrize("c", [-0.001, 0.0, 0.001])
    def test_the_constraints_hold_though_the_gradients_have_not_converged(self, c: float) -> None:
        g, b, product = self.problem(0)

        def damped(v: Any) -> Any:
            return product(v) + 0.01 * v

        unsolved = float((damped(conjugate_gradient(damped, b)) - b).norm() / b.norm())
        assert unsolved > 1e-4  # else this shows nothing
        step = trust_region_step(g, b, c, product, 0.01, damping=0.01)
        assert step.case == "active"
        assert c + float(b @ step.x) <= 1e-12
        assert 0.5 * float(step.x @ damped(step.x)) == pytest.approx(0.01, rel=1e-9)
        assert step.objective < 0


class TestConjugateGradient:
    @pytest.mark.parametrize("n", range(1, 11))
    def test_equals_a_direct_solve(self, n: int) -> None:
        for seed in range(10):
            fisher, b = definite(seed, n), definite(seed + 100, n)[0]
            found = conjugate_gradient(by(fisher), b, iterations=3 * n)
            close(found, torch.linalg.solve(fisher, b), 1e-8)

    def test_stops_after_as_many_products_as_it_may_make_or_needs(self) -> None:
        fisher, b = definite(0, 8), vector([1.0] * 8)
        calls: list[Any] = []

        def counted(v: Any) -> Any:
            calls.append(v)
            return fisher @ v

        conjugate_gradient(counted, b, iterations=3)
        assert len(calls) == 3
        conjugate_gradient(counted, b, iterations=50, tolerance=0.5)
        assert len(calls) < 8

    @pytest.mark.parametrize("iterations", [1, 2, 5])
    def test_the_quadratic_of_every_iterate_is_its_product_with_b(self, iterations: int) -> None:
        fisher, b = definite(3, 8), vector([1.0, -2.0, 3.0, 0.5, 0.0, 1.0, 1.0, -1.0])
        x = conjugate_gradient(by(fisher), b, iterations=iterations)
        assert float(x @ fisher @ x) == pytest.approx(float(b @ x), rel=1e-12)

    def test_zero_is_solved_by_zero_without_a_product(self) -> None:
        assert conjugate_gradient(lambda _: pytest.fail("a product"), torch.zeros(3)).tolist() == [0.0] * 3

    def test_no_step_is_taken_along_negative_or_no_curvature(self) -> None:
        b = vector([1.0, 1.0])
        for diagonal in ([-1.0, -1.0], [0.0, 0.0], [1.0, -1.0]):
            assert conjugate_gradient(lambda v, d=diagonal: vector(d) * v, b).tolist() == [0.0, 0.0]
        assert conjugate_gradient(lambda v: vector([1.0, 0.0]) * v, b).tolist() == [2.0, 2.0]

    @pytest.mark.parametrize("unit", [1e-300, 1e200])
    def test_the_unit_of_b_is_the_unit_of_x(self, unit: float) -> None:
        fisher, b = definite(4, 5), vector([1.0, 2.0, 3.0, 4.0, 5.0])
        close(conjugate_gradient(by(fisher), b * unit) / unit, torch.linalg.solve(fisher, b), 1e-8)


class TestRefused:
    @pytest.mark.parametrize("wrong", [NAN, INF])
    @pytest.mark.parametrize("name", ["gradient", "constraint_gradient", "constraint_value", "delta", "damping"])
    def test_an_argument_that_is_not_finite(self, name: str, wrong: float) -> None:
        given: dict[str, Any] = {
            "gradient": vector([1.0, 0.0]),
            "constraint_gradient": vector([0.0, 1.0]),
            "constraint_value": 0.0,
            "fisher_product": lambda v: v,
            "delta": 0.01,
            "damping": 0.0,
        }
        given[name] = vector([wrong, 0.0]) if "gradient" in name else wrong
        with pytest.raises(UsageError, match=f"^{name} is"):
            trust_region_step(**given)

    @pytest.mark.parametrize("wrong", [NAN, INF])
    def test_a_product_or_a_solution_that_is_not_finite(self, wrong: float) -> None:
        g, b = vector([1.0, 0.0]), vector([0.0, 1.0])
        with pytest.raises(UsageError, match=r"^fisher_product is not finite"):
            trust_region_step(g, b, 0.0, lambda v: v * wrong, 0.01)
        with pytest.raises(UsageError, match=r"^solve is not finite"):
            trust_region_step(g, b, 0.0, lambda v: v, 0.01, solve=lambda v: v * wrong)
        with pytest.raises(UsageError, match=r"^product is not finite"):
            conjugate_gradient(lambda v: v * wrong, g)
        with pytest.raises(UsageError, match=r"^b is not finite"):
            conjugate_gradient(lambda v: v, g * wrong)

    def test_shapes_and_values_that_cannot_be(self) -> None:
        g = vector([1.0, 0.0])
        for given, message in (
            ((vector([[1.0]]), g, 0.0, lambda v: v, 0.01), "gradient is a flat vector"),
            ((g, torch.tensor([1, 0]), 0.0, lambda v: v, 0.01), "constraint_gradient is a flat vector"),
            ((g, vector([1.0]), 0.0, lambda v: v, 0.01), "differ in shape"),
            ((g, g.float(), 0.0, lambda v: v, 0.01), "differ in shape, dtype"),
            ((g, g, 0.0, lambda v: v, 0.0), "delta is a finite number above 0"),
            ((g, g, 0.0, lambda v: v, -1.0), "delta is a finite number above 0"),
            ((g, g, 0.0, lambda v: v[:1], 0.01), "fisher_product has shape"),
            ((vector([]), vector([]), 0.0, lambda v: v, 0.01), "gradient is a flat vector"),
        ):
            with pytest.raises(UsageError, match=message):
                trust_region_step(*given)
        with pytest.raises(UsageError, match="damping is 0 or above"):
            trust_region_step(g, g, 0.0, lambda v: v, 0.01, damping=-0.1)


BEFORE = Measured(objective=1.0, constraint=-0.2, kl=0.0)


def tried(*found: Measured, before: Measured = BEFORE, case: Any = "active", **more: Any) -> Any:
    """Backtrack from a step of length 1 whose measures, one a length, are given."""
    lengths: list[float] = []

    def measure(x: Any) -> Measured:
        lengths.append(float(x[0]))
        return found[len(lengths) - 1]

    accepted = backtrack(vector([1.0]), measure, case, before, 0.01, tries=len(found), **more)
    assert lengths == pytest.approx([more.get("shrink", 0.8) ** j for j in range(len(lengths))])
    return accepted, len(lengths)


GOOD = Measured(0.9, -0.1, 0.009)


class TestBacktrack:
    def test_a_step_that_does_what_it_should_is_taken_whole(self) -> None:
        taken, measures = tried(GOOD, GOOD)
        assert (taken.accepted, taken.case, taken.factor, measures) == (True, "active", 1.0, 1)
        assert (taken.x.tolist(), taken.measured) == ([1.0], GOOD)

    @pytest.mark.parametrize(
        "bad",
        [
            GOOD._replace(kl=0.0106),
            GOOD._replace(constraint=0.001),
            GOOD._replace(objective=1.001),
            *(GOOD._replace(**{name: wrong}) for name in Measured._fields for wrong in (NAN, INF, -INF)),
        ],
    )
    def test_one_that_does_not_is_shortened(self, bad: Measured) -> None:
        taken, measures = tried(bad, bad, GOOD, GOOD, shrink=0.5)
        assert (taken.accepted, measures, taken.factor, taken.x.tolist()) == (True, 3, 0.25, [0.25])

    def test_none_that_does_is_no_step(self) -> None:
        bad = GOOD._replace(kl=1.0)
        taken, measures = tried(*[bad] * 10)
        assert (taken.accepted, taken.case, taken.factor, measures) == (False, "rejected", 0.0, 10)
        assert (taken.x.tolist(), taken.measured) == ([0.0], BEFORE)

    def test_the_objective_may_get_worse_on_the_way_back_to_the_constraint_alone(self) -> None:
        worse = Measured(2.0, -0.1, 0.009)
        assert not tried(worse)[0].accepted
        assert not tried(worse, case="inactive")[0].accepted
        assert tried(worse, case="recover")[0].accepted
        broken = BEFORE._replace(constraint=0.3)
        assert tried(worse._replace(constraint=0.2), before=broken)[0].accepted

    def test_a_broken_constraint_may_not_get_worse(self) -> None:
        broken = BEFORE._replace(constraint=0.3)
        for case in ("active", "recover"):
            assert tried(GOOD._replace(constraint=0.3), before=broken, case=case)[0].accepted
            assert not tried(GOOD._replace(constraint=0.3001), before=broken, case=case)[0].accepted

    def test_a_met_constraint_may_be_used_up(self) -> None:
        assert tried(GOOD._replace(constraint=0.0))[0].accepted
        assert not tried(GOOD._replace(constraint=1e-6))[0].accepted

    def test_rounding_on_the_edge_rejects_nothing(self) -> None:
        edge = Measured(1.0, 0.0, 0.0)
        assert tried(Measured(1.0 + 1e-16, 1e-17, 0.009), before=edge)[0].accepted

    def test_the_divergence_has_its_documented_slack(self) -> None:
        assert tried(GOOD._replace(kl=0.01 * KL_SLACK))[0].accepted
        assert not tried(GOOD._replace(kl=0.01 * KL_SLACK + 1e-9))[0].accepted

    def test_a_step_on_a_true_quadratic_is_taken_whole(self) -> None:
        g, b, fisher = vector(G4), vector(B4), vector(DENSE)
        step = trust_region_step(g, b, -0.05, by(fisher), 0.01)

        def measure(x: Any) -> Measured:
            return Measured(float(g @ x), -0.05 + float(b @ x), 0.5 * float(x @ fisher @ x))

        taken = backtrack(step.x, measure, step.case, measure(0 * g), 0.01)
        assert taken.factor == 1.0
        assert torch.equal(taken.x, step.x)

    def test_what_cannot_be_is_refused(self) -> None:
        def search(x: Any = None, before: Measured = BEFORE, delta: float = 0.01, **more: Any) -> Any:
            return backtrack(vector([1.0]) if x is None else x, lambda _: GOOD, "active", before, delta, **more)

        for given, message in (
            ({"x": vector([NAN])}, "^x is not finite"),
            ({"before": BEFORE._replace(objective=NAN)}, "^before is a finite number"),
            ({"delta": 0.0}, "^delta is"),
            ({"shrink": 1.0}, "^shrink lies"),
            ({"shrink": 0.0}, "^shrink lies"),
            ({"tries": 0}, "^shrink lies between 0 and 1 and tries"),
        ):
            with pytest.raises(UsageError, match=message):
                search(**given)
