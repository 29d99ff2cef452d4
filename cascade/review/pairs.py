"""From a log to the pairs that are worth a person's time: a servable output, and the reference's that it differs from.

Only where a servable output differs from the reference's can anything be lost. Equal outputs, by the comparator, are
one output, so that each distinct one stands in one pair.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cascade.episodes.contents import is_hashed
from cascade.episodes.identity import identity
from cascade.episodes.schema import CHAT, replay_of, request_of
from cascade.errors import UsageError
from cascade.guarantees.reference import REFERENCES
from cascade.matching import default_for, get_comparator

Row = Mapping[str, Any]
AUTO = "auto"
"""The comparator that each request chooses: tools → tool_calls, JSON → json, else the text as the table compares it."""


class Output(NamedTuple):
    """What a model gave: the text that is compared, and its whole message as JSON where it is a chat's."""

    text: str
    message: str | None

    @property
    def digest(self) -> str:
        """The start of the SHA-256 of the text that is compared."""
        return hashlib.sha256(self.text.encode("utf-8", "replace")).hexdigest()[:16]


class PairId(NamedTuple):
    """What a judgement is filed under: the question, and the digests of the two outputs."""

    question: str
    output: str
    reference: str


class Pair(NamedTuple):
    """A servable output beside the reference's.

    Attributes:
        question: the hash that a question shares with its near-duplicates (`episodes.identity`).
        asked: the question's text.
        context: its context; of a chat request the request as JSON.
        is_chat: whether it is a chat request.
        output: what the cascade may serve.
        reference: what the reference gave.
        number: which of its question's differing outputs it is, from 0.
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
        """What its judgements are filed under."""
        return PairId(self.question, self.output.digest, self.reference.digest)


@dataclass(slots=True)
class Episode:
    """One question's outputs.

    Attributes:
        question, asked, context, is_chat: as in `Pair`.
        reference: the reference's output; None where it gave none.
        servable: each servable output by its digest, in the order of the steps.
        numbers: by digest the number of the pair that an output stands in; −1 where it equals the reference's.
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
        first: dict[int, Output] = {}
        for digest, number in self.numbers.items():
            if number >= 0:
                first.setdefault(number, self.servable[digest])
        head = self.question, self.asked, self.context, self.is_chat
        return [Pair(*head, output, self.reference, number) for number, output in first.items()]


def episodes_of(rows: Iterable[Row], matcher: str = AUTO) -> dict[str, Episode]:
    """Return the outputs of each episode of a log, by the episode's id, and which of them are the same.

    Args:
        rows: as `episodes.schema` says, in any order; read once.
        matcher: when two outputs are the same, as `matching.get_matcher` takes it; the request chooses by default.

    Raises:
        UsageError: there is no such matcher, the log has no reference, or its texts are not on record.
    """
    found: dict[str, Episode] = {}
    references: dict[str, dict[str, tuple[tuple[int, int], Output]]] = {}
    for row in rows:
        if row["answer"] is None or row["candidate"] is None:
            continue
        _check_text(row)
        one = found.setdefault(row["episode_id"], _episode(row))
        output = _output(row)
        if row["walk"] is None:
            one.servable.setdefault(output.digest, output)
        elif row["walk"] in REFERENCES and row["kept"] is not False:
            held = references.setdefault(row["walk"], {})
            place = row["step"] or 1, row["candidate"]
            if place >= held.get(row["episode_id"], ((0, 0), output))[0]:
                held[row["episode_id"]] = place, output
    name = next((name for name in REFERENCES if name in references), None)
    if name is None:
        raise UsageError(
            f"The log has no output of a reference (the walk {REFERENCES[0]!r} or {REFERENCES[1]!r}) to compare with. "
            "cascade collect records it."
        )
    same = _sameness(matcher)
    for episode_id, (_, output) in references[name].items():
        if episode_id in found:
            found[episode_id].reference = output
            _number(found[episode_id], same)
    return found


def _check_text(row: Row) -> None:
    if is_hashed(row["answer"]) or (row["question"] is not None and is_hashed(row["question"])):
        raise UsageError(
            "The log keeps hashes in the place of texts, which nobody can judge. Log them (content: full)."
        )
    if row["question"] is None:
        raise UsageError(f"Episode {row['episode_id']} has no question on record, which nobody can judge.")


def _episode(row: Row) -> Episode:
    is_chat = bool(replay_of(row).get(CHAT))
    return Episode(identity(row["question"], row["context"]), row["question"], row["context"], is_chat)


def _output(row: Row) -> Output:
    return Output(row["answer"], row["text"] if replay_of(row).get(CHAT) else None)


Same = Callable[[Episode, str, str], bool]


def _number(one: Episode, same: Same) -> None:
    """Number the outputs that differ from the reference's, equal ones alike."""
    assert one.reference is not None  # noqa: S101 - it was just set
    kinds: list[str] = []
    for digest, output in one.servable.items():
        if same(one, output.text, one.reference.text):
            one.numbers[digest] = -1
            continue
        number = next((at for at, text in enumerate(kinds) if same(one, output.text, text)), len(kinds))
        if number == len(kinds):
            kinds.append(output.text)
        one.numbers[digest] = number


def _sameness(matcher: str) -> Same:
    """Return what says whether two outputs of an episode are the same; unknown is not the same."""
    chosen = None if matcher == AUTO else get_comparator(matcher)

    def same(episode: Episode, one: str, other: str) -> bool:
        request = request_of(episode.context) if episode.is_chat and episode.context else None
        comparator = chosen or default_for(request).comparator
        return one == other or comparator.same(one, other, request).correct is True

    return same


def request_body(one: Episode | Pair) -> Mapping[str, Any] | None:
    """Return the body of a chat request; None for a question."""
    if not one.is_chat or one.context is None:
        return None
    try:
        body = json.loads(one.context)
    except ValueError:
        return None
    return body if isinstance(body, Mapping) else None


def pairs_of(episodes: Mapping[str, Episode]) -> list[Pair]:
    """Return every pair of a log once, though the question may stand in it several times."""
    found: dict[PairId, Pair] = {}
    for one in episodes.values():
        for pair in one.pairs():
            found.setdefault(pair.id, pair)
    return list(found.values())


def without_reference(episodes: Mapping[str, Episode]) -> Sequence[str]:
    """Return the episodes of which the log has no output of the reference: nobody can say what would be lost."""
    return [name for name, one in episodes.items() if one.reference is None]
