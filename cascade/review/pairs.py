"""Selects from a log the pairs to judge: a servable output, and the reference's output that differs from it.

Serving an output can only lose something if it differs from the reference's. Outputs that are equal by the comparator
count as one, so that each distinct output is in one pair.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cascade.episodes.schema import CHAT, Dropped, chat_of, identity, is_hashed, replay_of
from cascade.episodes.truth import Relabelled, Row, labelled_by_reference, same
from cascade.errors import UsageError
from cascade.matching import Comparator, get_comparator


class Output(NamedTuple):
    """A model's output: the text that is compared, and for a chat request the whole message as JSON."""

    text: str
    message: str | None

    @property
    def digest(self) -> str:
        """Its key in a file of reviews."""
        return digest_of(self.text)


def digest_of(text: str) -> str:
    """Return the start of the SHA-256 of a text that is compared."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


class PairId(NamedTuple):
    """The identifier of a pair in judgements: the question, and the digests of the two outputs."""

    question: str
    output: str
    reference: str


class Pair(NamedTuple):
    """A servable output and the reference's output.

    Attributes:
        question: the hash that a question shares with its near-duplicates (`episodes.identity`).
        asked: the question's text.
        context: its context; for a chat request, the request as JSON.
        is_chat: whether it is a chat request.
        output: the output that the cascade may serve.
        reference: the reference's output.
        number: the number of the output among the question's differing outputs, from 0.
    """

    question: str
    asked: str
    context: str | None
    is_chat: bool
    output: Output
    reference: Output
    number: int

    @property
    def id(self) -> PairId:
        """The identifier of its judgements."""
        return PairId(self.question, self.output.digest, self.reference.digest)


@dataclass(slots=True)
class Episode:
    """One question's outputs.

    Attributes:
        question, asked, context, is_chat: as in `Pair`.
        reference: the reference's output; None without one.
        servable: each servable output by its digest, in the order of the steps.
        numbers: by digest the number of an output's pair; −1 if it equals the reference's.
    """

    question: str
    asked: str
    context: str | None
    is_chat: bool
    reference: Output | None = None
    servable: dict[str, Output] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)

    def pairs(self) -> list[Pair]:
        """Return a pair for each distinct output that differs from the reference's."""
        if self.reference is None:
            return []
        head = self.question, self.asked, self.context, self.is_chat
        first = [(number, members[0]) for number, members in enumerate(self.kinds())]
        return [Pair(*head, self.servable[digest], self.reference, number) for number, digest in first]

    def kinds(self) -> list[list[str]]:
        """Return the digests of the outputs that differ from the reference's, with equal ones grouped."""
        many = 1 + max(self.numbers.values(), default=-1)
        return [[digest for digest, number in self.numbers.items() if number == kind] for kind in range(many)]


class Compared(NamedTuple):
    """A log's outputs.

    Attributes:
        relabelled: the log with the reference's output as its truth.
        comparator: the comparator that decides whether two outputs are the same.
        episodes: by data set and episode.
    """

    relabelled: Relabelled
    comparator: str
    episodes: Mapping[tuple[str, str], Episode]

    def pairs(self) -> list[Pair]:
        """Return every pair once, even if the log has its question several times."""
        found: dict[PairId, Pair] = {}
        for one in self.episodes.values():
            for pair in one.pairs():
                found.setdefault(pair.id, pair)
        return list(found.values())

    @property
    def without_reference(self) -> int:
        """The number of episodes without the reference's output; any other output counts as lost there."""
        return sum(one.reference is None for one in self.episodes.values())


def place_of(row: Row) -> tuple[str, str]:
    """Return the data set and episode of a row."""
    return row["dataset"] or "log", row["episode_id"]


def compare(
    read: Callable[[], Iterable[Row]], comparator: str | None = None, dropped: Dropped | None = None
) -> Compared:
    """Read the outputs of a log, and compare them.

    Args:
        read: reads the log from the start at each call.
        comparator: decides whether two outputs are the same, as for `matching.get_matcher`; by default the one for the
            form of the requests.
        dropped: told of what is left out.

    Raises:
        UsageError: there is no such matcher, or the log has no reference or no texts.
    """
    relabelled = labelled_by_reference(read, comparator)
    if not relabelled.truths:
        raise UsageError("The log has no rows with texts: there is nothing to show.")
    chosen = next(iter(relabelled.truths.values())).comparator
    comparing, found = get_comparator(chosen), dict[tuple[str, str], Episode]()
    for row in relabelled.rows(Dropped() if dropped is None else dropped):
        if row["answer"] is not None and row["correct"] is not None:
            _check_text(row)
            head = identity(row["question"], row["context"]), row["question"], row["context"]
            one = found.setdefault(place_of(row), Episode(*head, is_chat=bool(replay_of(row).get(CHAT))))
            _take(row, one, comparing)
    return Compared(relabelled, chosen, found)


def _take(row: Row, one: Episode, comparing: Comparator) -> None:
    """Record the output of a row."""
    output = Output(row["answer"], row["text"] if replay_of(row).get(CHAT) else None)
    given = None if not row["gold"] else row["gold"][0]
    if given is not None and (one.reference is None or (one.reference.message is None and given == output.text)):
        one.reference = output if given == output.text else Output(given, None)
    digest = output.digest
    if row["walk"] is not None or row["candidate"] is None or digest in one.servable:
        return
    one.servable[digest] = output
    if row["correct"]:
        one.numbers[digest] = -1
        return
    kinds, request = one.kinds(), chat_of(row)
    texts = [one.servable[kind[0]].text for kind in kinds]
    equal = (at for at, text in enumerate(texts) if same(comparing, row["answer"], text, request))
    one.numbers[digest] = next(equal, len(kinds))


def _check_text(row: Row) -> None:
    if is_hashed(row["answer"]) or (row["question"] is not None and is_hashed(row["question"])):
        raise UsageError(
            "The log has hashes instead of texts, so there is nothing to judge. Log the texts (content: full)."
        )
    if row["question"] is None:
        raise UsageError(f"Episode {row['episode_id']} has no question on record, so it cannot be judged.")


def request_body(one: Pair) -> Mapping[str, Any] | None:
    """Return the body of a chat request; None for a question."""
    if not one.is_chat or one.context is None:
        return None
    try:
        body = json.loads(one.context)
    except ValueError:
        return None
    return body if isinstance(body, Mapping) else None
