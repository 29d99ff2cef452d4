"""A plan: a list of nodes, each one call that can be bought, and the walk that buys them one after another.

A ladder, two cheap opinions, self-consistency, rounds of base and guide, a panel of judges, verifiers and LLM-exit are
lists of nodes (`plans.presets`). A policy decides after each step whether the next is worth its price. A step is one
node, or a node with those that join it, such as the base's answer and the guide's verdict on it. A node's result
depends only on its parents, never on the policy, so a log of all nodes gives the exact result of any policy.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

from cascade.checks import MAX_QUESTION_CHARS, unknown
from cascade.errors import ProviderError, UsageError
from cascade.matching import agreement
from cascade.matching.text import normalize_answer
from cascade.plans import reply
from cascade.plans.agents import Agent, answered
from cascade.plans.base import NOTHING_BOUGHT, Conclusion, ModelUse, Walk, following
from cascade.plans.prompts import Prompts, load, question_data, question_text
from cascade.plans.verdict import (
    ALTERNATIVES,
    NO_VERDICT,
    Verdict,
    ask_verdict,
    decided_fields,
    judging_messages,
    read_action,
    read_exit,
)
from cascade.policies.base import Selection
from cascade.policies.signals import KINDS, NodeKind
from cascade.providers.verifiers import read_verdict, sent_output
from cascade.safety import defuse
from cascade.text import data_block
from cascade.types import GUIDE_ONLY, LAST_ONLY, SKIP, Candidate, Completion, Message, Question, Request, Step

_BY_ITSELF = frozenset({"answer", "direct"})
_DECISION_TOKENS = 8


@dataclass(frozen=True, slots=True)
class PlanNode:
    """One call that can be bought.

    Attributes:
        name: its name in logs and answers.
        use: the model and how it is asked.
        purpose: one of `policies.signals.KINDS`.
        parents: the numbers of the nodes that it reads, from 1.
        joins: whether it belongs to the step of the node before it, so that no policy decides in between.
        samples: how many verdicts are asked for if the model gives no log-probs.
        kind: the kind of this purpose; to make a node whose purpose has none raises UsageError.
    """

    name: str
    use: ModelUse
    purpose: str = "answer"
    parents: tuple[int, ...] = ()
    joins: bool = False
    samples: int = 1
    kind: NodeKind = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.purpose not in KINDS:
            raise UsageError(f"Node {self.name}: {unknown('purpose', self.purpose, KINDS)}.")
        object.__setattr__(self, "kind", KINDS[self.purpose])


@dataclass(frozen=True)
class Plan:
    """A list of nodes, in the order in which they are bought; the last answer is the reference's.

    Args:
        chat_nodes: the nodes for a chat request, if they differ.
        logprobs: whether the log-probs of answers are requested even if the application did not ask for them, since
            policies read them.
        calls: whether a policy decides before each call which node is bought next.
        agents: the agents that answer in place of models, by the model's name. Their tools may block, so a walk with
            agents has a thread of its own.
    """

    nodes: tuple[PlanNode, ...]
    prompts: Prompts = field(default_factory=load)
    chat_nodes: tuple[PlanNode, ...] = ()
    logprobs: bool = True
    calls: bool = False
    agents: Mapping[str, Agent] = field(default_factory=dict, hash=False)

    @cached_property
    def horizon(self) -> int:
        """T, the number of steps."""
        return sum(not node.joins for node in self.nodes)

    @cached_property
    def models(self) -> tuple[str, ...]:
        """The models, each once."""
        return tuple(dict.fromkeys(node.use.name for node in self.nodes))

    @cached_property
    def is_joint(self) -> bool:
        """Whether a step has several nodes, as in rounds. If not, the last node is the reference's own answer."""
        return any(node.joins for node in self.nodes)

    @cached_property
    def step_names(self) -> tuple[str, ...]:
        """The names of the nodes; none if a step has several."""
        return () if self.is_joint else tuple([self._named(node) for node in self.nodes])

    @property
    def reference_walk(self) -> str:
        """A log's name for the reference alone: a ladder's last model, or the guide asked outright."""
        return GUIDE_ONLY if self.is_joint else LAST_ONLY

    def _named(self, node: PlanNode) -> str:
        return f"the check of {self.nodes[node.parents[0] - 1].name}" if node.kind.reply == "check" else node.name

    def only(self, selection: Selection) -> Plan:
        """Return the plan of some nodes, or of the reference alone.

        Raises:
            UsageError: a step does not exist, or a node is left out that another one reads or joins.
        """
        if selection.reference:
            use = reference_of(self.nodes).use
            return replace(self, nodes=(PlanNode(use.name, use),), chat_nodes=(), calls=False)
        if self.is_joint:
            raise UsageError("Rounds cannot be left out: each one reads those before it.")
        if selection.calls:
            return replace(self, calls=True)
        if not selection.steps or max(selection.steps) > self.horizon:
            listed = ", ".join(map(str, selection.steps))
            raise UsageError(f"The policy takes the steps {listed}, but this strategy has {self.horizon}.")
        number = {step: at for at, step in enumerate(selection.steps, 1)}
        chosen = [self.nodes[step - 1] for step in selection.steps]
        if lacking := [self._named(node) for node in chosen if not number.keys() >= {*node.parents}]:
            raise UsageError(f"The policy leaves out what {', '.join(lacking)} must read.")
        renumbered = [replace(node, parents=tuple([number[parent] for parent in node.parents])) for node in chosen]
        return replace(self, nodes=tuple(renumbered))

    def plan(self, question: Question) -> Walk:
        """Walk one question.

        Raises:
            UsageError: a node would have to read another model's message in a chat request.
        """
        if question.chat is not None and (node := unsuited_to_chat(self.chat_nodes or self.nodes)) is not None:
            raise UsageError(
                f"The strategy answers no chat requests, since {node.name} reads other answers: use kind: ladder, "
                "kind: base_guide, or nodes whose answers have no parents."
            )
        return _Walk(self, question).steps()


