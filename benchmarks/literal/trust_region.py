"""One step of constrained policy optimisation: improve the objective, keep the constraint, stay in a trust region.

With g the gradient of an objective to be minimised, c the value of a constraint that is to be at most 0, b its gradient
and H the Fisher matrix of the policy (the Hessian of the mean KL divergence), the step solves

    min g·x   subject to   c + b·x ≤ 0   and   ½ x'Hx ≤ δ.

`trust_region_step` solves it from products with H alone, `conjugate_gradient` makes H⁻¹ of them, and `backtrack`
shortens the step until the objective, the constraint and the KL divergence themselves, and not their expansions, allow
it. Nothing here knows of cascades; why the conditions of optimality are solved and not the dual is told in
`design/ccpo.md`.

References: Achiam et al., Constrained Policy Optimization, ICML 2017 (CPO); Schulman et al., Trust Region Policy
Optimization, ICML 2015 (TRPO).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from cascade.errors import UsageError

Product = Callable[[Tensor], Tensor]
"""From a flat vector to a flat vector of the same shape: v ↦ Hv, or v ↦ H⁻¹v."""

Case = Literal["recover", "inactive", "active"]

KL_SLACK = 1.05
"""A full step has ½ x'Hx = δ, and a KL divergence that is off by terms of third order. Held to δ itself, every full
step whose terms are above 0 would be shortened by a fifth for a hair's breadth."""

_DOUBT = 0.01
"""A step is solved anew with a floor under the curvature where rounding may hide more than this share of δ."""

_FLOOR = 8.0
"""The floor, in units of what rounding can hide: n·eps of the steepest curvature that was seen."""

