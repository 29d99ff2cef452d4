"""Hedging: rules for starting the reference's call early, one for each set of steps taken, and their file.

Before each call of an earlier step, a hedge decides whether to start the reference's call at the same time. The value
of starting now is, in nano-USD,

    P(the walk reaches the reference) · price of a second · seconds saved − P(it does not) · cost of the reference,

minus the value of starting at a later step. `training.hedging` fits a regression of this value on the features of the
steps so far (before the first call, on numbers of the request). The call is started if the prediction is above 0.

A hedge changes only time and money. So it has a file of its own, `hedge.json`, which no certificate names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from cascade.errors import ConfigError, UsageError, refuse_newer
from cascade.guarantees.certificate import digest
from cascade.policies.artifact import HEDGE_FILE, json_bytes, json_of_bytes
from cascade.policies.base import Observation
from cascade.policies.design import Array
from cascade.policies.estimators import Scorer, from_arrays
from cascade.policies.features import FeatureSet
from cascade.policies.reading import shape_problems

VERSION = 1
"""The version of the file's fields."""
_DTYPES = ("float64", "int64")
_KEYS = ("schema_version", "horizon", "sources", "usd_a_second", "rules", "held_out", "sha256")


class HedgeRule(NamedTuple):
    """The predicted value of starting the reference's call in one state.

    Attributes:
        bought: the numbers of the steps taken so far, rising.
        features: the features that the prediction reads.
        worth: the predicted value, nano-USD.
    """

    bought: tuple[int, ...]
    features: FeatureSet
    worth: Scorer


@dataclass(frozen=True, slots=True)
class Hedge:
    """The rules for starting the reference's call early. In a state without a rule the call is not started early.

    Attributes:
        horizon: the number of the reference's step.
        sources: the places of a step's candidates, as in `History`.
        usd_a_second: the price of a second.
        rules: at most one rule for each state.
        held_out: the effect on questions that did not fit the hedge, for people who read the file.
    """

    horizon: int
    sources: tuple[str, ...]
    usd_a_second: float
    rules: tuple[HedgeRule, ...]
    held_out: Mapping[str, Any] = field(default_factory=dict)
    _by_state: Mapping[tuple[int, ...], HedgeRule] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        found = {rule.bought: rule for rule in self.rules}
        states = [state for state in found if list(state) != sorted({*state} & {*range(1, self.horizon)})]
        if states or len(found) != len(self.rules):
            raise UsageError("A hedge must have one rule for each set of steps before the reference, in their order.")
        object.__setattr__(self, "_by_state", found)

    def begins(self, observation: Observation) -> bool:
        """Whether to start the reference's call together with the next one. Pure. A step numbered 0 is no step yet."""
        bought = tuple([step.number for step in observation.steps if step.number])
        rule = self._by_state.get(bought)
        if rule is None or observation.horizon != self.horizon:
            return False
        worth = rule.worth.value(rule.features.live(observation))
        return 0 < worth < math.inf  # infinite: a feature is missing that was never missing in training

    def dumps(self) -> bytes:
        """Return the bytes of the file; equal hedges give equal bytes."""
        document = {
            "schema_version": VERSION,
            "horizon": self.horizon,
            "sources": list(self.sources),
            "usd_a_second": self.usd_a_second,
            "rules": [
                {
                    "bought": list(rule.bought),
                    "features": list(rule.features.names),
                    "form": rule.worth.kind,
                    "arrays": {name: _listed(array) for name, array in rule.worth.arrays().items()},
                }
                for rule in self.rules
            ],
            "held_out": dict(self.held_out),
        }
        return json_bytes(document | {"sha256": digest(document)})


def loads(data: bytes, source: str) -> Hedge:
    """Return the hedge of a file.

    Raises:
        ConfigError: lists every problem: a field that is missing, unknown or not valid, another version, or a file
            that was changed after it was made.
        NewerFileError: a newer release wrote it.
    """
    document, where = json_of_bytes(data, HEDGE_FILE), f"{source}/{HEDGE_FILE}"
    refuse_newer(document.get("schema_version") if isinstance(document, dict) else None, VERSION, where)
    problems = list(shape_problems(document, _KEYS))
    if isinstance(document, dict):
        rest = {name: value for name, value in document.items() if name != "sha256"}
        if digest(rest) != document.get("sha256"):
            problems.append("sha256: it does not match the rest of the file, which was changed after it was made")
    if problems:
        raise ConfigError(problems, where)
    try:
        sources = tuple(document["sources"])
        rules = tuple([_rule(one, sources) for one in document["rules"]])
        return Hedge(document["horizon"], sources, document["usd_a_second"], rules, document["held_out"])
    except ConfigError as error:
        raise ConfigError(error.problems, where) from None
    except (UsageError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise ConfigError([f"rules: {error}"], where) from None


def _rule(held: Mapping[str, Any], sources: tuple[str, ...]) -> HedgeRule:
    features = FeatureSet(tuple(held["features"]), sources)
    arrays = {name: _array(one) for name, one in held["arrays"].items()}
    return HedgeRule(tuple(held["bought"]), features, from_arrays(held["form"], arrays, len(features.names)))


def _listed(array: Array) -> dict[str, Any]:
    return {"dtype": str(array.dtype), "shape": list(array.shape), "values": array.ravel().tolist()}


def _array(held: Mapping[str, Any]) -> Array:
    if held["dtype"] not in _DTYPES:
        raise ValueError(f"an array is of {' or '.join(_DTYPES)}, not {held['dtype']!r}")
    return np.array(held["values"], dtype=held["dtype"]).reshape(held["shape"])
