"""The numbers of a learned policy in a file: `model.safetensors`, beside the settings in `policy.json`.

The settings have the policy's method, its features, and the SHA-256 of the file; the file has only arrays. A tensor's
name is its path: `step2.confidence.0.logistic.linear.weights`. A step's network is stored once,
`step2.network.layers.0.weights`, and its actions name their outputs, `step2.next.action.output`. Nothing in the file is
ever run. Before use, all arrays are checked: none may be missing, unknown, of a wrong type or shape, not finite, out of
range, or circular.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256 as _sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as _arrays_of
from safetensors.numpy import save as _bytes_of

from cascade.errors import ConfigError, UsageError, refuse_newer
from cascade.files import content
from cascade.policies.artifact import MODEL_FILE, model_problems
from cascade.policies.base import Takes
from cascade.policies.design import Array, Reading
from cascade.policies.estimators import SCORERS, Scorer, form_of
from cascade.policies.features import FeatureSet, describe
from cascade.policies.learned import LearnedPolicy, StepRule

if TYPE_CHECKING:  # few policies are networks
    from cascade.policies.network import Network

LAYOUT = 1
"""The version of the tensors and their names; in the file as `layout`."""
NETWORK = "network"
"""The name of a step's policy network, whose outputs are the step's actions."""
ON_MISSING = "go_on"
"""What happens if a feature is missing that was never missing in training (`design.GO_ON`)."""


def settings(policy: LearnedPolicy, model: bytes, fitted: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a learned policy's settings, as the section `policy` of `policy.json`.

    `fitted` has figures on how it was chosen, for people who read the file.
    """
    return {
        "kind": "learned",
        "method": policy.method,
        "horizon": policy.horizon,
        "sources": list(policy.sources),
        "kappa": float(policy.kappa),
        "features": [
            {"step": number, "name": one.name, "unit": one.unit, "low": one.low, "high": one.high}
            for number, rule in enumerate(policy.rules, 1)
            for one in map(describe, rule.features.names)
        ],
        "model": {"file": MODEL_FILE, "sha256": _sha256(model).hexdigest()},
        "on_missing": ON_MISSING,
        "fitted": dict(fitted or {}),
        "takes": _takes_of(policy),
        **({"states": [list(state) for state in policy.states]} if policy.states else {}),
    }


def _takes_of(policy: LearnedPolicy) -> str | list[int] | None:
    """Return the part of the strategy that a policy takes, as written in the settings; None: all of it."""
    if policy.takes is None:
        return None
    if policy.takes.calls:
        return "calls"
    return "reference" if policy.takes.reference else list(policy.takes.steps)


def _takes(section: Mapping[str, Any]) -> Takes | None:
    """Parse what `_takes_of` returned."""
    held = section.get("takes")
    if held is None:
        return None
    whole = {"reference": Takes(reference=True), "calls": Takes(calls=True)}
    return whole[held] if isinstance(held, str) else Takes(tuple(held))


def dumps(policy: LearnedPolicy) -> bytes:
    """Return a policy's numbers as the bytes of a file; equal policies give equal bytes.

    Raises:
        UsageError: the policy could not be read back: a weight is not finite, or a scorer has other features than its
            rule.
    """
    arrays = _tensors(policy)
    data = _bytes_of({name: np.ascontiguousarray(values).reshape(values.shape) for name, values in arrays.items()})
    try:
        loads(data, settings(policy, data))
    except ConfigError as error:
        raise UsageError(f"This policy cannot be written: {'; '.join(error.problems)}.") from None
    return data


def _tensors(policy: LearnedPolicy) -> dict[str, Array]:
    """Return a policy's numbers by their names in the file."""
    arrays: dict[str, Array] = {"layout": np.array(LAYOUT, dtype=np.int64)}
    for name, scorer in _places(policy):
        arrays |= {f"{name}.{scorer.kind}.{part}": values for part, values in _own(scorer).items()}
    for number, rule in enumerate(policy.rules, 1):
        parts = {} if rule.network is None else rule.network.arrays()
        arrays |= {f"step{number}.{NETWORK}.{part}": values for part, values in parts.items()}
    return arrays


def _own(scorer: Scorer) -> Mapping[str, Array]:
    """Return the arrays stored for a scorer; a step's network is stored once, beside all its actions."""
    arrays = scorer.arrays()
    return {"output": arrays["output"]} if scorer.network is not None else arrays


def loads(data: bytes, section: Mapping[str, Any], source: str | None = None) -> LearnedPolicy:
    """Return the policy from its settings and the file that they name.

    `section` has the form that `learned_config.LearnedConfig` checks; errors name `source`.
    """
    features, problems = _features_of(section)
    problems += model_problems(data, section["model"]["sha256"])
    if problems:
        raise ConfigError(problems, source)
    read = _unpacked(data, source)
    policy = _policy_of(read, section, features)
    if problems := [*read.problems, *(f"{name}: it has no such tensor" for name in read.left())]:
        raise ConfigError([f"{MODEL_FILE}: {said}" for said in problems], source)
    return policy


def _unpacked(data: bytes, source: str | None) -> Reading:
    """Return a file's arrays, to be read by name."""
    try:
        return Reading(_arrays_of(data))
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise ConfigError([f"{MODEL_FILE}: it is not a safetensors file: {error}"], source) from None


