"""The settings of the text: the printed ones, what is refused, and that each says where its number comes from."""

from __future__ import annotations

import ast
import inspect
import re
from typing import Any

import pytest
from cases import each
from literal import config as literal_config
from literal.config import LiteralConfig
from pydantic import ValidationError

from cascade.training.networks import config as module

PRINTED: dict[str, Any] = {
    # What the text gives: section 6 and Algorithm 1.
    "layers": (64, 64, 64), "batch": 10, "rho_clip": 1.0, "c_clip": 1.0, "gradient_clip": 1.0, "mask_width": 0.01,
    "mask_space": "probability", "xi": 0.1, "delta": 0.01, "critic_rate": 1e-3, "steps": 2000,
    # What it says without a number, or prints: Eq. 4 to 9.
    "estimator": "sampled", "exploration": 0.0, "state_weights": False, "constraint_form": "paper", "cost_form": "path",
    "kappa_sign": "printed", "kappa_timing": "after", "kappa_range": (0.0, 1.0), "update": "trust_region",
    "trust_region_of": "soft_mask", "anneal": False, "smoothing": 0.0, "average_from": 1.0, "aim": 1.0,
    # What it leaves open, as usual elsewhere.
    "activation": "relu", "solver": "cg", "cg_iterations": 10, "damping": 0.1, "backtracks": 10, "shrink": 0.8,
}  # fmt: skip


def said() -> dict[str, str]:
    """Return the string below each setting."""
    found = {}
    for one in (module, literal_config):
        (cls,) = [part for part in ast.parse(inspect.getsource(one)).body if isinstance(part, ast.ClassDef)]
        for field, below in zip(cls.body, cls.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                there = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
                found[field.target.id] = str(below.value.value) if there else ""  # type: ignore[attr-defined]
    return found


def test_the_literal_settings_are_the_printed_ones() -> None:
    found = LiteralConfig.literal().model_dump()
    assert {name: found[name] for name in PRINTED} == PRINTED


def test_every_setting_says_what_it_is() -> None:
    assert said().keys() == LiteralConfig.model_fields.keys()
    assert all(len(text) > 20 for text in said().values())


def test_every_setting_that_is_not_the_papers_says_what_the_papers_is() -> None:
    default, literal = LiteralConfig().model_dump(), LiteralConfig.literal().model_dump()
    others = {name for name in default if default[name] != literal[name]}
    assert len(others) > 10
    silent = {name for name in others if not re.search(r"\b[Pp]aper|\btext\b|printed", said()[name])}
    # How fast Adam and μ move is of the dual update, which the paper does not have.
    assert silent <= {"learning_rate", "multiplier_rate"}


def test_the_papers_numbers_in_what_settings_say_are_those_of_the_literal_ones() -> None:
    literal, found = LiteralConfig.literal().model_dump(), set()
    for name, text in said().items():
        number = re.search(r"Paper: (\d+(?:\.\d+)?(?:e-\d+)?)(?=[.,:;]?(?:\s|$))", text)
        if number:
            found.add(name)
            assert float(number[1]) == literal[name], name
    assert found >= {"batch", "exploration", "c_clip", "gradient_clip", "critic_rate", "mask_width", "xi", "delta"}


def test_what_hangs_on_the_estimator_is_filled_in_and_gives_way_to_what_is_given() -> None:
    assert (LiteralConfig().batch, LiteralConfig(estimator="sampled").batch) == (100, 10)
    assert LiteralConfig(estimator="sampled", batch=7).batch == 7
    exact, sampled = LiteralConfig().model_dump(), LiteralConfig(estimator="sampled").model_dump()
    differing = {name for name in exact if exact[name] != sampled[name]} - {"estimator"}
    assert differing == {"steps", "batch", "learning_rate", "multiplier_rate", "smoothing"}


@each(
    "given",
    [
        {"exploration": 1.0}, {"exploration": -0.1}, {"rho_clip": 0.0}, {"c_clip": -1.0}, {"delta": 0.0},
        {"damping": 0.0}, {"shrink": 1.0}, {"backtracks": 0}, {"estimator": "none"},
        {"constraint_form": "indicator"}, {"critic_rate": 0.0}, {"fisher_states": 0},
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        LiteralConfig(**given)


def test_the_indicator_may_be_sampled_and_nothing_may_be_changed_later() -> None:
    found = LiteralConfig(constraint_form="indicator", estimator="sampled")
    with pytest.raises(ValidationError, match="frozen"):
        found.steps = 3  # type: ignore[misc]


def test_the_settings_come_back_from_json() -> None:
    for one in (LiteralConfig(), LiteralConfig.literal(), LiteralConfig(estimator="sampled", kappa_range=(0.1, 0.2))):
        assert LiteralConfig.model_validate_json(one.model_dump_json()) == one
