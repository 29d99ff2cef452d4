"""The settings of training: what is refused, and that each says what it is."""

from __future__ import annotations

import ast
import inspect
from typing import Any

import pytest
from cases import each
from pydantic import ValidationError

from cascade.training.networks import config as module
from cascade.training.networks.config import CCPOConfig


def said() -> dict[str, str]:
    """Return the string below each setting."""
    (cls,) = [one for one in ast.parse(inspect.getsource(module)).body if isinstance(one, ast.ClassDef)]
    found = {}
    for field, below in zip(cls.body, cls.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            there = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
            found[field.target.id] = str(below.value.value) if there else ""  # type: ignore[attr-defined]
    return found


def test_every_setting_says_what_it_is() -> None:
    assert said().keys() == CCPOConfig.model_fields.keys()
    assert all(len(text) > 20 for text in said().values())


@each(
    "given",
    [
        {"steps": 0}, {"batch": 0}, {"layers": ()}, {"layers": (64, 0)}, {"layers": (5000,)}, {"layers": (4,) * 17},
        {"mask_width": 0.0},
        {"mask_width": float("nan")}, {"eta": float("inf")}, {"xi": 0.5}, {"xi": 0.0}, {"kappa_start": 1.5},
        {"kappa_range": (0.3, 0.3)}, {"kappa_range": (0.5, 0.2)}, {"kappa_range": (-0.1, 0.2)}, {"lambda_set": -1.0},
        {"smoothing": 1.0}, {"estimator": "sampled"}, {"update": "dual"},
        {"average_from": 1.1}, {"aim": 0.0}, {"device": "tpu"}, {"kappa_start": 0.9, "kappa_range": (0.1, 0.5)},
        {"activation": "tanh"}, {"epsilon": 0.1},
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        CCPOConfig(**given)


def test_the_settings_come_back_from_json() -> None:
    for one in (CCPOConfig(), CCPOConfig(kappa_range=(0.1, 0.2))):
        assert CCPOConfig.model_validate_json(one.model_dump_json()) == one
