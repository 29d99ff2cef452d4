"""Policy networks, for serving: numpy only, with the same bits for one row and for many.

At each step of a walk the actions are {keep candidate 1, …, keep candidate m, next}, or {stop, next} if every answer is
kept. An action's score is its log-probability. The sums of a layer add the bias first and then input after input, for
one row and for many. IEEE arithmetic rounds the activations correctly, element by element; `exp` and `log` come from
`math`. `policies.design` gives the reasons, and `design/network.md` the cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

import numpy as np

from cascade.conformal.arrays import Bools, Floats
from cascade.errors import UsageError
from cascade.policies.design import GO_ON, Array, Design, Memo, Reading, Scored, fixed

MOST_HIDDEN, MOST_UNITS = 16, 4_096
"""The most hidden layers, and the most units of a layer; a file with more is refused."""
_LARGEST = 1e300
"""No logit may be larger, so that the difference of two logits is finite."""
_BLOCK = 1_024
"""Rows that go through the layers together: with 64 units they fit into the second-level cache. A row takes 5.3 µs per
layer of 64 units in blocks of 64 rows, 3.7 µs in blocks of 1,024, and 4.4 µs in blocks of 2,048."""


def _relu(inputs: Floats, out: Floats) -> None:
    # For −0 it returns 0 or −0, depending on the machine. The result is the same for both: see `_log_softmax`.
    np.maximum(inputs, 0.0, out=out)


def _softsign(inputs: Floats, out: Floats) -> None:
    np.divide(inputs, np.abs(inputs) + 1.0, out=out)


ACTIVATIONS: Mapping[str, Callable[[Floats, Floats], None]] = {"relu": _relu, "softsign": _softsign}
"""By name, in the order of their codes in a file: max(x, 0) and x / (1 + |x|). Both are rounded correctly element by
element. tanh is missing, since its vector form may differ from its scalar form by a bit."""


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """A multilayer perceptron with a softmax over the actions of a step.

    h_0 are the D columns of the design. A hidden layer computes h_l = activation(W_l · h_{l−1} + b_l); the last layer
    computes z in the same way, without activation. The log-probability of output j is z_j − log Σ_i exp(z_i), summed
    over the allowed outputs i; it is −inf if j is not allowed.

    Attributes:
        design: the conversion of d raw features to D columns.
        weights: float64 (out, in) for each layer, the hidden ones first; the last has k outputs.
        biases: float64 (out,) for each layer.
        activation: "relu" or "softsign".
        allowed: bool (k,), the outputs that are allowed at this step; "next" is not allowed at the last step.

    Raises:
        UsageError: the shapes of two layers do not fit together, no output is allowed, or a score may be infinite.

    >>> design = Design(np.zeros(1), np.ones(1), np.array([-9.0]), np.array([9.0]), np.array([]), np.empty((0, 2)))
    >>> layers = (np.array([[1.0], [-1.0]]), np.array([[0.0, 0.0], [1.0, 0.0]]))
    >>> network = Network(design, layers, (np.zeros(2), np.zeros(2)), "relu", np.ones(2, dtype=bool))
    >>> network.log_probabilities(np.array([[0.0], [3.0]])).round(3).tolist()
    [[-0.693, -0.693], [-3.049, -0.049]]
    """

    design: Design
    weights: tuple[Floats, ...]
    biases: tuple[Floats, ...]
    activation: str
    allowed: Bools
    _layers: tuple[_Layer, ...] = field(init=False, repr=False)
    _there: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", tuple([fixed(one, np.float64) for one in self.weights]))
        object.__setattr__(self, "biases", tuple([fixed(one, np.float64) for one in self.biases]))
        object.__setattr__(self, "allowed", fixed(self.allowed, np.bool_))
        problems = list(_problems(self))
        if problems:
            raise UsageError(f"These numbers are not a policy network: {'; '.join(problems)}.")
        layers = [_laid(weights, bias) for weights, bias in zip(self.weights, self.biases, strict=True)]
        object.__setattr__(self, "_layers", tuple(layers))
        object.__setattr__(self, "_there", tuple(np.flatnonzero(self.allowed).tolist()))

    @property
    def outputs(self) -> int:
        """The outputs k, allowed or not."""
        return int(self.allowed.size)

    def log_probabilities(self, raw: Floats) -> Floats:
        """Return the log-probabilities of the outputs, float64 (…, d) -> (…, k); the same bits for any number of rows.

        An output that is not allowed has −inf. The others have `GO_ON` if a missing feature was not foreseen.
        """
        memo = Memo(raw)
        return np.array(self.row(memo), dtype=np.float64) if raw.ndim == 1 else self.rows(memo)

    def row(self, memo: Memo) -> Sequence[float]:
        """Return the log-probabilities of the memo's one row, k floats; computed once for each memo."""
        found: Sequence[float] | None = memo.networks.get(self)
        if found is None:
            found = memo.networks[self] = self._of_one(memo)
        return found

    def rows(self, memo: Memo) -> Floats:
        """Return the log-probabilities of the memo's rows, float64 (…, k); computed once for each memo."""
        found: Floats | None = memo.networks.get(self)
        if found is None:
            found = memo.networks[self] = self._of_many(memo)
        return found

    def _of_one(self, memo: Memo) -> list[float]:
        made, logs = memo.designed(self.design), [-math.inf] * self.outputs
        if made.unforeseen is not None:
            for j in self._there:
                logs[j] = GO_ON
            return logs
        activate, totals = ACTIVATIONS[self.activation], np.empty(0)
        for number, layer in enumerate(self._layers):
            inputs = np.empty((len(layer.terms), 1))
            inputs[0] = 1.0  # for the bias
            if number:
                activate(totals, inputs[1:, 0])
            else:
                inputs[1:, 0] = made.rows
            totals = layer.added(np.multiply(layer.terms, inputs, order="C"))
        logits: list[float] = totals.tolist()
        most = max([logits[j] for j in self._there])
        total = 0.0
        for j in self._there:  # not sum(), which compensates for rounding in some Python releases
            total += math.exp(logits[j] - most)
        normaliser = math.log(total)
        for j in self._there:
            logs[j] = (logits[j] - most) - normaliser
        return logs

    def _of_many(self, memo: Memo) -> Floats:
        made = memo.designed(self.design)
        rows = made.rows.reshape(math.prod(made.rows.shape[:-1]), self.design.columns)
        logs = np.full((len(rows), self.outputs), -np.inf)
        for start in range(0, len(rows), _BLOCK):
            logits = self._logits(rows[start : start + _BLOCK])
            logs[start : start + _BLOCK, self._there] = _log_softmax(logits[list(self._there)]).T
        logs = logs.reshape(*made.rows.shape[:-1], self.outputs)
        if made.unforeseen is not None:
            logs[np.logical_and(made.unforeseen[..., None], self.allowed)] = GO_ON
        return logs

    def _logits(self, rows: Floats) -> Floats:
        """Return the logits of columns, float64 (n, D) -> (k, n): the n sums of a unit are neighbours in memory."""
        activate, held = ACTIVATIONS[self.activation], np.ascontiguousarray(rows.T)
        for number, layer in enumerate(self._layers):
            if number:
                activate(held, held)
            totals = np.repeat(layer.terms[0][:, None], held.shape[1], axis=1)  # (out, n)
            product = np.empty_like(totals)
            for weights, inputs in zip(layer.terms[1:], held, strict=True):
                np.multiply(weights[:, None], inputs, out=product)
                np.add(totals, product, out=totals)
            held = totals
        return held

    def needs(self) -> Bools:
        """Return the features without an indicator column, bool (d,)."""
        return ~self.design.foreseen

    def arrays(self) -> dict[str, Array]:
        """Return its parameters, as arrays by dotted names."""
        code = np.array(list(ACTIVATIONS).index(self.activation), dtype=np.int64)
        found: dict[str, Array] = {"activation": code, "allowed": self.allowed}
        found |= {f"design.{name}": values for name, values in self.design.arrays().items()}
        for number, (weights, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            found |= {f"layers.{number}.weights": weights, f"layers.{number}.biases": bias}
        return found

    @classmethod
    def read(cls, held: Reading, width: int) -> Network | None:
        """Build it from a file's arrays; if they are not valid, note why and return None."""
        design = Design.read(held.inside("design"), width)
        code, allowed = held.take("activation", np.int64, ()), held.take("allowed", np.bool_, (None,))
        if code is not None and not 0 <= int(code) < len(ACTIVATIONS):
            held.note(f"it must be one of {len(ACTIVATIONS)}, from 0: {', '.join(ACTIVATIONS)}", "activation")
            code = None
        parts = [held.inside("layers").inside(str(number)) for number in range(len(held.inside("layers").names()))]
        weights = [one.take("weights", np.float64, (None, None)) for one in parts]
        biases = [one.take("biases", np.float64, (None,)) for one in parts]
        if design is None or any(one is None for one in (code, allowed, *weights, *biases)):
            return None
        try:
            return cls(design, tuple(weights), tuple(biases), list(ACTIVATIONS)[int(code)], allowed)
        except UsageError as error:
            held.note(str(error))
            return None


@dataclass(frozen=True, slots=True, eq=False)
class Action(Scored):
    """The log-probability of one output of a network. The actions of a step share one network, which is computed once.

    Raises:
        UsageError: the network has no such output, or does not allow it.
    """

    kind = "action"
    network: Network
    output: int

    def __post_init__(self) -> None:
        if not 0 <= self.output < self.network.outputs or not self.network.allowed[self.output]:
            there = ", ".join(map(str, np.flatnonzero(self.network.allowed).tolist()))
            raise UsageError(
                f"An action must be one of the outputs that the network allows, {there}, not {self.output}."
            )

    def values(self, raw: Floats, memo: Memo | None = None) -> Floats:
        """Return the log-probabilities, float64 (…, d) -> (…)."""
        if raw.ndim == 1:
            return np.array(self.value(raw, memo))
        return np.ascontiguousarray(self.network.rows(memo or Memo(raw))[..., self.output])

    def value(self, raw: Sequence[float] | Floats, memo: Memo | None = None) -> float:
        """Return the log-probability of one row."""
        return self.network.row(memo or Memo(np.asarray(raw, dtype=np.float64)))[self.output]

    def needs(self, width: int) -> Bools:  # noqa: ARG002 - as every scorer
        """Return what the network needs, bool (d,)."""
        return self.network.needs()

    def arrays(self) -> dict[str, Array]:
        """Return the output and the network. A policy's file has the network once per step (`model_file`)."""
        own: dict[str, Array] = {"output": np.array(self.output, dtype=np.int64)}
        return own | {f"network.{name}": values for name, values in self.network.arrays().items()}

    @classmethod
    def read(cls, held: Reading, width: int) -> Action | None:
        """Build it from a file's arrays; if they are not valid, note why and return None."""
        return cls.of(held, Network.read(held.inside("network"), width))

    @classmethod
    def of(cls, held: Reading, network: Network | None) -> Action | None:
        """Build the action of a network that has been read; if that is not possible, note why and return None."""
        output = held.take("output", np.int64, ())
        if output is None or network is None:
            return None
        try:
            return cls(network, int(output))
        except UsageError as error:
            held.note(str(error), "output")
            return None


def action_problems(
    onward: Scored | None, include: Sequence[Scored | None], others: Sequence[Scored | None]
) -> Iterator[str]:
    """Yield the reasons why the actions of a step's rule do not belong to one network.

    `include` has the scores of the m answers, and `others` the rule's other scorers.
    """
    actions = {at: one for at, one in enumerate((*include, onward)) if isinstance(one, Action)}
    networks = {id(one.network): one.network for one in actions.values()}
    if any(isinstance(one, Action) for one in others):
        yield "an action must be the score of going on or of an answer, not a confidence"
    if len(networks) > 1:
        yield "all actions of a step must belong to one network"
    many = len(include)
    for at, one in actions.items():
        outputs = one.network.outputs
        meant = outputs - 1 if at == many else at
        if outputs != many + 1 and (outputs != 2 or at != many):
            yield f"the outputs of a network must be {many} answers and next, or stop and next; it has {outputs}"
            return
        if one.output != meant:
            place = "to going on" if at == many else f"to answer {at}"
            yield f"output {meant} belongs {place}, not output {one.output}"


class _Layer(NamedTuple):
    """A layer, arranged in memory for its sums.

    `terms`, float64 (in + 1, out), has the biases first; `in_order` is the result of `_reduces_in_order`.
    """

    terms: Floats
    in_order: bool

    def added(self, products: Floats) -> Floats:
        """Return the sums of a row's products, in C order float64 (in + 1, out) -> (out,), added input after input."""
        if self.in_order:
            return np.asarray(np.add.reduce(products, axis=0))
        return np.asarray(np.add.accumulate(products, axis=0)[-1])


def _laid(weights: Floats, biases: Floats) -> _Layer:
    terms = np.empty((weights.shape[1] + 1, biases.size))  # in C order, see `_reduces_in_order`
    terms[0], terms[1:] = biases, weights.T
    terms.setflags(write=False)
    return _Layer(terms, _reduces_in_order(*terms.shape))


@cache
def _reduces_in_order(rows: int, columns: int) -> bool:
    """Whether `np.add.reduce` over the first axis gives the bits of `np.add.accumulate`, which is sequential.

    numpy sums pairwise only along the axis that is contiguous in memory, so the bits are the same for two columns or
    more. `reduce` takes a third of the time. This function compares the two once for each shape, since the bits of a
    certified score depend on it.

    Reference: the notes of `numpy.sum`.
    """
    if columns < 2:
        return False
    tried = np.random.default_rng(0).normal(size=(rows, columns))
    return np.array_equal(np.add.reduce(tried, axis=0), np.add.accumulate(tried, axis=0)[-1])


def _log_softmax(logits: Floats) -> Floats:
    """Return logits minus the logarithm of their sum of exponentials over the first axis: float64 (k, n) -> (k, n).

    The sign of a logit of ±0 changes no bit of the result.
    """
    shifted = logits - logits.max(axis=0)
    total = np.zeros(logits.shape[1])
    for one in shifted:
        total += np.fromiter(map(math.exp, one.tolist()), np.float64, one.size)
    return np.asarray(shifted - np.fromiter(map(math.log, total.tolist()), np.float64, total.size))


def _problems(network: Network) -> Iterator[str]:
    weights, biases, allowed = network.weights, network.biases, network.allowed
    if network.activation not in ACTIVATIONS:
        yield f"activation: it must be {' or '.join(ACTIVATIONS)}, not {network.activation!r}"
        return
    if not 2 <= len(weights) <= MOST_HIDDEN + 1 or len(biases) != len(weights):
        yield f"layers: there must be 1 to {MOST_HIDDEN} hidden ones and a last one, each with weights and biases"
        return
    sizes = [network.design.columns, *(bias.size for bias in biases)]
    chained = all(
        (bias.shape, one.shape) == ((out,), (out, into))
        for one, bias, into, out in zip(weights, biases, sizes[:-1], sizes[1:], strict=True)
    )
    if not chained:
        yield (
            "layers: weights must be (out, in) and biases (out,); a layer has an input for each output of the layer "
            f"before it, and the first layer has {sizes[0]}"
        )
    if any(not 1 <= size <= MOST_UNITS for size in sizes[1:]):
        yield f"layers: each must have 1 to {MOST_UNITS:,} units"
    if sizes[-1] < 2 or allowed.shape != (sizes[-1],) or not allowed.any():
        yield (
            f"allowed: it must have one bool for each of the {sizes[-1]} outputs; there must be at least 2 outputs, "
            "and one of them allowed"
        )
    elif chained and not _bounded(network):
        yield "layers: a number is not finite, or so large that a score may be infinite"


def _bounded(network: Network) -> bool:
    """Whether no sum in the network can overflow, whatever the features are."""
    with np.errstate(all="ignore"):
        most = network.design.most()
        for weights, bias in zip(network.weights, network.biases, strict=True):
            most = np.abs(weights) @ most + np.abs(bias)
            if not (most <= _LARGEST).all():  # also if it is NaN
                return False
            if network.activation == "softsign":
                most = np.minimum(most, 1.0)
    return True