def steps_of(nodes: Sequence[PlanNode]) -> list[list[int]]:
    """Return the numbers of the nodes of each step, from 1."""
    steps: list[list[int]] = []
    for number, node in enumerate(nodes, 1):
        if node.joins:
            steps[-1].append(number)
        else:
            steps.append([number])
    return steps


def judges_of(nodes: Sequence[PlanNode]) -> dict[int, PlanNode]:
    """Return the node that judges in each step with one, by the step's number, from 1."""
    return {
        at: nodes[number - 1]
        for at, numbers in enumerate(steps_of(nodes), 1)
        for number in numbers
        if nodes[number - 1].kind.reply == "verdict"
    }


def reference_of(nodes: Sequence[PlanNode]) -> PlanNode:
    """Return the last node that answers by itself."""
    return [node for node in nodes if node.kind.reply in _BY_ITSELF][-1]


def unsuited_to_chat(nodes: Sequence[PlanNode]) -> PlanNode | None:
    """Return a node for which chat requests have no prompt, such as an answer that reads others; None if all have."""
    return next((node for node in nodes if not node.kind.chat or (node.kind.reply == "answer" and node.parents)), None)


@dataclass(slots=True)
class _Purchase:
    """The result of a node: its reply, the answer in it, and the verdict if it judges."""

    bought: bool = False
    text: str = ""
    trace: str = ""
    candidate: Candidate | None = None
    verdict: Verdict = NO_VERDICT


