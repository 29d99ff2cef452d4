"""A policy gives each node of a log a doubt. The same code scores a whole log and the request that is being served.

Live, a request is a log of one row whose nodes are bought one by one (`live`). So decisions in service are the same as
on the certified log, to the last bit. Scores are rounded to a grid (`ranked`), and thresholds lie between two scores.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, TypeAdapter

from cascade.checks import did_you_mean
from cascade.conformal.path import Scores, Walks, newest, surest, walks
from cascade.errors import UsageError
from cascade.policies.base import OF_FIRST, OF_LAST, SUREST
from cascade.policies.signals import CHECKS, OF_SAMPLES, PROBABILITIES, SHARES, VERDICTS
from cascade.registry import code_of
from cascade.table import COST, Bools, Floats, Ints, Log

REQUEST = "request"
"""The column, of those that a policy may read, for what is known before any call: a request's id and features."""
GRID = 2.0**-16
"""Scores are rounded to multiples of this."""
TIES = 1 << 16
"""The number of places between two scores of the grid, for numbers that break ties."""
_OCTAVE = 2_048
LEARNED, NETWORKS = "learned", ("cpo_batch", "ccpo")
"""The kinds that learn from requests; each is imported only where something learns."""
LARGEST = 2.0**20
"""Larger scores count as this large: score and tie number together fill the 53 bits of a float."""