def _policy_of(held: Reading, section: Mapping[str, Any], features: Sequence[FeatureSet]) -> LearnedPolicy:
    """Return the policy in a part of a file, noting problems."""
    rules = tuple(_rules(held, features))
    states = tuple([tuple(state) for state in section.get("states") or ()])
    kappa, takes = float(section["kappa"]), _takes(section)
    try:
        return LearnedPolicy(section["method"], rules, kappa, takes, states)
    except UsageError as error:
        held.note(str(error))
        return LearnedPolicy(section["method"], rules, kappa, takes)


def save(path: str | Path, policy: LearnedPolicy) -> str:
    """Write a policy's numbers, and return their SHA-256. `artifact.write` writes the whole directory."""
    data = dumps(policy)
    Path(path).write_bytes(data)
    return _sha256(data).hexdigest()


def load(path: str | Path, section: Mapping[str, Any], sha256: str) -> LearnedPolicy:
    """Return the policy of settings and a file with this SHA-256. Raises as `loads`, also if there is no file."""
    try:
        data = content(Path(path))
    except ConfigError as error:
        raise ConfigError([f"{Path(path).name}: {error.problems[0]}"], str(path)) from None
    return loads(data, {**section, "model": {"file": MODEL_FILE, "sha256": sha256}}, str(path))


def _places(policy: LearnedPolicy) -> Iterator[tuple[str, Scorer]]:
    """Yield every scorer with its place in the file."""
    for number, rule in enumerate(policy.rules, 1):
        alone = {"next": rule.next, "incumbent": rule.incumbent}
        yield from ((f"step{number}.{name}", one) for name, one in alone.items() if one is not None)
        for name, many in (("include", rule.include), ("confidence", rule.confidence)):
            yield from ((f"step{number}.{name}.{at}", one) for at, one in enumerate(many) if one is not None)


def _features_of(section: Mapping[str, Any]) -> tuple[list[FeatureSet], list[str]]:
    """Return the features of each step, and problems with them."""
    horizon, sources = len(section.get("states") or ()) or section["horizon"], tuple(section["sources"])
    problems, names = [], [list[str]() for _ in range(horizon)]
    for place, one in enumerate(section["features"]):
        known = describe(one["name"])
        if (known.unit, known.low, known.high) != (one["unit"], one["low"], one["high"]):
            then, now = ((unit, low, high) for unit, low, high in ((one["unit"], one["low"], one["high"]), known[1:4]))
            said = f"{one['name']} was {_ranged(*then)}, and is {_ranged(*now)} in this release"
            problems.append(f"policy.features[{place}]: {said}")
        if one["step"] > horizon:
            problems.append(f"policy.features[{place}].step: {one['step']} is beyond the {horizon} steps")
        else:
            names[one["step"] - 1].append(one["name"])
    found = []
    for number, some in enumerate(names, 1):
        try:
            found.append(FeatureSet(tuple(some), sources))
        except UsageError as error:
            problems.append(f"policy.features of step {number}: {error}")
    return found, problems


def _ranged(unit: str, low: float | None, high: float | None) -> str:
    return f"{unit} from {'−∞' if low is None else f'{low:g}'} to {'∞' if high is None else f'{high:g}'}"


def _rules(held: Reading, features: Sequence[FeatureSet]) -> Iterator[StepRule]:
    """Yield the rules that can be built from a file's arrays; problems are noted."""
    layout = held.take("layout", np.int64, ())
    refuse_newer(None if layout is None else int(layout), LAYOUT, MODEL_FILE)
    if layout is not None and int(layout) != LAYOUT:
        held.note(f"it is {int(layout)}, and this release reads {LAYOUT}", "layout")
    for number, one in enumerate(features, 1):
        yield _rule(held.inside(f"step{number}"), one, first=number == 1, last=number == len(features))


def _rule(step: Reading, features: FeatureSet, *, first: bool, last: bool) -> StepRule:
    network = None
    if step.inside(NETWORK).names():
        from cascade.policies.network import Network

        network = Network.read(step.inside(NETWORK), len(features.names))

    def scorer(name: str) -> Scorer | None:
        return _scorer(step.inside(name), features, network)

    onward, incumbent = scorer("next"), scorer("incumbent")
    if last != (onward is None) and not (onward is None and step.inside("next").names()):
        step.note("it must be at every step but the last", "next")
    if first and incumbent is not None:
        step.note("it must not be at the first step", "incumbent")
    places = range(len(features.sources))
    include, confidence = (tuple([scorer(f"{name}.{at}") for at in places]) for name in ("include", "confidence"))
    try:
        rule = StepRule(features, onward, include, confidence, incumbent)
    except UsageError as error:
        step.note(str(error))
        return StepRule(features, None, (None,) * len(places), (None,) * len(places))
    if network is not None and rule.network is None:
        step.note("no action uses it", NETWORK)
    return rule


def _scorer(held: Reading, features: FeatureSet, network: Network | None) -> Scorer | None:
    """Return the scorer at a path; None if there is none, or, with a noted problem, if it is incomplete."""
    kinds = held.names()
    if not kinds:
        return None
    if len(kinds) > 1 or kinds[0] not in SCORERS:
        held.note(f"there must be one scorer here, of the kinds {', '.join(SCORERS)}; there are {', '.join(kinds)}")
        return None
    part = held.inside(kinds[0])
    if kinds[0] != "action":
        return form_of(kinds[0]).read(part, len(features.names))
    from cascade.policies.network import Action

    if network is None:
        part.note(f"its step has no {NETWORK}")
    return Action.of(part, network)
