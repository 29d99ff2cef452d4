"""Add nodes to a log that has the others: only their calls are made, and everything else is taken from the log.

The plan is walked as in `collect`. The named nodes are added, and those that read them. A call of a node that the log
has is answered from its row, whose answer, truth, cost and signals are copied unchanged; only places and the agreement
of answers are computed again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cascade.checks import did_you_mean, refuse
from cascade.config import CascadeConfig
from cascade.episodes.journal import is_call
from cascade.errors import BadResponseError, ProviderError, RefusedError, UsageError, refused_for_good
from cascade.logs.questions import AskedQuestion, matcher_of
from cascade.logs.schema import CHAT, FAILED, chat_of, completion_of, is_hashed, replay_of
from cascade.plans.nodes import Plan
from cascade.plans.reply import split_reply
from cascade.policies.signals import purposes_of
from cascade.table import AGREEMENT
from cascade.types import Completion, Question, Request

_PLACES = ("step", "parents", "horizon", "kept", "schema_version")
"""The columns of a row that the new plan determines."""


@dataclass(slots=True)
class _Episode:
    """The rows of one question: those of the plan, by model or role, purpose and sample, and those of other walks."""

    head: Mapping[str, Any]
    walked: dict[tuple[str, str, int], list[dict[str, Any]]] = field(default_factory=dict)
    other_walks: list[dict[str, Any]] = field(default_factory=list)

    def add(self, row: dict[str, Any]) -> None:
        if row["walk"] is not None:
            self.other_walks.append(row)
            return
        replay = replay_of(row)
        for name in {row["source"], row["model"]}:  # an import may call a model "base"
            key = name, replay.get("purpose", "answer"), replay.get("sample", 0)
            self.walked.setdefault(key, []).append(row)

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for rows in self.walked.values() for row in rows]


class LoggedCalls:
    """A log whose calls are not made again.

    Args:
        rows: its rows, of one data set.
        plan: the plan of the new log.
        adds: the numbers, from 1, of the nodes that are added; none to a plan of rounds.

    Raises:
        UsageError: the log lacks a node that is not added, or texts that an added one needs; all problems are listed.
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]], plan: Plan, adds: frozenset[int]) -> None:
        self.adds, self._nth, self._episodes = adds, dict[int, int](), dict[str, _Episode]()
        count = Counter[tuple[str, str]]()
        for number, node in enumerate(() if plan.is_joint else plan.nodes, 1):  # a judge has a node for each model
            self._nth[number] = count[node.name, node.purpose]
            count[node.name, node.purpose] += number not in adds
        for row in rows:
            self._episodes.setdefault(row["episode_id"], _Episode(row)).add(dict(row))
        refuse(self._problems(plan), "No node can be added to this log")

    def _problems(self, plan: Plan) -> Iterator[str]:
        logged = {name for episode in self._episodes.values() for name, *_ in episode.walked}
        for number, node in enumerate(plan.nodes, 1):
            if number not in self.adds and not logged & {node.name, node.use.name}:
                yield f"it has no answers of {node.name}{did_you_mean(node.name, logged)}"
        heads = [episode.head for episode in self._episodes.values()]
        if any(head["question"] is None or is_hashed(head["question"]) for head in heads):
            yield "it lacks the texts of questions, which must be asked"
        datasets = {head["dataset"] for head in heads}
        if len(datasets) > 1:
            yield f"it has {len(datasets)} data sets: choose one with --where dataset=NAME"
        if plan.is_joint and self.adds:
            yield "nodes are added to a plan whose steps are single calls, not to rounds"

    def left_out(self, plan: Plan) -> list[str]:
        """Return the names of the log's nodes that a plan lacks."""
        names = {name for node in plan.nodes for name in (node.name, node.use.name)}
        rows = [row for episode in self._episodes.values() for row in episode.rows]
        return sorted({row["source"] for row in rows if not names & {row["source"], row["model"]}})

    def questions(self) -> list[AskedQuestion]:
        """Return the questions of the log, in its order."""
        return [_question_of(name, episode.head) for name, episode in self._episodes.items()]

    def completion(self, episode_id: str, request: Request) -> Completion | ProviderError | None:
        """Return the recorded reply to a call, or its error; None if the call must be made.

        A call that the log lacks counts as failed with the logged error, or an unknown one, which drops the question.
        """
        if request.step in self.adds:
            return None
        episode = self._episodes[episode_id]
        row = self._row(episode_id, request.step, request.role, request.model, request.purpose, request.sample)
        if row is not None:
            return _completion(row)
        failed = [entry for entry in replay_of(episode.head).get(FAILED) or () if entry[1] == request.role]
        if failed and refused_for_good(failed[0][2]):
            return RefusedError(f"according to the log, it failed with {failed[0][2]}", model=request.model)
        return BadResponseError("the log has no row for this call", model=request.model)

    def _row(self, episode_id: str, step: int, role: str, model: str, *call: Any) -> dict[str, Any] | None:
        walked = self._episodes[episode_id].walked
        rows = walked.get((role, *call)) or walked.get((model, *call)) or []
        if not self._nth:  # rounds, whose steps are those of the log
            return next((row for row in rows if row["step"] == step), None)
        ordered = sorted(rows, key=lambda row: row["step"])
        return ordered[self._nth[step]] if self._nth[step] < len(ordered) else None

    def merged(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return the row of the new log: the recorded one at its new place, or the new one.

        A new row whose answer is already in the log gets its truth.
        """
        name, replay = row["episode_id"], replay_of(row)
        own = {"dataset": self._episodes[name].head["dataset"]}
        if row["step"] in self.adds:
            rows = self._episodes[name].rows
            truths = (old["correct"] for old in rows if row["answer"] is not None and old["answer"] == row["answer"])
            return {**row, **own, "correct": next(truths, row["correct"])}
        old = self._row(name, row["step"], row["source"], row["model"], replay["purpose"], replay["sample"])
        if old is None:  # a call that was not made: the model lacks what the request needs
            return {**row, **own}
        signals = {**row["signals"], **(old["signals"] or {})}
        signals["replay"] = {name: value for name, value in replay_of(old).items() if name != FAILED}
        if FAILED in replay:
            signals["replay"][FAILED] = replay[FAILED]
        if AGREEMENT in row["signals"]:
            signals[AGREEMENT] = row["signals"][AGREEMENT]
        return {**old, **{column: row[column] for column in _PLACES}, "signals": signals}

    def other_walks(self, episode_id: str) -> Iterator[dict[str, Any]]:
        """Yield the rows of an episode's other walks, unchanged."""
        yield from self._episodes[episode_id].other_walks

    def is_new(self, row: Mapping[str, Any]) -> bool:
        """Return whether a row is a call of an added node."""
        return row["step"] in self.adds and row["walk"] is None and is_call(row)


def added_nodes(config: CascadeConfig, plan: Plan, names: Iterable[str]) -> frozenset[int]:
    """Return the numbers of the nodes that are named, as nodes or entries under `models`, and of those that read them.

    Raises:
        UsageError: the plan has no such node.
    """
    meant, problems = set[int](), list[str]()
    for name in names:
        ids = {name, config.models[name].id} if name in config.models else {name}
        nodes = {number for number, node in enumerate(plan.nodes, 1) if ids & {node.name, node.use.name}}
        if not nodes:
            offered = [*config.models, *(node.name for node in plan.nodes)]
            problems.append(f"the strategy has no node {name}{did_you_mean(name, offered)}")
        meant |= nodes
    if problems:
        raise UsageError(f"{'; '.join(problems)}. Put it into the strategy of the configuration.")
    for number, node in enumerate(plan.nodes, 1):
        if meant & {*node.parents}:
            meant.add(number)
    return frozenset(meant)


def _question_of(name: str, head: Mapping[str, Any]) -> AskedQuestion:
    chat = chat_of(head)
    if chat is None:
        question = Question(head["question"], head["context"], head["group"], head["segment"])
    else:
        question = Question.of_chat(replace(chat, segment=head["segment"]))
    return AskedQuestion(name, question, tuple(head["gold"] or ()), head["group"], head["split"], matcher_of(chat))


def _completion(row: Mapping[str, Any]) -> Completion:
    """Return the reply of a row; for an imported one, its answer if the reply does not parse to that answer."""
    replay, text = replay_of(row), row["text"]
    judges = replay.get("purpose", "answer") in purposes_of("verdict", "check")  # it repeats the judged answer
    if not (judges or replay.get(CHAT) or row["answer"] is None or split_reply(text or "")[1] == row["answer"]):
        text = row["answer"]
    defaults = {"finish_reason": "stop", "usage_estimated": False}
    return completion_of({**row, "text": text or "", "signals": {"replay": {**defaults, **replay}}})
