"""A policy gives each node of a log a doubt. The same code scores a whole log and the request that is being served.

Live, a request is a log of one row whose nodes are bought one by one (`live`). So what is served decides as the
certified log did, to the last bit. Scores are rounded to a grid (`ranked`), and thresholds lie between two scores.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, TypeAdapter

from cascade.conformal.path import Scores, Walks, walks
from cascade.table import Floats, Log

REQUEST = "request"
"""Among the columns that a policy may read: what is known before any call, the id and the features of a request."""
GRID = 2.0**-16
"""Scores are rounded to multiples of this."""
TIES = 1 << 16
"""How many places there are between two scores of the grid, for numbers that break ties."""
_OCTAVE = 2_048
LEARNED, NETWORKS = "learned", ("cpo_batch", "ccpo")
"""The kinds that learn from requests; each is loaded where something learns."""
LARGEST = 2.0**20
"""Scores beyond it count as this large: score and tie number together fill the 53 bits of a float."""


class Policy(ABC):
    """A decision rule. It never sees what is right.

    Attributes:
        kind: its name in policy directories and configurations.
        nodes: the nodes of the plan that it buys, from 0, rising; None: all. Others are neither asked nor paid.
    """

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    kind: ClassVar[str]
    nodes: tuple[int, ...] | None = None

    @abstractmethod
    def scores(self, log: Log) -> Scores:
        """Return the doubt after each node, and what is kept and served. `log` has the policy's own nodes only.

        Pure, row by row, and a row's scores up to a node depend on that row up to that node alone.
        """

    @property
    def reads(self) -> tuple[str, ...]:
        """The signals that it cannot do without: a log, or a plan, must have them."""
        return ()

    @property
    def columns(self) -> frozenset[str] | None:
        """The signals that it may read, and `REQUEST` if ids or features; None: all. Others are not computed live."""
        return None

    def walks(self, log: Log) -> Walks:
        """Return its walks over a log of the whole plan. A record ends before the first node that it lacks."""
        bought = log.only(range(log.width) if self.nodes is None else self.nodes)
        unjudged = replace(bought, right=np.full_like(bought.right, np.nan), reference=None)
        return walks(bought, self.scores(unjudged))

    def surety(self, doubt: float) -> float | None:  # noqa: ARG002 - for those whose doubt is one
        """Return the probability, 0..1, that a doubt stands for, for readers; None if it stands for none."""
        return None

    def settings(self) -> dict[str, Any]:
        """Return what `policy.json` says of it, without its kind and nodes: plain JSON values.

        By default the fields of a dataclass that are not among its numbers (`tensors`).
        """
        own: Any = self
        names = [each.name for each in fields(own)] if is_dataclass(own) else []
        return {name: getattr(self, name) for name in names if name not in {"nodes", *self.tensors()}}

    def tensors(self) -> Mapping[str, NDArray[Any]]:
        """Return its numbers, for `model.safetensors`; empty where it has none."""
        return {}

    @classmethod
    def read(cls, settings: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> Policy:
        """Return the policy that `settings` and `tensors` were written from; its `nodes` are among the settings.

        Raises:
            ValueError: with every problem.
        """
        del tensors
        return TypeAdapter(cls).validate_python(dict(settings))


def ranked(doubt: Floats, tie: Floats | None = None) -> Floats:
    """Return doubts on the grid, ties broken by a number that is known beforehand: the larger, the more doubt.

    A log in float32 and a live score in float64 give the same. NaN stays unknown: the walk goes on. Tie numbers, 0 or
    more, count on a logarithmic scale with 2,048 places an octave; a missing one counts as the largest.

    >>> found = ranked(np.array([0.5, 0.5, 0.5 + 1e-9]), np.array([10.0, 20.0, 10.0]))
    >>> bool(found[0] < found[1]), bool(found[0] == found[2])
    (True, True)
    """
    coarse = np.rint(np.clip(doubt, -LARGEST, LARGEST) / GRID) * GRID
    if tie is None:
        return np.asarray(coarse, dtype=np.float64)
    octaves = np.log2(1.0 + np.maximum(np.where(np.isnan(tie), 0.0, tie), 0.0))
    rank = np.where(np.isnan(tie), TIES - 1, np.minimum(np.rint(_OCTAVE * octaves), TIES - 1))
    return np.asarray(coarse + rank * (GRID / TIES), dtype=np.float64)


def on_grid(threshold: float) -> float:
    """Return a threshold as scores are rounded, so that a doubt that equals it goes on.

    >>> on_grid(0.5)
    0.5
    """
    return float(ranked(np.array([threshold]))[0])