@dataclass(slots=True)
class _StepDraft:
    """A step whose nodes are being bought; `results` are those of its nodes."""

    number: int
    results: list[_Purchase]
    candidates: list[Candidate] = field(default_factory=list)
    signals: dict[str, float | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    final: bool = False

    def step(self, parents: tuple[int, ...] | None) -> Step:
        candidates, notes, warnings = tuple(self.candidates), tuple(self.notes), tuple(self.warnings)
        return Step(self.number, candidates, self.signals, notes, (), None, self.final, False, warnings, parents)


_Buying: TypeAlias = Generator[Request | Conclusion, Any, None]


class _Walk:
    """One question on its way through the nodes of a plan."""

    def __init__(self, plan: Plan, question: Question) -> None:
        self.plan, self.question, self.chat = plan, question, question.chat
        self.nodes = plan.chat_nodes if question.chat is not None and plan.chat_nodes else plan.nodes
        self.numbers, self.is_joint = steps_of(self.nodes), plan.is_joint
        self.results = [_Purchase() for _ in self.nodes]
        self.answers: list[tuple[str, str]] = []  # with the model of each
        self.retold: dict[tuple[int, str | None], tuple[Message, ...]] = {}
        judges = [node for node in self.nodes if node.kind.reply == "verdict"]
        self.judged = {parent: node.kind.signal for node in judges if node.joins for parent in node.parents}
        self.separate = () if self.is_joint else tuple([node.kind.signal for node in judges])

    def steps(self) -> Walk:
        """Buy the nodes of each step, in order, or of the step that the policy names."""
        calls, most = self.plan.calls, len(self.numbers)
        number = following((yield NOTHING_BOUGHT), 0, most) if calls else 1
        while number <= most:
            draft = _StepDraft(number, [self.results[node - 1] for node in self.numbers[number - 1]])
            for node in self.numbers[number - 1]:
                yield from self._buy(node, draft)
            draft.final = draft.final or number == most < self.plan.horizon
            parents = None if self.is_joint else self.nodes[number - 1].parents
            bought = yield draft.step(parents)
            if draft.final:
                return
            number = following(bought, number, most) if calls else number + 1

    def _buy(self, number: int, draft: _StepDraft) -> _Buying:
        """Buy a node. A failure is raised if text was already shown or no other node can answer, else noted."""
        node = self.nodes[number - 1]
        try:
            buys = node.purpose if node.purpose in self._BUYS else node.kind.reply
            yield from self._BUYS[buys](self, number, node, draft)
        except ProviderError as error:
            if error.shown or self._needs(number, node, draft):
                raise
            draft.notes.append(f"{node.name} failed: {type(error).__name__}: {error}")

    def _needs(self, number: int, node: PlanNode, draft: _StepDraft) -> bool:
        """Return whether no answer is left if a node gives none."""
        if node.kind.reply == "direct":
            return not draft.candidates
        goes_on = self.is_joint and bool(node.parents)  # the model that failed would have to answer again
        return node.kind.reply == "answer" and (goes_on or not self.answers) and not self._is_followed(number)

    def _is_followed(self, number: int) -> bool:
        """Return whether a later node can answer without reading this one."""
        return any(number not in node.parents for node in self.nodes[number:] if node.kind.reply in _BY_ITSELF)

    def _answers(self, model: str | None = None) -> list[str]:
        """Return the answers so far, of one model or of all; an answer that a judge repeats counts once."""
        return [text for name, text in self.answers if model is None or name == model]

    # --- answers ---

    def _answer(self, number: int, node: PlanNode, draft: _StepDraft) -> _Buying:
        """Ask a model for an answer; it reads its parents' results."""
        request = self._request(self._drawn(number), node, draft)
        if not self.plan.logprobs and not (self.chat is not None and self.chat.top_logprobs):
            request = request._replace(top_logprobs=None)
        last = not self.answers and not self._is_followed(number)
        lacks = None if self.chat is None else node.use.lacks(request)
        if lacks is not None and not last:
            yield request._replace(purpose=SKIP)
            draft.signals["model_skipped"] = 1.0
            draft.notes.append(f"{node.use.name} was not asked: {lacks}")
            return
        read = [at for at in node.parents if not self.is_joint or self.nodes[at - 1].kind.reply == "answer"]
        if not all(self.results[parent - 1].bought for parent in read):
            draft.notes.append(f"{node.name} was not asked: what it reads is missing")
            return
        if node.parents:
            request = request._replace(messages=(*request.messages, *self._earlier(node)))
        completion = yield from self._reply(request)
        self._take(number, draft, completion, reply.read(completion, request, last=last))

    def _request(self, use: ModelUse, node: PlanNode, draft: _StepDraft) -> Request:
        """Return the call that asks a model for its answer: the filled prompt, or the chat request unchanged."""
        chat, name, at, question = self.chat, node.name, draft.number, self.question
        if chat is None:
            messages, most = self.plan.prompts.answer.fill(question_text(question)), use.max_tokens
            return Request(use.name, messages, name, "answer", at, question, most, use.temperature, 1, use.seed)
        most, alternatives = chat.max_tokens or use.chat_max_tokens, chat.top_logprobs or 1
        return Request(use.name, (), name, "answer", at, question, most, top_logprobs=alternatives, chat=chat)

    def _reply(self, request: Request) -> Generator[Request | Conclusion, Any, Completion]:
        """Ask a model for an answer, or the agent in its place."""
        if (agent := self.plan.agents.get(request.model)) is not None:
            return (yield from answered(agent, request))
        completion: Completion = yield request
        return completion

    def _take(self, number: int, draft: _StepDraft, completion: Completion, reading: reply.ParsedReply) -> None:
        """Add an answer as a candidate, and compare it with the earlier ones."""
        node, result, candidate = self.nodes[number - 1], self.results[number - 1], reading.candidate
        earlier = self._answers()
        result.bought, result.text, result.candidate = True, completion.text, candidate
        draft.signals |= reading.signals
        draft.warnings += reading.warnings
        draft.signals |= dict.fromkeys(self.separate)  # else a table would take the log-probs as the confidence
        if candidate is None:
            draft.notes.append(f"the reply of {node.name} has no complete answer")
            if number in self.judged and (self.chat is not None or not completion.truncated):
                draft.signals[self.judged[number]] = 0.0
            return
        draft.candidates.append(candidate)
        self.answers.append((node.use.name, candidate.text))
        draft.signals["agrees_with_earlier"] = agreement(candidate.text, earlier, self.chat) if earlier else None
        if node.kind.redraws:
            alike = self._answers(node.use.name)  # with this one
            draft.signals[node.kind.signal] = agreement(candidate.text, alike, self.chat) if len(alike) > 1 else None
        if self.chat is not None:
            return
        result.trace = reading.trace
        if number in self.judged:
            lengths = {"answer_chars": len(candidate.text), "reasoning_chars": len(reading.trace)}
            draft.signals |= {name: float(length) for name, length in lengths.items()}
            if defuse(completion.text) != completion.text:
                draft.notes.append(f"marks or invisible characters in the reply of {node.name} are shown to no model")

    def _drawn(self, number: int) -> ModelUse:
        """Return how the model of a node is asked: each later sample has another seed, if a seed is set."""
        node = self.nodes[number - 1]
        if not node.kind.redraws or node.use.seed is None:
            return node.use
        before = sum(other.use.name == node.use.name for other in self.nodes[: number - 1])
        return replace(node.use, seed=node.use.seed + before)

    def _earlier(self, node: PlanNode) -> Iterator[Message]:
        """Yield the earlier replies that a node reads, each with its judgement.

        A small model repeats a word that it is given as its next answer: given "yes", it answers "yes". So it is given
        the answer that a verifier favours, not the verifier's yes or no.
        """
        for parent in node.parents:
            result = self.results[parent - 1]
            if result.candidate is None:
                continue
            verdicts = [
                self.results[judge - 1].verdict
                for judge in node.parents
                if self.nodes[judge - 1].kind.corrects and parent in self.nodes[judge - 1].parents
            ]
            answers = (verdict.favoured(result.candidate.text) for verdict in verdicts)
            suggested = next((answer for answer in answers if answer is not None), None)
            if (parent, suggested) not in self.retold:
                fields = {"opinion": "doubtful"} if suggested is None else {"suggested_answer": suggested}
                again = self.plan.prompts.again.fill(data_block(fields))
                self.retold[parent, suggested] = (Message("assistant", defuse(result.text)), *again)
            yield from self.retold[parent, suggested]

    def _direct(self, _: int, node: PlanNode, draft: _StepDraft) -> _Buying:
        """Let a model answer by itself as the last resort: after a failure or a refused message, or at the end."""
        first, *others = draft.results
        refused = self.chat is not None and any(other.verdict.says_yes is False for other in others)
        ends = draft.number == len(self.numbers) and not self.answers
        if first.bought and not refused and not ends:
            return
        draft.final = True
        request = self._request(node.use, node, draft)
        if self.chat is None:
            request = request._replace(purpose=node.kind.call, top_logprobs=None)
        earlier = self._answers()
        reading = reply.read((yield from self._reply(request)), request, last=not earlier)
        draft.warnings += reading.warnings
        if refused:
            same = None if reading.candidate is None else agreement(reading.candidate.text, earlier, self.chat)
            draft.signals["guide_agrees"] = same
        elif self.chat is not None:
            draft.signals = reading.signals | draft.signals
        if reading.candidate is not None:
            draft.candidates.append(reading.candidate)
        outcome = "answered by itself" if reading.candidate else "was asked directly, and its reply has no answer"
        draft.notes.append(f"{node.name} {outcome}")

    # --- verdicts ---

    def _judge(self, number: int, node: PlanNode, draft: _StepDraft) -> _Buying:
        """Ask a model whether its parent's answer is right; a step of its own offers it again, now judged."""
        judged, result = self.results[node.parents[0] - 1], self.results[number - 1]
        if node.joins and judged.candidate is None:
            return
        kind, prompts = node.kind, self.plan.prompts
        draft.signals[kind.signal] = None
        if not judged.bought or (self.chat is not None and len(self.chat.canonical) > MAX_QUESTION_CHARS):
            draft.notes.append(f"{node.name} has {'too long a question' if judged.bought else 'no answer'} to judge")
            return
        shown = judged.candidate or Candidate(judged.text, node.name, node.use.name)
        messages = judging_messages(prompts, self.question, shown, judged.trace, decides=node.use.decides)
        request = node.use.request(messages, node.name, kind.call, draft.number, self.question, ALTERNATIVES)
        verdict, notes = yield from ask_verdict(request, node.samples, shown.text)
        draft.notes += notes
        result.verdict, result.bought = verdict, True
        draft.signals |= {kind.signal: verdict.p_yes, "verdict_mass": verdict.mass}
        if not node.joins:
            draft.signals[kind.share] = self._share(node)
        draft.candidates = [candidate._replace(confidence=verdict.p_yes) for candidate in draft.candidates]
        own = verdict.favoured(shown.text) if node.joins and self.chat is None else verdict.correction
        if kind.corrects and own is not None:
            same = normalize_answer(own) == normalize_answer(shown.text)
            doubt = None if verdict.p_yes is None else 1.0 - verdict.p_yes
            draft.candidates.append(Candidate(own, node.name, node.use.name, verdict.p_yes if same else doubt))
            draft.signals |= {"guide_agrees": float(same)} if node.joins else {}
        elif not node.joins and judged.candidate is not None:
            draft.candidates.append(judged.candidate._replace(source=node.name, confidence=verdict.p_yes))

    def _share(self, node: PlanNode) -> float | None:
        """Return the share of an answer's judges so far that said yes; None without a verdict."""
        verdicts = [
            result.verdict.says_yes
            for judge, result in zip(self.nodes, self.results, strict=True)
            if judge.kind.reply == "verdict" and judge.parents == node.parents and result.verdict.says_yes is not None
        ]
        return sum(verdicts) / len(verdicts) if verdicts else None

    def _check(self, _: int, node: PlanNode, draft: _StepDraft) -> _Buying:
        """Check an answer, and offer it again. A step without an answer fails every check and is logged as failed."""
        if (candidate := self.results[node.parents[0] - 1].candidate) is None:
            yield self._sent(node, draft, Candidate("", node.name, node.use.name))._replace(purpose=SKIP)
            draft.signals[node.kind.signal] = 0.0
            draft.notes.append("there is no answer to check")
            return
        draft.candidates.append(candidate._replace(source=node.name))
        draft.signals[node.kind.signal] = None
        draft.signals[node.kind.signal] = read_verdict((yield self._sent(node, draft, candidate)).text)

    def _sent(self, node: PlanNode, draft: _StepDraft, candidate: Candidate) -> Request:
        """Return the call that sends a question and its output, unchanged, to a verifier; a digest is made of them."""
        message = {"content": candidate.text} if candidate.message is None else candidate.message
        chat, output = self.question.chat, sent_output(message)
        read = question_data(self.question) if chat is None else chat.canonical
        sent = (Message("user", read), Message("user", output))
        return Request(node.use.name, sent, node.name, node.kind.call, draft.number, self.question, 1)

    # --- decisions of a model ---

    def _decide(self, _: int, node: PlanNode, draft: _StepDraft) -> _Buying:
        """Ask a model what to do with this round."""
        (base, *others), about = draft.results, None
        if draft.candidates and base.bought:
            corrections = draft.candidates if base.candidate is None else draft.candidates[1:]
            verdict = next((other.verdict for other in others if other.verdict != NO_VERDICT), NO_VERDICT)
            correction = corrections[0].text if corrections else "none"
            about = decided_fields(self.question, base.candidate, verdict, correction)
        yield from self._word(node, draft, about, read_action)

    def _exit(self, _: int, node: PlanNode, draft: _StepDraft) -> _Buying:
        """Ask a model whether to stop. If that call fails, the answer is kept, since it is paid for."""
        about = data_block({"question": self.question.text, "answers": "\n".join(self._answers())})
        yield from self._word(node, draft, about if draft.candidates else None, read_exit)

    def _word(
        self, node: PlanNode, draft: _StepDraft, about: str | None, read: Callable[[str], float | None]
    ) -> _Buying:
        """Ask for a one-word decision about something, if there is anything, with the prompt of the kind's name."""
        kind, value = node.kind, None
        draft.signals[kind.signal] = None
        if about is not None:
            messages = getattr(self.plan.prompts, kind.call).fill(about)
            request = node.use.request(messages, node.name, kind.call, draft.number, self.question)
            value = read((yield request._replace(max_tokens=_DECISION_TOKENS)).text)
        draft.signals[kind.signal] = None if value is None else float(value)

    _BUYS: ClassVar = {
        "answer": _answer, "direct": _direct, "verdict": _judge, "check": _check, "decide": _decide, "exit": _exit
    }  # fmt: skip
