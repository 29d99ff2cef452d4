"""A search agent for HotpotQA: it names what to look up, reads what BM25 finds, and answers.

Named in a configuration as `agent: "hotpot.agent:search"`. The passages are read from the file that the environment
variable HOTPOTQA_PASSAGES names. In its first round it reads what the question itself finds and may search once; in
each later round it reads the rounds before and the check, and may search once more. The text of its reply holds what
was searched and found as its reasoning, so that a guide judges with the same evidence.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import bm25s

from cascade.strategies.agents import Loop
from cascade.strategies.prompts import question_text
from cascade.strategies.reply import split_reply
from cascade.text import defuse
from cascade.types import Message, Request

PASSAGES = "HOTPOTQA_PASSAGES"
LOOKED_AT, SNIPPET_CHARS = 10, 150
SHOWN = 2
"""How many passages the first round shows: two hold the answer to 38 % of the 350 questions, one 24 %, three 45 %."""
SEARCHES = 1
"""How often the model may search in a round. The first round begins with what the question itself finds."""
logging.getLogger("bm25s").setLevel(logging.WARNING)  # it sets DEBUG at its import
_QUERY = re.compile(r"^\W*search\W*:?\s*(.+)", re.IGNORECASE)
_SENTENCE = re.compile(r"(?<=[.!?])\s+")
_WORD = re.compile(r"\w+")
_FIRST = "\nSearch or answer."

_SYSTEM = (
    "You answer questions from Wikipedia. To look something up, reply with one line: Search: and its name. "
    "To answer, reply with one line: Answer: and only the answer, a name, a few words, yes or no."
)
_EXAMPLE = (
    Message("system", _SYSTEM),
    Message(
        "user",
        "Question: In which country was the director of the film Metropolis born?\n"
        "Metropolis (1927 film): Metropolis is a 1927 film directed by Fritz Lang.\nSearch or answer.",
    ),
    Message("assistant", "Search: Fritz Lang"),
    Message("user", "Fritz Lang: Fritz Lang was a filmmaker born in Vienna, Austria.\nAnswer now."),
    Message("assistant", "Answer: Austria"),
)


class Passage(NamedTuple):
    """A passage of Wikipedia."""

    title: str
    text: str


class Search:
    """BM25 over passages.

    Args:
        passages: what is searched.
    """

    def __init__(self, passages: Sequence[Passage]) -> None:
        self._passages = passages
        self._index = bm25s.BM25()
        self._index.index(_tokens([f"{one.title}. {one.text}" for one in passages]), show_progress=False)

    def __call__(self, query: str, most: int) -> list[Passage]:
        """Return the passages that fit a query best."""
        places, _ = self._index.retrieve(_tokens([query]), k=most, show_progress=False)
        return [self._passages[place] for place in places[0].tolist()]


def _tokens(texts: list[str]) -> bm25s.tokenization.Tokenized:
    return bm25s.tokenize(texts, stopwords="en", show_progress=False)


@cache
def shared_search() -> Search:
    """Return the tool over the file that the environment names."""
    lines = Path(os.environ[PASSAGES]).read_text("utf-8").splitlines()
    return Search([Passage(**json.loads(line)) for line in lines])


def search(request: Request) -> Loop:
    """Answer a question with searches in between: the loop of an agent."""
    tool, trace, turns = shared_search(), list[str](), _turns(request)
    if len(turns) == 1:
        for one in tool(request.question.text, SHOWN):
            trace.append(snippet(one, request.question.text))
            _add(turns, trace[-1])
    for left in range(SEARCHES, -1, -1):
        reply = yield request._replace(messages=(*_EXAMPLE, *turns))
        query = query_of(reply.text) if left else None
        if query is None:
            break
        wider, seen = f"{query} {request.question.text}", "\n".join(one.content for one in turns)
        new = next(one for one in tool(wider, LOOKED_AT) if f"{one.title}: " not in seen)
        for line in (f"Search: {query}", snippet(new, wider)):
            trace.append(line)
            _add(turns, line)
    return reply._replace(text="\n".join([*trace, f"Answer: {split_reply(reply.text)[1]}"]))


def _turns(request: Request) -> list[Message]:
    """Return the question and the rounds before, as the turns that they were made of."""
    asked = question_text(request.question)
    last = max(place for place, one in enumerate(request.messages) if one.content == asked)
    turns = [request.messages[last]]
    for one in request.messages[last + 1 :]:
        for line in one.content.split("\n") if one.role == "assistant" else ():
            _add(turns, line)
        if one.role == "user":
            turns.append(one)
    return turns


def _add(turns: list[Message], line: str) -> None:
    """Add what the model said, or what was found, to the turns."""
    if line.startswith(("Search: ", "Answer: ")):
        turns.append(Message("assistant", defuse(line)))
    elif turns[-1].role == "user":
        before = turns[-1].content.removesuffix(_FIRST)
        turns[-1] = Message("user", f"{before}\n{defuse(line)}{_FIRST}")
    else:
        turns.append(Message("user", f"{defuse(line)}\nAnswer now."))


def query_of(text: str) -> str | None:
    """Return what a reply wants to look up; None where it answers.

    >>> query_of("Search: Fritz Lang"), query_of("Answer: Austria")
    ('Fritz Lang', None)
    """
    found = _QUERY.match(text.strip().split("\n")[0])
    return found[1].strip() if found is not None and _WORD.search(found[1]) else None


def snippet(passage: Passage, query: str) -> str:
    """Return a passage's title and its sentences that share most words with a query, the first one before others.

    >>> snippet(Passage("Lyon", "Lyon is a city. It has parks. Its river is the Rhone."), "river of Lyon")
    'Lyon: Lyon is a city. It has parks. Its river is the Rhone.'
    """
    sentences, words = _SENTENCE.split(passage.text), set(_WORD.findall(query.lower()))
    shared = [len(words & set(_WORD.findall(one.lower()))) + 1.5 * (not place) for place, one in enumerate(sentences)]
    kept, length = set[int](), 0
    for place in sorted(range(len(sentences)), key=lambda place: -shared[place]):
        if not kept or length + len(sentences[place]) <= SNIPPET_CHARS:
            kept.add(place)
            length += len(sentences[place])
    said = " ".join(" ".join(sentences[place] for place in sorted(kept)).split())
    return f"{passage.title}: {said[: SNIPPET_CHARS + 80]}"
