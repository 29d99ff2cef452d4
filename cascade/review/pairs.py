"""The pairs that people judge: an output that a cascade may serve, and the reference's output that differs from it.

Serving an output can only lose something if it differs from the reference's. Outputs that are equal by the comparator
count as one, so that each distinct output is in one pair. A person sees a pair as lines of text: nothing is cut.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

from cascade.episodes.reading import Relabelled, Rows, labelled_by_reference, same
from cascade.errors import UsageError
from cascade.identity import hash_of, identity
from cascade.logs.columns import Row
from cascade.logs.schema import CHAT, Dropped, chat_of, is_hashed, replay_of
from cascade.matching import Matcher, get_matcher
from cascade.text import decoded

EpisodeKey: TypeAlias = tuple[str, str]
"""A data set and an episode of it."""


class Output(NamedTuple):
    """A model's output: the text that is compared, and for a chat request the whole message as JSON."""

    text: str
    message: str | None

    @property
    def digest(self) -> str:
        """The output's key in a file of reviews."""
        return hash_of(self.text)


class PairId(NamedTuple):
    """The identifier of a pair in judgements: the request, and the digests of the two outputs."""

    question: str
    output: str
    reference: str

    @property
    def name(self) -> str:
        """The three parts as one text."""
        return "/".join(self)


class Pair(NamedTuple):
    """A servable output and the reference's output.

    Attributes:
        question: the hash that a request shares with its near-duplicates (`cascade.identity`).
        text: the question.
        context: its context; for a chat request, the request as JSON.
        is_chat: whether it is a chat request.
        output: the output that the cascade may serve.
        reference: the reference's output.
        equal: the digests of all outputs of the request that count as this one.
    """

    question: str
    text: str
    context: str | None
    is_chat: bool
    output: Output
    reference: Output
    equal: tuple[str, ...]

    @property
    def id(self) -> PairId:
        """The identifier of the pair in judgements."""
        return PairId(self.question, self.output.digest, self.reference.digest)

    def lost(self, losses: Mapping[PairId, bool]) -> bool | None:
        """Return whether serving the output is a loss; None if neither it nor an equal output was judged."""
        ids = [PairId(self.question, digest, self.reference.digest) for digest in self.equal]
        verdicts = [losses[identifier] for identifier in ids if identifier in losses]
        return any(verdicts) if verdicts else None


@dataclass(frozen=True)
class Compared:
    """The outputs of a log, compared with those of its reference.

    Attributes:
        labelled: the log with the reference's output as its truth.
        comparator: the matcher that decides whether two outputs are the same.
        differing: for each episode, the pair of each output that differs from the reference's, by the output's digest.
        without_reference: the number of episodes without the reference's output; any other output is lost there.
    """

    labelled: Relabelled
    comparator: str
    differing: Mapping[EpisodeKey, Mapping[str, Pair]]
    without_reference: int

    @cached_property
    def pairs(self) -> tuple[Pair, ...]:
        """Every pair once, even if its request is in the log several times."""
        first = dict[PairId, Pair]()
        for outputs in self.differing.values():
            for pair in outputs.values():
                first.setdefault(pair.id, pair)
        return tuple(first.values())

    def pair_of(self, row: Row) -> Pair | None:
        """Return the pair of a row's output; None if it equals the reference's, or the two cannot be compared."""
        if row["answer"] is None or row["correct"] is not False:
            return None
        return self.differing.get(episode_key(row), {}).get(hash_of(row["answer"]))


def episode_key(row: Row) -> EpisodeKey:
    """Return the data set and episode of a row."""
    return row["dataset"] or "log", row["episode_id"]


def compare(rows: Rows, comparator: str | None = None, dropped: Dropped | None = None) -> Compared:
    """Read the outputs of a log, and compare them.

    Args:
        rows: reads the log from the start at each call.
        comparator: decides whether two outputs are the same, as for `matching.get_matcher`; by default the one for the
            form of the requests.
        dropped: counts what is left out.

    Raises:
        UsageError: there is no such matcher, or the log has no reference or no texts.
    """
    labelled = labelled_by_reference(rows, comparator)
    if not labelled.truths:
        raise UsageError("The log has no rows with texts: there is nothing to show.")
    chosen = next(iter(labelled.truths.values())).comparator
    comparing, episodes = get_matcher(chosen), dict[EpisodeKey, _Outputs]()
    for row in labelled.rows(Dropped() if dropped is None else dropped):
        if row["answer"] is not None and row["correct"] is not None:
            _check_text(row)
            episodes.setdefault(episode_key(row), _Outputs(row)).add(row, comparing)
    lacking = sum(outputs.reference is None for outputs in episodes.values())
    differing = {episode: outputs.pairs() for episode, outputs in episodes.items()}
    return Compared(labelled, chosen, differing, lacking)


