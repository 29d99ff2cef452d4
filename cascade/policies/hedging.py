"""When the reference's call is begun early: a rule for each set of steps taken, and its file in a policy directory.

Before a call of an earlier step is made, a hedge says whether the reference's call is begun at the same moment. To
begin now is worth, in nano-USD,

    P(the walk reaches the reference) · price of a second · seconds saved − P(it does not) · cost of the reference,

less what beginning at a later step would be worth. `training.hedging` fits a regression of that on the features of the
steps so far, before the first call on numbers of the request alone. The call is begun where it foretells more than 0.

A hedge changes time and money alone. So it stands in a file of its own, `hedge.json`, which no certificate names.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
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

VERSION = 1
"""The version of the file's fields."""
_DTYPES = ("float64", "int64")
_KEYS = frozenset({"schema_version", "horizon", "sources", "usd_a_second", "rules", "held_out", "sha256"})


class HedgeRule(NamedTuple):
    """What beginning the reference's call is worth in one state.

    Attributes:
        bought: the numbers of the steps taken so far, rising; empty before the first call.
        features: what the regression reads.
        worth: the regression, in nano-USD.
    """

    bought: tuple[int, ...]
    features: FeatureSet
    worth: Scorer


@dataclass(frozen=True, slots=True)
class Hedge:
    """When to begin the reference's call early. In a state without a rule it is not begun.

    Args:
        horizon: the number of the reference's step.
        sources: the places of a step's candidates, as in `History`.
        usd_a_second: the price of a second of waiting that it was fitted for, in USD.
        rules: one for each state.
        held_out: what it does on questions that did not fit it, plain JSON values, for people who read the file.

    Raises:
        UsageError: two rules are for the same state, or one is for a state that is none.
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
            raise UsageError("A hedge has one rule for each set of steps before the reference, in their order.")
        object.__setattr__(self, "_by_state", found)

    def begins(self, observation: Observation) -> bool:
        """Whether the reference's call is begun beside the next one. Pure; a step numbered 0 means none yet."""
        bought = tuple([step.number for step in observation.steps if step.number])
        rule = self._by_state.get(bought)
        if rule is None or observation.horizon != self.horizon:
            return False
        worth = rule.worth.value(rule.features.live(observation))
        return 0 < worth < math.inf  # infinite: something is missing that never was in training

    def dumps(self) -> bytes:
        """Return the file; the same hedge gives the same bytes."""
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

    Args:
        data: the file.
        source: its directory, for messages.

    Raises:
        ConfigError: everything that is wrong with it: a field that is missing, unknown or of another form, another
            version, a file that was changed after it was made.
        NewerFileError: a newer release wrote it.
    """
    document, where = json_of_bytes(data, HEDGE_FILE), f"{source}/{HEDGE_FILE}"
    refuse_newer(document.get("schema_version") if isinstance(document, dict) else None, VERSION, where)
    problems = list(_problems(document))
    if problems:
        raise ConfigError(problems, where)
    try:
        sources = tuple(document["sources"])
        rules = tuple([_rule(one, sources) for one in document["rules"]])
        return Hedge(document["horizon"], sources, document["usd_a_second"], rules, document["held_out"])
    except ConfigError as error:
        raise ConfigError(error.problems, where) from None
    except (UsageError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise ConfigError([f"rules: they are not of their form: {error}"], where) from None


def _problems(document: Any) -> Iterator[str]:
    if not isinstance(document, dict):
        yield "it is an object with named fields"
        return
    version = document.get("schema_version")
    if version != VERSION or isinstance(version, bool):
        yield f"schema_version: it is {version!r}, and this release reads {VERSION}"
        return
    yield from (f"{name}: is missing" for name in sorted(_KEYS - document.keys()))
    yield from (f"{name}: there is no such field" for name in sorted(document.keys() - _KEYS))
    rest = {name: value for name, value in document.items() if name != "sha256"}
    if digest(rest) != document.get("sha256"):
        yield "sha256: it is not that of the rest: the file was changed after it was made"


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
