"""V-trace against its published recursion, worked vectors and torchrl."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from cases import each

torch = pytest.importorskip("torch")

from literal.rollouts import VTrace, vtrace  # noqa: E402  (torch is an optional package)

import cascade  # noqa: E402
from cascade.errors import UsageError  # noqa: E402

SHARED = Path(cascade.__file__).parents[1].parent / "shared" / "vectors" / "algorithms-vectors.json"
NAN, INF = math.nan, math.inf

# Two trajectories of four steps, the second with an end after step 2; targets and weighted advantages at two settings.
WORKED: dict[str, Any] = {
    "log_rho": [[-1.3442, -0.4576], [-1.9012, -1.2895], [-1.8417, -0.2351], [-1.2674, 0.2713]],
    "discount": [[1.0, 1.0], [1.0, 0.0], [1.0, 1.0], [0.0, 0.0]],
    "reward": [[0.0357, 0.5149], [0.4662, 0.9172], [0.6292, 0.5141], [0.4969, 0.2475]],
    "value": [[0.1468, -0.9785], [-0.8088, 1.0609], [-0.8075, -0.0325], [0.8844, -0.5836]],
    "clip_1": {
        "vs": [
            [-0.061190706728652594, 0.6128185965631331],
            [-0.6865687408210496, 1.021323805318862],
            [-0.45679344458931254, 0.5952295355978667],
            [0.7752944405637355, 0.24749999999999994],
        ],
        "pg_adv": [
            [-0.20799070672865264, 1.5913185965631331],
            [0.12223125917895043, -0.03957619468113803],
            [0.35070655541068746, 0.6277295355978667],
            [-0.10910555943626445, 0.8311],
        ],
    },
    "clip_rho2_pg3_c1": {
        "vs": [
            [-0.061190706728652594, 0.6128185965631331],
            [-0.6865687408210496, 1.021323805318862],
            [-0.45679344458931254, 0.7999888077154823],
            [0.7752944405637355, 0.5065277002558665],
        ],
        "pg_adv": [
            [-0.20799070672865264, 1.5913185965631331],
            [0.12223125917895043, -0.03957619468113803],
            [0.35070655541068746, 0.8324888077154822],
            [-0.10910555943626445, 1.0901277002558665],
        ],
    },
}
SETTINGS = {"clip_1": (1.0, 1.0, 1.0), "clip_rho2_pg3_c1": (2.0, 1.0, 3.0)}


def tensor(rows: Any) -> Any:
    return torch.tensor(rows, dtype=torch.float64)


def close(found: Any, wanted: Any, within: float = 1e-10) -> None:
    torch.testing.assert_close(found, wanted, rtol=0, atol=within)


def of_vectors(held: dict[str, Any], setting: str) -> VTrace:
    rho, c, pg = SETTINGS[setting]
    steps = [tensor(held[name]) for name in ("log_rho", "discount", "reward", "value")]
    return vtrace(*steps, torch.zeros(2, dtype=torch.float64), rho_clip=rho, c_clip=c, pg_clip=pg)


def drawn(seed: int, steps: int = 6, rows: int = 3) -> dict[str, Any]:
    """Return random trajectories, a fifth of whose steps are their last."""
    chance = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Any:
        return torch.randn(*shape, dtype=torch.float64, generator=chance)

    ends = torch.rand(steps, rows, generator=chance) < 0.2
    return {
        "log_rho": 1.5 * normal(steps, rows),
        "discounts": torch.where(ends, 0.0, 0.97).to(torch.float64),
        "rewards": normal(steps, rows),
        "values": normal(steps, rows),
        "bootstrap": normal(rows),
    }


@pytest.mark.parametrize("setting", SETTINGS)
def test_worked_vectors(setting: str) -> None:
    found = of_vectors(WORKED, setting)
    close(found.targets, tensor(WORKED[setting]["vs"]))
    close(found.weighted, tensor(WORKED[setting]["pg_adv"]))


@pytest.mark.skipif(not SHARED.is_file(), reason="the shared vectors are not beside the project")
@pytest.mark.parametrize("setting", SETTINGS)
def test_shared_vectors(setting: str) -> None:
    held = json.loads(SHARED.read_text("utf-8"))["vtrace"]
    found = of_vectors(held, setting)
    close(found.targets, tensor(held[setting]["vs"]))
    close(found.weighted, tensor(held[setting]["pg_adv"]))


@pytest.mark.parametrize("clips", [(1.0, 1.0), (2.0, 1.0), (0.7, 1.3), (None, None), (None, 1.0), (5.0, None)])
def test_agrees_with_torchrl_on_random_trajectories(clips: tuple[float | None, float | None]) -> None:
    pytest.importorskip("torchrl")
    from torchrl.objectives.value.functional import vtrace_advantage_estimate

    rho, c = (torch.tensor(INF if clip is None else clip, dtype=torch.float64) for clip in clips)
    for seed in range(200):
        one = drawn(seed, steps=1 + seed % 9)
        after = torch.cat([one["values"][1:], one["bootstrap"][None]])
        done = one["discounts"] == 0

        def rows(steps: Any) -> Any:
            return steps.T[..., None]  # [B, T, 1], as torchrl has it

        advantages, targets = vtrace_advantage_estimate(
            0.97,
            rows(one["log_rho"]),
            rows(torch.zeros_like(one["log_rho"])),
            rows(one["values"]),
            rows(after),
            rows(one["rewards"]),
            rows(done),
            rows(done),
            rho_thresh=rho,
            c_thresh=c,
        )
        found = vtrace(**one, rho_clip=clips[0], c_clip=clips[1], pg_clip=clips[0])
        close(rows(found.targets), targets)
        close(rows(found.weighted), advantages)


@each("seed", range(20))
def test_the_targets_are_the_sum_that_the_paper_defines(seed: int) -> None:
    """v_s = V_s + Σ_{t≥s} (Π_{i<t} d_i c_i) ρ_t (r_t + d_t V_{t+1} − V_t), summed and not recursed."""
    one = drawn(seed)
    found = vtrace(**one, rho_clip=1.5, c_clip=0.9)
    after = torch.cat([one["values"][1:], one["bootstrap"][None]])
    ratio = one["log_rho"].exp()
    deltas = ratio.clamp(max=1.5) * (one["rewards"] + one["discounts"] * after - one["values"])
    decay = one["discounts"] * ratio.clamp(max=0.9)
    for s in range(6):
        total = one["values"][s] + sum(decay[s:t].prod(dim=0) * deltas[t] for t in range(s, 6))
        close(found.targets[s], total)


def test_on_policy_targets_are_discounted_returns() -> None:
    one = drawn(1)
    one["log_rho"], one["discounts"] = torch.zeros_like(one["log_rho"]), torch.full_like(one["discounts"], 0.9)
    worth = one["bootstrap"]
    for reward, target in zip(one["rewards"].flip(0), vtrace(**one).targets.flip(0), strict=True):
        worth = reward + 0.9 * worth
        close(target, worth)


def test_nothing_behind_the_end_of_a_trajectory_counts() -> None:
    one = drawn(2)
    one["discounts"][2] = 0.0
    other = {name: steps.clone() for name, steps in one.items()}
    for name in ("rewards", "values", "log_rho"):
        other[name][3:] += 1.0
    other["bootstrap"] += 1.0
    for found, wanted in zip(vtrace(**other), vtrace(**one), strict=True):
        assert torch.equal(found[:3], wanted[:3])


def test_advantages_are_before_the_ratio_and_weighted_ones_after_it() -> None:
    one = drawn(3)
    found = vtrace(**one, pg_clip=2.0)
    after = torch.cat([found.targets[1:], one["bootstrap"][None]])
    close(found.advantages, one["rewards"] + one["discounts"] * after - one["values"])
    close(found.weighted, one["log_rho"].exp().clamp(max=2.0) * found.advantages)


def test_an_action_that_the_policy_never_takes_teaches_the_critic_nothing() -> None:
    one = drawn(4)
    one["log_rho"][:] = -INF
    found = vtrace(**one)
    assert torch.equal(found.targets, one["values"])
    assert torch.equal(found.weighted, torch.zeros_like(one["values"]))


def test_a_huge_ratio_is_clipped_and_refused_without_a_clip() -> None:
    one = drawn(5)
    one["log_rho"][0, 0] = 5000.0
    assert all(bool(part.isfinite().all()) for part in vtrace(**one, rho_clip=3.0))
    with pytest.raises(UsageError, match=r"log_rho is too large .* rho_clip"):
        vtrace(**one, rho_clip=None)


def test_no_gradient_flows_through_the_targets_and_the_dtype_stays() -> None:
    one = {name: steps.float().requires_grad_() for name, steps in drawn(6).items()}
    for part in vtrace(**one):
        assert not part.requires_grad
        assert part.dtype == torch.float32


@pytest.mark.parametrize("name", ["log_rho", "discounts", "rewards", "values", "bootstrap"])
@pytest.mark.parametrize("wrong", [NAN, INF])
def test_what_is_not_finite_is_refused_by_name(name: str, wrong: float) -> None:
    one = drawn(7)
    one[name].view(-1)[0] = wrong
    with pytest.raises(UsageError, match=f"^{name} is not finite"):
        vtrace(**one)


@pytest.mark.parametrize("name", ["log_rho", "discounts", "rewards", "bootstrap"])
def test_shapes_that_would_broadcast_are_refused(name: str) -> None:
    one = drawn(8)
    one[name] = one[name][..., :1]
    with pytest.raises(UsageError, match=f"^{name} has shape"):
        vtrace(**one)


def test_values_are_time_by_trajectory_with_a_step_at_least() -> None:
    for values in (torch.zeros(3), torch.zeros(0, 3)):
        with pytest.raises(UsageError, match=r"^values is \[T, B\]"):
            vtrace(values, values, values, values, torch.zeros(3))


@each("clip", ["rho_clip", "c_clip", "pg_clip"])
@each("wrong", [0.0, -1.0, NAN, INF])
def test_a_clip_is_above_0_or_none(clip: str, wrong: float) -> None:
    given: dict[str, Any] = {clip: wrong}
    with pytest.raises(UsageError, match=f"^{clip} is above 0"):
        vtrace(**drawn(9), **given)