class Policy(ABC):
    """A decision rule. It never sees which answers are right.

    Attributes:
        kind: its name in policy directories and configurations.
        nodes: the nodes of the plan that it buys, from 0, ascending; None: all. Others are neither asked nor paid for.
    """

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    kind: ClassVar[str]
    nodes: tuple[int, ...] | None = None

    @abstractmethod
    def scores(self, log: Log) -> Scores:
        """Return the doubt after each node, and what is kept and served. `log` has the policy's own nodes only.

        It must be pure, and a row's scores up to a node may depend only on that row up to that node. `log` has a row.
        """

    @property
    def reads(self) -> tuple[str, ...]:
        """The signals that it requires of a log or a plan."""
        return ()

    @property
    def columns(self) -> frozenset[str] | None:
        """The signals that it may read, with `REQUEST` for ids or features; None: all. Others are not computed live.

        If every logged request had one of these signals, a request without it is served without a certificate.
        """
        return None

    def walks(self, log: Log) -> Walks:
        """Return its walks over a log of the whole plan. A record ends before the first node that it lacks.

        Raises:
            UsageError: the log lacks one of its nodes, or the code of a user's own policy raises.
        """
        if not {*(self.nodes or ())} <= {*range(log.width)}:
            raise UsageError(f"{self.kind} buys the nodes {self.nodes}, and {log.name} has 0 to {log.width - 1}.")
        bought = log.only(range(log.width) if self.nodes is None else self.nodes)
        with code_of(self):
            return walks(bought, self.scores(as_read(bought)) if log.n else Scores(bought.confidence))

    def refuse_lacking(self, log: Log) -> None:
        """Raise UsageError if a log has no value of a signal that the policy requires."""
        recorded = sorted(name for name, values in log.signals.items() if not np.isnan(values).all())
        for signal in self.reads:
            if signal not in recorded:
                lack = f"The policy {self.kind} reads the signal {signal}, which {log.name} lacks"
                raise UsageError(f"{lack}{did_you_mean(signal, recorded) if recorded else '; it has no signal'}.")

    def settings(self) -> dict[str, Any]:
        """Return the settings for `policy.json`, without kind and nodes, as plain JSON values.

        By default these are the fields of a dataclass that are not among its `tensors`.
        """
        own: Any = self
        names = [entry.name for entry in fields(own)] if is_dataclass(own) else []
        return {name: getattr(self, name) for name in names if name not in {"nodes", *self.tensors()}}

    def tensors(self) -> Mapping[str, NDArray[Any]]:
        """Return its arrays, for `model.safetensors`; empty if it has none."""
        return {}

    @classmethod
    def read(cls, settings: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> Policy:  # noqa: ARG003 - it has none
        """Return the policy that `settings` and `tensors` were written from; its `nodes` are among the settings.

        Raises:
            ValueError: with every problem.
        """
        return TypeAdapter(cls).validate_python(dict(settings))


def as_read(log: Log) -> Log:
    """Return a log as policies read it: without the truth of answers, and without hidden columns."""
    signals = {name: values for name, values in log.signals.items() if name not in log.hidden}
    cost = np.full_like(log.cost_nano_usd, -1) if COST in log.hidden else log.cost_nano_usd
    unjudged = np.full_like(log.right, np.nan)
    return replace(log, right=unjudged, cost_nano_usd=cost, signals=signals, reference=None, baselines={})


class NodePolicy(Policy):
    """A policy whose doubt after a node reads this node alone, so it takes single numbers as well as whole columns."""

    @abstractmethod
    def after(self, signals: Mapping[str, Any], cost: Any, number: Any) -> tuple[Floats, Floats | int | None]:
        """Return the doubt, and the action that says which answer is served; for None or `ONWARD` it is the newest.

        Args:
            signals: its `columns` after the node, NaN where unknown: a number each, or arrays for all nodes of a log.
            cost: the node's cost in the same form, nano-USD.
            number: its number, from 0.
        """

    def scores(self, log: Log) -> Scores:
        """Return the doubt and the choice after every node."""
        unknown = np.full(log.answer.shape, np.nan)
        cost = np.where(log.bought & (log.cost_nano_usd >= 0), log.cost_nano_usd, unknown)
        signals = {name: log.signals.get(name, unknown) for name in self.columns or ()}
        doubt, action = self.after(signals, cost, np.broadcast_to(np.arange(log.width), log.answer.shape))
        return Scores(doubt, serve=None if action is None else _chosen(log, action)[0])

    def surety(self, doubt: float) -> float | None:  # noqa: ARG002 - for those whose doubt is one
        """Return the probability, 0..1, that a doubt stands for, to show to people; None if it stands for none."""
        return None


def ranked(doubt: Floats, tie: Floats | None = None) -> Floats:
    """Round doubts to the grid, with ties broken by a number that is known beforehand: the larger, the more doubt.

    A log in float32 and a live score in float64 give the same. NaN stays unknown: the walk goes on. Tie numbers, 0 or
    more, count on a logarithmic scale with 2,048 places per octave; a missing one counts as the largest.

    >>> found = ranked(np.array([0.5, 0.5, 0.5 + 1e-9]), np.array([10.0, 20.0, 10.0]))
    >>> bool(found[0] < found[1]), bool(found[0] == found[2])
    (True, True)
    """
    coarse = np.rint(np.minimum(np.maximum(doubt, -LARGEST), LARGEST) / GRID) * GRID
    if tie is None:
        return np.asarray(coarse, dtype=np.float64)
    octaves = np.log2(1.0 + np.maximum(np.where(np.isnan(tie), 0.0, tie), 0.0))
    rank = np.where(np.isnan(tie), TIES - 1, np.minimum(np.rint(_OCTAVE * octaves), TIES - 1))
    return np.asarray(coarse + rank * (GRID / TIES), dtype=np.float64)


def on_grid(threshold: float) -> float:
    """Round a threshold as scores are rounded, so that the walk goes on at a doubt that equals it.

    >>> on_grid(0.5)
    0.5
    """
    return float(ranked(np.array([threshold]))[0])


# --- policies that learn nothing: they read one number, what a model says, or nothing ---


class KnownSignal(NamedTuple):
    """A signal whose meaning is known: sign 1 if a high value means doubt, −1 if a low one does."""

    signal: str
    sign: float
    name: str


LENGTH = "length of the reply"
"""The weakest of the scores; every log that counts tokens has it."""
KNOWN = (
    *(KnownSignal(name, -1.0, "verdict") for name in VERDICTS),
    *(KnownSignal(name, -1.0, "gate") for name in CHECKS),
    KnownSignal("reply_mean_logprob", -1.0, "log-prob"),
    KnownSignal("self_check", -1.0, "self-check"),
    KnownSignal("answer_min_logprob", -1.0, "answer log-prob"),
    *(KnownSignal(name, -1.0, "judge's votes") for name in SHARES),
    *(KnownSignal(name, -1.0, "share of this answer") for name in OF_SAMPLES),
    KnownSignal("reply_tokens", 1.0, LENGTH),
)
"""The signals whose meaning is known before a log is read, in order of preference."""
TIE = "reply_tokens"
"""The signal that breaks ties: the length of a node's reply, or its cost if no length is logged. A large value means
doubt, in every log; both are known before another model is asked."""


@dataclass(frozen=True, slots=True)
class Threshold(NodePolicy):
    """Go on while one signal means doubt; serve the newest answer.

    Attributes:
        signal: its name.
        sign: 1 if a high value means doubt, −1 if a low one does.
        tie: the signal that breaks ties, or "cost": a high value means doubt. None: nothing breaks them.
        nodes: the nodes of the plan that are bought; None: all.
    """

    kind: ClassVar[str] = "threshold"
    signal: str
    sign: float
    tie: str | None = TIE
    nodes: tuple[int, ...] | None = None

    @property
    def reads(self) -> tuple[str, ...]:
        """The signal, and the one that breaks its ties: on a server without it, other requests would go on."""
        return (self.signal,) if self.tie in {None, COST, self.signal} else (self.signal, self.tie)

    @property
    def columns(self) -> frozenset[str]:
        """The signals that it reads."""
        return frozenset(self.reads)

    def after(self, signals: Mapping[str, Any], cost: Any, number: Any) -> tuple[Floats, None]:  # noqa: ARG002
        """Return the signal as doubt, on the grid."""
        tie = None if self.tie is None else cost if self.tie == COST else signals[self.tie]
        return ranked(signals[self.signal] * self.sign, tie), None

    def surety(self, doubt: float) -> float | None:
        """Return the probability itself, or the probability of a token that a log-prob stands for."""
        if self.signal.endswith("logprob"):
            return math.exp(-max(doubt, 0.0))
        return min(max(-doubt, 0.0), 1.0) if self.signal in PROBABILITIES else None


@dataclass(frozen=True, slots=True)
class Depth(NodePolicy):
    """Read nothing: the threshold is a number of nodes.

    Attributes:
        nodes: the nodes of the plan that are bought; None: all.
        serves: the "newest" answer, that of the step's "first" node, or the "surest" of all (`path.surest`).
    """

    kind: ClassVar[str] = "fixed"
    nodes: tuple[int, ...] | None = None
    serves: Literal["newest", "first", "surest"] = "newest"
    columns: ClassVar[frozenset[str]] = frozenset()

    def after(self, signals: Mapping[str, Any], cost: Any, number: Any) -> tuple[Floats, int | None]:  # noqa: ARG002
        """Return a doubt that falls from node to node."""
        return -1.0 - number, {"newest": None, "first": OF_FIRST, "surest": SUREST}[self.serves]

    def settings(self) -> dict[str, Any]:
        """Return what it serves, if not the newest answer."""
        return {} if self.serves == "newest" else {"serves": self.serves}


@dataclass(frozen=True, slots=True)
class Random(Policy):
    """Go on at random: each node of a request draws a doubt between 0 and 1, so the threshold is a probability.

    Attributes:
        seed: the same seed, request and node give the same draw.
        nodes: the nodes of the plan that are bought; None: all.
    """

    kind: ClassVar[str] = "random"
    seed: int = 0
    nodes: tuple[int, ...] | None = None
    columns: ClassVar[frozenset[str]] = frozenset({REQUEST})

    def scores(self, log: Log) -> Scores:
        """Return hashes of seed, request and node as doubt."""
        draws = [drawn_number(f"{self.seed}|{name}|{at}") for name in log.ids for at in range(log.width)]
        return Scores(ranked(np.array(draws).reshape(log.answer.shape)))


def drawn_number(text: str) -> float:
    """Return a number between 0 and 1 that looks random and is the same for the same text."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "replace")).digest()[:4]) / 2**32


VERDICT = "p_yes"


@dataclass(frozen=True, slots=True)
class Uala(NodePolicy):
    """Go on while the guide's verdict is unsure; serve the base's answer after a yes, the guide's after a no.

    The doubt is −ln max(p, 1 − p) with p = P(yes): 0 for a sure verdict, ln 2 for a coin flip. A step's first node is
    the base's, its last the guide's, whose call is the verdict. Without a verdict the walk goes on.

    Attributes:
        nodes: the nodes of the plan that are bought; None: all.
        accepts_no: whether a sure no ends the walk too. If not, the doubt is 1 − p: for guides that judge better than
            they correct.

    Reference: Han et al., Towards uncertainty-aware language agent (2024), with the verdict's own uncertainty.
    """

    kind: ClassVar[str] = "uala"
    nodes: tuple[int, ...] | None = None
    accepts_no: bool = True
    columns: ClassVar[frozenset[str]] = frozenset({VERDICT})

    @property
    def reads(self) -> tuple[str, ...]:
        """The verdict."""
        return (VERDICT,)

    def after(self, signals: Mapping[str, Any], cost: Any, number: Any) -> tuple[Floats, Floats]:  # noqa: ARG002
        """Return the uncertainty, and the answer that the verdict judges right."""
        p = signals[VERDICT]
        doubt = -np.log(np.maximum(p, 1.0 - p)) if self.accepts_no else 1.0 - p
        return ranked(doubt), np.where(p < 0.5, OF_LAST, OF_FIRST)

    def settings(self) -> dict[str, Any]:
        """Return whether a sure no ends the walk, if it does not."""
        return {} if self.accepts_no else {"accepts_no": False}


ACTION, EXIT = "decided_action", "says_exit"


@dataclass(frozen=True, slots=True)
class Prompted(Policy):
    """Do what a model says: LLM as policy, and LLM-exit. There is nothing to calibrate.

    The signal `decided_action` is `OF_FIRST` to serve and keep the base's answer, `OF_LAST` the guide's, or `ONWARD`;
    `says_exit` is 1 to stop with every answer kept, 0 to go on. If a step has neither, or lacks the answer chosen, the
    walk goes on; after the last step the newest answer is served.

    Reference: the "LLM policy" and "LLM-EXIT" baselines of the CCPO paper (2025).
    """

    kind: ClassVar[str] = "prompted"
    nodes: tuple[int, ...] | None = None
    columns: ClassVar[frozenset[str]] = frozenset({ACTION, EXIT})

    def scores(self, log: Log) -> Scores:
        """Return −∞ where the model stops, +∞ elsewhere."""
        unknown = np.full(log.answer.shape, np.nan)
        exits, action = log.signals.get(EXIT, unknown), log.signals.get(ACTION, unknown)
        if ACTION not in log.signals:
            return Scores(np.where(exits == 1, -np.inf, np.inf))
        serve, stops = _chosen(log, action)
        keep = np.full(log.answer.shape, -np.inf)
        ends = stops | (log.bought & (np.arange(log.width) == log.width - 1))  # not before the last step is bought
        rows, columns = np.nonzero(ends & (serve >= 0))
        keep[rows, serve[rows, columns]] = np.inf
        return Scores(np.where(stops, -np.inf, np.inf), keep, serve)


def _chosen(log: Log, action: Floats | int) -> tuple[Ints, Bools]:
    """Return the node served after each, and whether it is the one that an action chooses, which has an answer.

    `SUREST`, as one number for all, chooses the surest answer of all (`path.surest`). Without a choice the newest
    answer is served; a step without an answer changes nothing.
    """
    steps, decides, answers = log.steps, log.decides, log.answers
    first, nodes = np.searchsorted(steps, steps), np.arange(steps.size)
    of_first = (action == OF_FIRST) & answers[:, first] & decides
    of_last = (action == OF_LAST) & answers & decides
    if isinstance(action, int) and action == SUREST:
        return surest(log), of_last
    serve = np.where(of_first, first, np.where(of_last, nodes, newest(log)))
    served_at = np.maximum.accumulate(np.where(decides & (serve >= first), nodes, 0), axis=1)
    serve = np.where(serve < first, np.take_along_axis(serve, served_at, axis=1), serve)
    return serve, np.asarray(of_first | of_last, dtype=np.bool_)


def known_score(log: Log) -> KnownSignal | None:
    """Return the score of a log that is known beforehand: the first of `KNOWN` that it has; None if it has none.

    Before the length of replies comes any other signal whose name ends with "uncertainty" or "entropy", where a high
    value means doubt. The choice reads only which signals at least half of the requests have, no answer and no outcome,
    so that an odd row does not change a policy's meaning.
    """
    recorded = sorted(name for name, values in log.signals.items() if _is_common(values) and name not in log.hidden)
    *scores, length = KNOWN
    foreign = [
        KnownSignal(name, 1.0, name.replace("_", " ")) for name in recorded if name.endswith(("uncertainty", "entropy"))
    ]
    return next((score for score in (*scores, *foreign, length) if score.signal in recorded), None)


def _is_common(values: Floats) -> bool:
    """Return whether at least half of the requests, and at least one, have a signal."""
    count = int(np.count_nonzero(~np.isnan(values).all(axis=-1)))
    return 0 < len(values) <= 2 * count


@dataclass(frozen=True, slots=True)
class ReferenceOnly(NodePolicy):
    """Ask only the reference, at once: the guide, or a ladder's last model."""

    kind: ClassVar[str] = "reference"
    nodes: tuple[int, ...] | None = None
    columns: ClassVar[frozenset[str]] = frozenset()

    def after(self, signals: Mapping[str, Any], cost: Any, number: Any) -> tuple[Floats, None]:  # noqa: ARG002
        """Return a doubt of 0, since nothing follows."""
        return 0.0 * number, None

    def walks(self, log: Log) -> Walks:
        """Return its walks of one node over a log of the whole plan."""
        alone = log.reference_only()
        return walks(alone, self.scores(alone))


def score_policy(log: Log) -> Threshold | None:
    """Return the threshold on the score that is `known_score`; None if the log has no signal of a known meaning."""
    score = known_score(log)
    return None if score is None else Threshold(score.signal, score.sign, tie=tie_of(log))


def tie_of(log: Log) -> str | None:
    """Return what breaks ties in a log: the length of replies, else their cost; None if neither can be read.

    A cost breaks ties only in a pair, since a server that does not learn a cost goes on to the last node.
    """
    if TIE in log.signals.keys() - log.hidden and _is_common(log.signals[TIE]):
        return TIE
    return COST if log.width == 2 and (log.cost_nano_usd[:, 0] > 0).any() and COST not in log.hidden else None


POLICIES: Mapping[str, type[Policy]] = {
    policy.kind: policy for policy in (Threshold, Depth, ReferenceOnly, Random, Uala, Prompted)
}
"""The kinds of policies that learn nothing."""
