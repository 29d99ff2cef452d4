"""Sums of regression trees, for serving: numpy only, in a dozen operations on small arrays for one row.

The leaf of a row is found without walking down the tree (QuickScorer): all inner nodes are evaluated at once; a node
that goes right rules out the leaves to its left, and the first leaf that is not ruled out is the leaf of the row.

Reference: Lucchese et al., QuickScorer: a fast algorithm to rank documents with additive ensembles of regression trees
(SIGIR 2015).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from cascade.conformal.arrays import Bools, Floats
from cascade.errors import UsageError
from cascade.policies.design import Array, Memo, Reading, Scored, fixed, or_go_on, summed

MOST_LEAVES = 64
"""The most leaves of a tree: the leaves still possible are the bits of one machine word."""
_CHUNK = 1_024
"""Rows that are scored together. Each row is compared with every inner node, and 60 trees of 8 leaves have 420 of
them: 1,024 rows take 3 MB, and 100,000 would take 340 MB."""
_TYPES: dict[str, Any] = {
    "feature": np.int32,
    "threshold": np.float64,
    "left": np.int32,
    "right": np.int32,
    "missing_left": np.bool_,
    "leaf": np.float64,
}
_WORDS: dict[int, Any] = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


@dataclass(frozen=True, slots=True, eq=False)
class Trees(Scored):
    """intercept + tree 1 + tree 2 + …, added in this order. At an inner node x ≤ threshold goes left.

    Attributes:
        feature: int32 (N,), the feature that an inner node reads; meaningless at a leaf.
        threshold: float64 (N,).
        left, right: int32 (N,), a node's children; −1 both at a leaf.
        missing_left: bool (N,), whether a missing value goes left.
        leaf: float64 (N,), what a leaf adds; meaningless at an inner node. (`values` gives the score of a row.)
        roots: int32 (R,), where each tree begins.
        intercept: the start of every sum.
        foreseen: bool (d,), whether a feature may be missing; if another one is, the score is +inf (`design.GO_ON`).

    Raises:
        UsageError: the trees are not valid: a child out of range, a node with two parents, a circle, too many leaves.
    """

    kind = "trees"
    feature: Array
    threshold: Floats
    left: Array
    right: Array
    missing_left: Bools
    leaf: Floats
    roots: Array
    intercept: float
    foreseen: Bools
    _laid: _Laid = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name, kind in {**_TYPES, "roots": np.int32, "foreseen": np.bool_}.items():
            object.__setattr__(self, name, fixed(getattr(self, name), kind))
        object.__setattr__(self, "intercept", float(self.intercept))
        problems = list(_problems(self))
        if problems:
            raise UsageError(f"These are not regression trees: {'; '.join(problems)}.")
        object.__setattr__(self, "_laid", _laid(self))

    @property
    def width(self) -> int:
        """The raw features d."""
        return int(self.foreseen.size)

    def values(self, raw: Floats, memo: Memo | None = None) -> Floats:
        """Return the sums, float64 (…, d) -> (…); many rows are scored in chunks."""
        if raw.ndim == 2 and len(raw) > _CHUNK:
            parts = [self.values(raw[start : start + _CHUNK]) for start in range(0, len(raw), _CHUNK)]
            return np.concatenate(parts)
        laid, missing = self._laid, (memo or Memo(raw)).missing
        lefts = raw.take(laid.feature, -1) <= laid.threshold
        if missing is not None:
            lefts |= missing.take(laid.feature, -1) & laid.missing_left
        alive = np.bitwise_and.reduce(np.where(lefts, laid.every, laid.mask), axis=-2)
        total = summed(self.intercept, laid.leaf.take(laid.offset + _lowest(alive)))
        strange = None if missing is None else missing & ~self.foreseen
        if strange is None or not np.count_nonzero(strange):  # five times as fast as any()
            return total
        return or_go_on(np.asarray(strange.any(axis=-1)), total)

    def needs(self, width: int) -> Bools:  # noqa: ARG002 - as every scorer
        """Return the features that must not be missing, bool (d,)."""
        return ~self.foreseen

    def arrays(self) -> dict[str, Array]:
        """Return the arrays of the trees, by name."""
        named = {name: getattr(self, name) for name in (*_TYPES, "roots", "foreseen")}
        return named | {"intercept": np.array(self.intercept)}

    @classmethod
    def read(cls, held: Reading, width: int) -> Trees | None:
        """Return trees on d features from a file's arrays; if they are invalid, note the problems and return None."""
        first = held.take("left", np.int32, (None,))
        size = None if first is None else first.size
        parts = {name: held.take(name, kind, (size,)) for name, kind in _TYPES.items()}
        parts |= {"roots": held.take("roots", np.int32, (None,)), "intercept": held.number("intercept")}
        parts |= {"foreseen": held.take("foreseen", np.bool_, (width,))}
        if any(part is None for part in parts.values()):
            return None
        try:
            return cls(**parts)
        except UsageError as error:
            held.note(str(error))
            return None


