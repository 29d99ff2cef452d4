"""The directions in which training questions differ most: the principal components of their embeddings."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from cascade.conformal.arrays import Floats
from cascade.episodes.embeddings import Vectors, stacked
from cascade.episodes.table import EpisodeTable
from cascade.policies.columns import ASKED
from cascade.policies.embedding import Directions, Embedded, Embedder
from cascade.policies.learned import LearnedPolicy

MOST_DIRECTIONS = 8
"""Sixteen did no better on 1,816 questions (`design/embeddings.md`)."""
ROWS_EACH = 100
"""On 244 questions eight directions cost more than they brought."""


class Embedding(NamedTuple):
    """What questions are embedded with, and each question's embedding (`episodes.embeddings.vectors_of`)."""

    embedder: Embedder
    vectors: Vectors

    def directions(self, training: EpisodeTable, init: LearnedPolicy | None = None) -> Directions | None:
        """Return the directions of the training questions, or of the policy that is started from, if it has any.

        None where too few of the questions' texts are on record.
        """
        if init is not None and init.directions is not None:
            return init.directions
        return directions(stacked(training, self.vectors), self.embedder.name)

    def attached(self, policy: LearnedPolicy, found: Directions) -> LearnedPolicy:
        """Return a policy with the directions and the sentence model, if it looks at any of them."""
        looked_at = {name for rule in policy.rules for name in rule.features.names}
        if looked_at.isdisjoint([f"{ASKED}{name}" for name in found.names]):
            return policy
        return replace(policy, directions=found, embedded=Embedded(found, self.embedder))


def directions(vectors: Floats, model: str) -> Directions | None:
    """Return the directions of questions' embeddings, float64 (n, d); None where there are too few questions.

    Rows of NaN, questions without a text, are left out. There is one direction for every 100 of them, and at most
    eight. The answers are not looked at. A direction's largest number is positive: the same data gives the same one.
    """
    known = vectors[~np.isnan(vectors).any(axis=1)]
    many = min(MOST_DIRECTIONS, vectors.shape[1], len(known) // ROWS_EACH)
    if not many:
        return None
    centre = known.mean(axis=0)
    axes = np.linalg.svd(known - centre, full_matrices=False)[2][:many]
    signs = np.sign(axes[np.arange(many), np.abs(axes).argmax(axis=1)])
    return Directions(model, centre, axes * signs[:, None])