@dataclass(slots=True)
class _Outputs:
    """The outputs of one episode: its first row, the reference's output, and groups of equal outputs that differ."""

    first: Row
    reference: Output | None = None
    groups: list[list[Output]] = field(default_factory=list)

    def add(self, row: Row, comparing: Matcher) -> None:
        """Add the output of a row."""
        output = Output(row["answer"], row["text"] if replay_of(row).get(CHAT) else None)
        reference = row["gold"][0] if row["gold"] else None
        if reference is not None and (
            self.reference is None or (self.reference.message is None and reference == output.text)
        ):
            self.reference = output if reference == output.text else Output(reference, None)
        texts = {output.text for group in self.groups for output in group}
        if row["walk"] is not None or row["correct"] or output.text in texts:
            return
        alike = (group for group in self.groups if same(comparing, output.text, group[0].text, chat_of(row)))
        group = next(alike, None)
        self.groups.append([output]) if group is None else group.append(output)

    def pairs(self) -> dict[str, Pair]:
        """Return the pair of each output that differs from the reference's, by its digest."""
        pairs = dict[str, Pair]()
        text, context, is_chat = self.first["question"], self.first["context"], bool(replay_of(self.first).get(CHAT))
        for group in self.groups if self.reference is not None else ():
            digests = tuple([output.digest for output in group])
            assert self.reference is not None  # noqa: S101 - the loop has checked it
            pair = Pair(identity(text, context), text, context, is_chat, group[0], self.reference, digests)
            pairs |= dict.fromkeys(digests, pair)
        return pairs


def _check_text(row: Row) -> None:
    if is_hashed(row["answer"]) or (row["question"] is not None and is_hashed(row["question"])):
        raise UsageError(
            "The log has hashes instead of texts, so there is nothing to judge. Log the texts (content: full)."
        )
    if row["question"] is None:
        raise UsageError(f"Episode {row['episode_id']} has no question on record, so it cannot be judged.")


# --- a request and an output as lines of text; values that are not text are shown as JSON ---


def request_lines(pair: Pair) -> Iterator[str]:
    """Yield the lines of a request: a chat request message by message with its tools, or question and context."""
    body = decoded(pair.context) if pair.is_chat else None
    if not isinstance(body, Mapping):
        yield from pair.text.split("\n")
        yield from [] if pair.context is None else ["[context]", *pair.context.split("\n")]
        return
    for message in body.get("messages", ()):
        yield f"[{message.get('role', 'message')}]"
        yield from _message(message)
    for name, value in body.items():
        if name != "messages":
            yield from (f"[{name}]", *_value(value))


def output_lines(output: Output) -> Iterator[str]:
    """Yield the lines of an output: a message's text and calls, JSON over several lines, any other text as it is."""
    message = decoded(output.message)
    return _message(message) if isinstance(message, Mapping) else _value(output.text)


def _message(message: Mapping[str, Any]) -> Iterator[str]:
    """Yield a message's texts, its calls without their ids (which reveal whose they are), and every other field."""
    content = message.get("content")
    for piece in content if isinstance(content, list) else [] if content is None else [content]:
        is_text = isinstance(piece, Mapping) and piece.keys() == {"type", "text"}
        yield from piece["text"].split("\n") if is_text else _value(piece)
    for call in message.get("tool_calls") or ():
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping):
            yield from (f"call {function.get('name')}", *_value(function.get("arguments")))
        else:
            yield from _value(call)
    for name, value in message.items():
        if name not in {"role", "content", "tool_calls"} and value not in (None, [], ""):
            yield from (f"{name}:", *_value(value))


def _value(value: Any) -> Iterator[str]:
    """Yield the lines of a text, or of a value as indented JSON, as is a text that holds an object or a list."""
    parsed = decoded(value) if isinstance(value, str) and value.lstrip()[:1] in {"{", "["} else None
    shown = value if parsed is None else parsed
    text = shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False, indent=2, sort_keys=True)
    yield from text.split("\n")