class _Laid(NamedTuple):
    """Trees in the layout for scoring: R trees of M inner nodes each; smaller trees get nodes that rule out no leaf.

    `feature`, `threshold` and `missing_left`, (M, R), belong to the inner nodes. `mask` has one bit for each leaf, from
    left to right: the bit is set if the leaf is possible when the row goes right. The leaves of a tree begin at its
    `offset` in `leaf`.
    """

    feature: Array
    threshold: Floats
    missing_left: Bools
    mask: Array
    every: Any
    leaf: Floats
    offset: Array


_LOWEST = np.array([(byte & -byte).bit_length() - 1 for byte in range(256)], dtype=np.int64)
"""The lowest bit that is set in a byte, from 0."""


def _lowest(words: Array) -> Array:
    """Return the position of the lowest bit that is set in each word, from 0; 0 if none is set."""
    if words.dtype == np.uint8:
        return _LOWEST.take(words)
    alone = words & (~words + words.dtype.type(1))
    return np.asarray(np.frexp(alone.astype(np.float64))[1] - 1)


class _Tree(NamedTuple):
    """One tree: its leaves from left to right, and its inner nodes with the range of leaves to the left of each."""

    leaves: list[int]
    inner: list[tuple[int, int, int]]


def _laid(trees: Trees) -> _Laid:
    each = [_walked(trees, int(root)) for root in trees.roots]
    many = max((len(tree.inner) for tree in each), default=0) or 1
    word = next(kind for size, kind in _WORDS.items() if size >= max(len(tree.leaves) for tree in each))
    every = 2 ** (8 * np.dtype(word).itemsize) - 1
    node = np.zeros((many, len(each)), dtype=np.int64)
    mask = np.full(node.shape, every, dtype=word)
    for r, tree in enumerate(each):
        for m, (inner, start, end) in enumerate(tree.inner):
            node[m, r], mask[m, r] = inner, every & ~((1 << end) - (1 << start))
    sizes = [len(tree.leaves) for tree in each]
    leaves = [leaf for tree in each for leaf in tree.leaves]
    # The added nodes read feature 0, and rule out no leaf whatever its value is.
    filled = np.arange(many)[:, None] >= np.array([len(tree.inner) for tree in each])[None, :]
    feature = np.where(filled, 0, trees.feature[node]).astype(np.int64)
    parts = feature, trees.threshold[node], trees.missing_left[node], mask
    offset = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
    return _Laid(*parts, word(every), trees.leaf[leaves], offset)


def _walked(trees: Trees, root: int) -> _Tree:
    """Return a tree in order, without recursion."""
    leaves: list[int] = []
    inner: list[tuple[int, int, int]] = []
    ahead: list[tuple[int, int | None]] = [(root, None)]
    while ahead:
        node, start = ahead.pop()
        if trees.left[node] < 0:
            leaves.append(node)
        elif start is None:  # the left side, then this node with the range of its left leaves, then the right side
            ahead += [(int(trees.right[node]), None), (node, len(leaves)), (int(trees.left[node]), None)]
        else:
            inner.append((node, start, len(leaves)))
    return _Tree(leaves, inner)


def _problems(trees: Trees) -> Iterator[str]:
    left, right, many = trees.left, trees.right, trees.left.size
    if any(getattr(trees, name).shape != (many,) for name in _TYPES) or trees.roots.ndim != 1:
        yield "feature, threshold, left, right, missing_left and leaf must have one length"
        return
    inner = left >= 0
    children = np.concatenate([left[inner], right[inner], trees.roots])
    if ((left < 0) != (right < 0)).any() or (left < -1).any() or (right < -1).any():
        yield "left and right: both must be −1 at a leaf, and name a node elsewhere"
    elif not trees.roots.size:
        yield "roots: there is no tree"
    elif ((children < 0) | (children >= many)).any():
        yield f"left, right and roots: they must name nodes from 0 to {many - 1}"
    elif np.unique(children).size < children.size or children.size < many:
        yield "left, right and roots: every node must have one parent or be a root"
    else:
        yield from _shape_problems(trees)
    if ((trees.feature[inner] < 0) | (trees.feature[inner] >= trees.width)).any() or not trees.width:
        yield f"feature: it must name one of {trees.width} features"
    with np.errstate(over="ignore"):
        total = np.abs(trees.leaf).sum() + abs(trees.intercept)
    if not (np.isfinite(trees.threshold).all() and np.isfinite(total)):
        yield "threshold, leaf and intercept must be finite, and so must their sum"


def _shape_problems(trees: Trees) -> Iterator[str]:
    """Yield problems of the shape if every node has one parent or is a root; a circle is not reached from any root."""
    reached = 0
    for root in trees.roots:
        tree = _walked(trees, int(root))
        reached += len(tree.leaves) + len(tree.inner)
        if len(tree.leaves) > MOST_LEAVES:
            yield f"the tree at {int(root)} has {len(tree.leaves)} leaves, and {MOST_LEAVES} are the most"
    if reached < trees.left.size:
        yield "left and right: they lead in a circle"