_ROUNDING = 1e-12
"""What a surrogate of order one may be worse by and still count as equal: a step along the constraint's edge leaves it
as it was but for rounding."""


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A step, and what it does if objective and constraint are linear and the KL divergence is quadratic.

    Attributes:
        x: the step, flat (n,), of the gradients' dtype.
        case: "recover": no step keeps the constraint, and x lowers it as far as the region allows; "inactive": the
            constraint does not bind; "active": x ends on its edge.
        objective: g·x, the change of the objective.
        constraint: b·x, the change of the constraint.
        quadratic: ½ x'Hx, damping included, and the floor where there is one; at most δ.
    """

    x: Tensor
    case: Case
    objective: float
    constraint: float
    quadratic: float


class Measured(NamedTuple):
    """What a policy does: the objective (lower is better), the constraint (met at 0 or below), its KL divergence."""

    objective: float
    constraint: float
    kl: float


@dataclass(frozen=True, slots=True, eq=False)
class Accepted:
    """What became of a step.

    Attributes:
        x: the step to take, flat (n,); zeros if none was accepted.
        accepted: whether x is to be taken.
        case: of the step, or "rejected".
        measured: what x does; where it was rejected, what was before.
        factor: x over the step that was proposed, shrinkʲ; 0 where it was rejected.
    """

    x: Tensor
    accepted: bool
    case: Case | Literal["rejected"]
    measured: Measured
    factor: float


def conjugate_gradient(product: Product, b: Tensor, *, iterations: int = 10, tolerance: float = 1e-10) -> Tensor:
    """Return x with H x ≈ b, from products with a symmetric positive definite H.

    Each iterate has x'Hx = b·x, whenever it stops. It stops early where the residual is small, and before a direction
    along which the curvature is negative or cannot be told from 0.

    Args:
        product: v ↦ Hv.
        b: flat (n,).
        iterations: at most so many products.
        tolerance: stops at |b − Hx| ≤ tolerance·|b|.

    Returns:
        x, flat (n,); zeros for b = 0.

    Raises:
        UsageError: b is not flat, or b or a product with it is not finite.

    Example:
        >>> H = torch.tensor([[4.0, 1.0], [1.0, 3.0]], dtype=torch.float64)
        >>> [round(one, 4) for one in conjugate_gradient(lambda v: H @ v, H @ torch.ones(2, dtype=H.dtype)).tolist()]
        [1.0, 1.0]
    """
    scale = _size(_flat("b", b))
    x = torch.zeros_like(b)
    if scale == 0:
        return x
    direction = residual = b.detach() / scale
    squared = float(residual @ residual)
    enough, steepest = tolerance**2 * squared, 0.0
    for _ in range(iterations):
        if squared <= enough:
            break
        image = _finite("product", product(direction), b)
        curvature, length = float(direction @ image), float(direction @ direction)
        steepest = max(steepest, curvature / length)
        if not curvature > torch.finfo(b.dtype).eps * steepest * length:
            break
        x = x + (squared / curvature) * direction
        residual = residual - (squared / curvature) * image
        before, squared = squared, float(residual @ residual)
        direction = residual + (squared / before) * direction
    return _finite("product", x * scale, b)


def trust_region_step(
    gradient: Tensor,
    constraint_gradient: Tensor,
    constraint_value: float,
    fisher_product: Product,
    delta: float,
    *,
    damping: float = 0.0,
    solve: Product | None = None,
) -> Step:
    """Return the x that minimises g·x subject to c + b·x ≤ 0 and ½ x'Hx ≤ δ, with H = F + damping·I.

    With v = H⁻¹g, w = H⁻¹b, q = g·v, r = g·w, s = b·w and R = 2δ, the conditions of optimality leave three cases:

        c > 0 and c²/s > R:        x = −√(R/s) w                                  "recover"
        c + b·x ≤ 0 for this x:    x = −√(R/q) v                                  "inactive"
        otherwise:                 x = −(c/s) w − √((R − c²/s)/(q − r²/s)) (v − (r/s) w)   "active"

    All three lie in the plane of v and w. There the problem is solved in coordinates in which H is the identity, taken
    from products with H: no difference such as q − r²/s is formed, and where v and w come from conjugate gradients that
    have not converged, x is the best step of their plane.

    Guarantee:
        ½ x'Hx ≤ δ and, but in the case "recover", c + b·x ≤ 0, to rounding, however inexact `solve` is. With an exact
        one no feasible x has a lower g·x. A lost gradient (g = 0, b = 0), parallel and anti-parallel ones and a c on
        the edge need no care.

        The region holds in truth and not only as computed. A product with H hides a curvature of n·eps times the
        steepest one. Where that could change ½ x'Hx by more than 1 % of δ, 8 times as much is added to the diagonal of
        H as a floor. It also bounds the step along directions in which H has no curvature.

    Args:
        gradient: g, flat (n,).
        constraint_gradient: b, flat (n,).
        constraint_value: c; the constraint holds at 0 or below.
        fisher_product: v ↦ Fv, flat (n,) to flat (n,), F symmetric and positive semidefinite.
        delta: δ > 0, in nats.
        damping: added to the diagonal of F.
        solve: v ↦ H⁻¹v, damping included; ten iterations of conjugate gradients where there is none.

    Raises:
        UsageError: an argument, which the message names, is not finite or has a shape or value that it cannot have.

    Example:
        >>> g, b = torch.tensor([1.0, 0.0]), torch.tensor([-1.0, 0.5])
        >>> step = trust_region_step(g, b, -0.05, lambda v: v, 0.01)
        >>> step.case, [round(one, 4) for one in step.x.tolist()]
        ('active', [-0.1, -0.1])
    """
    g, b = _flat("gradient", gradient).detach(), _flat("constraint_gradient", constraint_gradient).detach()
    if g.shape != b.shape or g.dtype != b.dtype or g.device != b.device:
        raise UsageError("gradient and constraint_gradient differ in shape, dtype or device.")
    c = _number("constraint_value", constraint_value)
    radius = math.sqrt(2 * _number("delta", delta, above=0.0))
    if _number("damping", damping) < 0:
        raise UsageError(f"damping is 0 or above, not {damping:g}.")

    # Neither the objective's nor the constraint's unit moves x; at length 1 no product of theirs over- or underflows.
    g_size, b_size = _length(g), _length(b)
    g_unit, b_unit = _over(g, g_size), _over(b, b_size)
    c_unit = c / b_size if b_size else math.copysign(math.inf, c or -1)

    def product(v: Tensor) -> Tensor:
        return _finite("fisher_product", fisher_product(v), v)

    def solved(added: float) -> tuple[Tensor, Case, float]:
        damped = partial(_damped, product, added)
        inverse, name = (solve, "solve") if solve else (partial(conjugate_gradient, damped), "fisher_product")
        plane = _plane([_finite(name, inverse(one), one) for one in (b_unit, g_unit)], damped)
        found = _best(_along(plane, g_unit), _along(plane, b_unit), c_unit, radius)
        x = found.at[0] * plane[0] + found.at[1] * plane[1]
        return x, found.case, 0.5 * float(x @ damped(x))

    hidden = g.numel() * torch.finfo(g.dtype).eps * max(_length(product(one)) for one in (g_unit, b_unit))
    x, case, quadratic = solved(damping)
    if 0.5 * hidden * float(x @ x) > _DOUBT * delta:
        x, case, quadratic = solved(damping + _FLOOR * hidden)
    if quadratic > delta:  # by rounding
        x, quadratic = x * math.sqrt(delta / quadratic), delta
    quadratic = max(0.0, quadratic)  # of a singular matrix, float32 may round 0 to below
    return Step(x, case, float(g_unit @ x) * g_size, float(b_unit @ x) * b_size, quadratic)


def _damped(product: Product, added: float, v: Tensor) -> Tensor:
    """Return Hv + added·v."""
    return product(v) + added * v


def backtrack(
    x: Tensor,
    measure: Callable[[Tensor], Measured],
    step_case: Case,
    before: Measured,
    delta: float,
    *,
    shrink: float = 0.8,
    tries: int = 10,
) -> Accepted:
    """Return the longest of x, x·shrink, x·shrink², … that does in truth what it was to do.

    A step is accepted if its KL divergence is at most `KL_SLACK`·δ, its constraint has risen by at most max(−c, 0),
    with c the constraint before, and its objective is not worse than before. The last is not asked where c > 0 or
    the case is "recover": the way back to the constraint has its price. What is not finite is not accepted.

    Args:
        x: the step, flat (n,).
        measure: what the policy does with a step added to its parameters.
        step_case: of `Step`.
        before: what it does without.
        delta: δ > 0, in nats.
        shrink: in (0, 1).
        tries: how many lengths are measured at most, 1 or more.

    Raises:
        UsageError: an argument is not finite or has a value that it cannot have.

    Example:
        >>> def measure(x: Tensor) -> Measured:
        ...     return Measured(float(x.sum()), -1.0, float(x @ x))
        >>> taken = backtrack(torch.tensor([-2.0]), measure, "inactive", Measured(0.0, -1.0, 0.0), 1.0)
        >>> taken.accepted, round(taken.factor, 4)
        (True, 0.512)
    """
    _flat("x", x)
    limit = KL_SLACK * _number("delta", delta, above=0.0)
    for value in before:
        _number("before", value)
    if not 0 < shrink < 1 or tries < 1:
        raise UsageError(f"shrink lies between 0 and 1 and tries is at least 1, not {shrink:g} and {tries}.")
    recovering = step_case == "recover" or before.constraint > 0
    for j in range(tries):
        shorter = x * shrink**j
        now = measure(shorter)
        if now.kl <= limit and _allowed(now, before, recovering=recovering):
            return Accepted(shorter, accepted=True, case=step_case, measured=now, factor=shrink**j)
    return Accepted(torch.zeros_like(x), accepted=False, case="rejected", measured=before, factor=0.0)


def _allowed(now: Measured, before: Measured, *, recovering: bool) -> bool:
    if not all(map(math.isfinite, now)):
        return False
    room = max(-before.constraint, 0.0) + _ROUNDING * max(1.0, abs(before.constraint))
    worse = now.objective - before.objective > _ROUNDING * max(1.0, abs(before.objective))
    return now.constraint - before.constraint <= room and (recovering or not worse)


class _Pair(NamedTuple):
    """Coordinates in the plane."""

    first: float
    second: float

    def dot(self, other: _Pair) -> float:
        return self.first * other.first + self.second * other.second

    def times(self, factor: float) -> _Pair:
        return _Pair(self.first * factor, self.second * factor)

    def unit(self) -> _Pair:
        length = math.hypot(*self)
        return _Pair(self.first / length, self.second / length) if length else self


class _Found(NamedTuple):
    at: _Pair
    case: Case


def _best(g: _Pair, b: _Pair, c: float, radius: float) -> _Found:
    """Solve the problem where H is the identity: min g·y subject to c + b·y ≤ 0 and |y| ≤ radius."""
    s = math.hypot(*b)
    if c > s * radius:
        return _Found(b.unit().times(-radius), "recover")
    free = g.unit().times(-radius)
    if c + b.dot(free) <= 0:
        return _Found(free, "inactive")
    # The constraint cuts the disc in a chord, at −c/s along b; its better end is the one against g. Where g has nothing
    # along the chord, all of it is as good, and its middle is the shortest step.
    normal, middle = b.unit(), -c / s
    chord = _Pair(-normal.second, normal.first)
    slope = g.dot(chord)
    half = math.sqrt(max((radius - middle) * (radius + middle), 0.0)) if slope else 0.0
    aside = chord.times(-math.copysign(half, slope))
    return _Found(_Pair(middle * normal.first + aside.first, middle * normal.second + aside.second), "active")


class _Seen(NamedTuple):
    """A vector v and Hv."""

    v: Tensor
    image: Tensor

    @property
    def norm(self) -> float:
        """√(v'Hv), 0 where H has no positive curvature along v."""
        return math.sqrt(max(float(self.v @ self.image), 0.0))

    def without(self, unit: _Seen) -> _Seen:
        """Return what is left of it beside another one, of norm 1."""
        along = self.v @ unit.image
        return _Seen(self.v - along * unit.v, self.image - along * unit.image)


_CLEAR = 0.01
"""With less than this share left of a vector, the difference of two images has lost too many digits to be one."""


def _plane(spanning: list[Tensor], product: Product) -> list[Tensor]:
    """Return vectors e₁, e₂ with eᵢ'He_j = 1[i = j] that span what was given; zeros for one that is not there.

    Gram–Schmidt, twice: after a second pass what is left is orthogonal to rounding (Parlett 1980, section 6.9). The
    second pass asks H itself; the first one makes do with differences of images where little is lost.
    """
    basis: list[_Seen] = []
    for v in spanning:
        direction = _over(v, _length(v))
        whole = _Seen(direction, product(direction))
        first = whole
        for unit in basis:
            first = first.without(unit)
        if first.norm < _CLEAR * whole.norm:
            first = _Seen(first.v, product(first.v))
        basis.append(_second(first, basis, product, 100 * torch.finfo(v.dtype).eps, whole.norm))
    return [one.v for one in basis]


def _second(first: _Seen, basis: list[_Seen], product: Product, noise: float, size: float) -> _Seen:
    """Return what a second pass leaves, at norm 1; zeros where either pass left noise.

    What is nearly parallel is noise; to drop it costs at most this share of the objective.
    """
    nothing = _Seen(torch.zeros_like(first.v), torch.zeros_like(first.v))
    if not first.norm > noise * size:
        return nothing
    e = first.v / first.norm
    for unit in basis:
        e = e - (e @ unit.image) * unit.v
    image = product(e)
    left = _Seen(e, image).norm
    return _Seen(e / left, image / left) if left > noise else nothing


def _along(plane: list[Tensor], v: Tensor) -> _Pair:
    return _Pair(float(v @ plane[0]), float(v @ plane[1]))


def _size(v: Tensor) -> float:
    return float(v.abs().max())


def _length(v: Tensor) -> float:
    """Return |v|, also where its square is not a number of v's dtype."""
    size = _size(v)
    return size * float(torch.linalg.vector_norm(v / size)) if size else 0.0


def _over(v: Tensor, length: float) -> Tensor:
    return v / length if length else v


def _number(name: str, value: float, *, above: float = -math.inf) -> float:
    value = float(value)
    if not math.isfinite(value) or value <= above:
        bound = f" above {above:g}" if above > -math.inf else ""
        raise UsageError(f"{name} is a finite number{bound}, not {value}.")
    return value


def _flat(name: str, v: Tensor) -> Tensor:
    if v.ndim != 1 or v.numel() == 0 or not v.is_floating_point():
        raise UsageError(f"{name} is a flat vector of floats, not {v.dtype} of shape {tuple(v.shape)}.")
    return _finite(name, v, v)


def _finite(name: str, v: Tensor, like: Tensor) -> Tensor:
    if v.shape != like.shape:
        raise UsageError(f"{name} has shape {tuple(v.shape)}, not {tuple(like.shape)}.")
    if not bool(torch.isfinite(v).all()):
        raise UsageError(f"{name} is not finite: it has a NaN or an infinity.")
    return v
