"""The state of a cascade in service: its mode, the certificate in force, the audits. Values are frozen.

`ModeStore` keeps them; every change is a method here that returns the next value.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from pydantic import TypeAdapter

from cascade.conformal.monitor import Monitor
from cascade.errors import UsageError
from cascade.modes.draws import Role, look_level

Mode = Literal["observe", "enforce", "fallback"]
Outcome = Literal["pending", "complete", "missing"]
Verdict = Literal["open", "promoted", "refused"]
Signs: TypeAlias = Mapping[str, tuple[str, ...]]
"""What replies report of models: the values of each sign, such as "small answers from the build"."""
BY_PEOPLE: Final = "regret"
"""The promise that people's judgements decide."""
ENDS_S = 86_400.0
"""Seconds without an audit after which a conversation has ended."""
_MOST_OPEN = 5_000
"""The most conversations that are counted, or bet on, at a time."""
_CHANGES = 100
"""The maximum number of changes kept, the latest ones."""
_SIGNS = 50
"""The most names and builds of a model that are kept: some servers put a new one into each reply."""


class Change(NamedTuple):
    """A change of a mode or a switch.

    Attributes:
        at: when, UTC, ISO 8601.
        by: who or what made it: a key's name, "cascade promote", "audits".
        mode: the mode from then on.
        why: the reason, in words.
    """

    at: str
    by: str
    mode: Mode
    why: str


class Lease(NamedTuple):
    """The right of one process to look at a cascade, until a time in seconds since 1970."""

    owner: str
    until_s: float


def signs_of(model: str, echoed: str | None, build: str | None) -> dict[str, str]:
    """Return what a reply reports of its model: the name and the build, as far as it does."""
    signs = {f"{model} answers as": echoed, f"{model} answers from the build": build}
    return {sign: value for sign, value in signs.items() if value is not None}


def _differing(signs: Signs, reply: Mapping[str, str], when: str) -> str | None:
    """Return how a reply shows that a model has changed; None if it does not."""
    changes = (
        f"{sign} {value} now, and {when} {', '.join(signs[sign])}"
        for sign, value in reply.items()
        if sign in signs and value not in signs[sign]
    )
    return next(changes, None)


@dataclass(frozen=True, slots=True)
class InForce:
    """The certificate that a cascade serves under.

    Attributes:
        certificate: its id.
        look: the look that issued it.
        risk: the share of requests that may break the promise.
        level: the probability, of that of all looks, at which it was tested.
        n: conversations that certified it.
        comparator: by which answers are the same.
        signs: what the replies reported that certified it; any other value voids it.
        promise: its kind, "agreement" or "regret".
        turns: how many audits of one conversation count, at most.
    """

    certificate: str
    look: int
    risk: float
    level: float
    n: int
    comparator: str
    signs: Signs = field(default_factory=dict)
    promise: str = "agreement"
    turns: int = 1

    @property
    def by_people(self) -> bool:
        """Whether people's later judgements decide what counts against it."""
        return self.promise == BY_PEOPLE

    @property
    def broken(self) -> str:
        """The event whose share is at most `risk`, in words."""
        if self.by_people:
            return "answered wrongly where the guide is right, or differently with nobody to judge it"
        return f"served otherwise than the guide would answer, by the comparator {self.comparator}"


def audits_each(rate: float, longest: int) -> int:
    """Return how many turns of a conversation are audited at a rate, hardly ever more; it has at most `longest`."""
    audits = rate * longest
    return max(1, min(longest, math.ceil(audits + 2 * math.sqrt(audits))))


@dataclass(frozen=True, slots=True)
class CascadeState:
    """The state of one cascade.

    Attributes:
        cascade: its name.
        mode: "observe": the guide serves; "enforce": the policy serves; "fallback": the guide serves after an alarm.
        version: grows with each change.
        killed: whether the kill switch sends every request to the guide, whatever the mode.
        looks: looks at certifying rows so far, refused ones counted.
        spent: the part of delta that they have spent, each by the delta of its time.
        lease: who may look at the moment.
        in_force: the certificate in force; the last one in "fallback".
        monitor: its monitor, with the audits so far.
        alarm: why it was withdrawn, in words.
        changes: the latest changes, the oldest first.
        era: how often a certificate was withdrawn, or a model changed while the guide served. Rows that were drawn in
            an earlier era neither fit nor certify, since the models may have changed.
        signs: what replies have reported, in any era.
    """

    cascade: str
    mode: Mode = "observe"
    version: int = 0
    killed: bool = False
    looks: int = 0
    spent: float = 0.0
    lease: Lease | None = None
    in_force: InForce | None = None
    monitor: Monitor | None = None
    alarm: str | None = None
    changes: tuple[Change, ...] = ()
    era: int = 0
    signs: Signs = field(default_factory=dict)

    @property
    def serves_policy(self) -> bool:
        """Whether the policy serves."""
        return self.mode == "enforce" and not self.killed and self.in_force is not None

    def next_level(self, delta: float) -> float:
        """Return the part of delta that the next look may spend."""
        return look_level(delta, self.looks + 1)

    def leased(self, owner: str, now_s: float, until_s: float) -> CascadeState:
        """Return the state in which a process may look. Raises UsageError if another one may at the moment.

        A lease ends by itself, so that a killed process does not block others for longer. `owner` is a unique name.
        """
        lease = self.lease
        if lease is not None and lease.owner != owner and lease.until_s > now_s:
            again = f"Try again once it is done, in {lease.until_s - now_s:.0f} s at most."
            raise UsageError(f"Another process is looking at {self.cascade}. {again}")
        return replace(self, lease=Lease(owner, until_s))

    def released(self, owner: str) -> CascadeState:
        """Return the state without the lease of this owner; unchanged if another one has it by now."""
        return self if self.lease is None or self.lease.owner != owner else replace(self, lease=None)

    def looked(self, delta: float) -> CascadeState:
        """Return the state after one more look has begun.

        All looks together spend at most the largest delta that was ever set.
        """
        return replace(self, looks=self.looks + 1, spent=self.spent + self.next_level(delta))

    def changed(self, mode: Mode, by: str, why: str, at: str, **others: Any) -> CascadeState:
        """Return the state with a new (or the same) mode, and a record of the change."""
        changes = (*self.changes, Change(at, by, mode, why))[-_CHANGES:]
        return replace(self, mode=mode, changes=changes, **others)

    def promoted(self, certificate: InForce, level: float, by: str, at: str) -> CascadeState:
        """Return the state in which a new certificate is in force.

        `level` is the probability that any alarm of all certificates is false; each look may spend a part of it.
        """
        false_alarm = look_level(level, certificate.look)
        monitor = Monitor.start(risk=certificate.risk, level=false_alarm, turns=certificate.turns)
        why = f"look {certificate.look} issued the certificate {certificate.certificate}"
        return self.changed("enforce", by, why, at, in_force=certificate, monitor=monitor, alarm=None)

    def alarmed(self, monitor: Monitor, at: str) -> CascadeState:
        """Return the state in which the certificate is withdrawn, since the monitor of its audits alarms."""
        assert self.in_force is not None  # noqa: S101 - the monitor is the certificate's
        risk = self.in_force.risk
        alarm = (
            f"audits found {monitor.misses} of {monitor.audits} requests {self.in_force.broken}, and at most "
            f"{risk:.0%} were promised"
        )
        if monitor.misses <= risk * monitor.audits:  # the traffic changed after many audits without fault
            alarm += (
                f": the share of all audits is within that, but so many of the latest differ that the evidence is "
                f"{monitor.e_value:.3g}"
            )
        return self.withdrawn(alarm, "audits", at, monitor=monitor)

    def replied(self, reply: Mapping[str, str], at: str) -> CascadeState:
        """Return the state after a reply of a model, which may have changed; `self` if the reply shows nothing new.

        Under a certificate the guide serves from then on. Without one a new era begins: a certificate from requests
        before and after the change would not hold now.

        Args:
            reply: what it reports (`signs_of`).
            at: the time.
        """
        earlier = {sign: self.signs.get(sign, ()) for sign in reply}
        new = {s: (*earlier[s], value)[-_SIGNS:] for s, value in reply.items() if value not in earlier[s]}
        state = replace(self, signs={**self.signs, **new}) if new else self
        if self.mode == "enforce" and self.in_force is not None:
            change = _differing(self.in_force.signs, reply, "while it was certified")
            return state if change is None else state.withdrawn(change, "a reply", at)
        change = _differing(self.signs, reply, "before")
        if change is None:
            return state
        why = f"{change}: requests that were observed before neither fit nor certify"
        return state.changed(self.mode, "a reply", why, at, era=self.era + 1)

    def withdrawn(self, why: str, by: str, at: str, **others: Any) -> CascadeState:
        """Return the state in which the certificate is withdrawn, and the guide serves."""
        return self.changed("fallback", by, why, at, alarm=why, era=self.era + 1, **others)

    def set_mode(self, mode: Mode, by: str, why: str, at: str) -> CascadeState:
        """Return the state with the mode that a person asks for.

        Raises:
            UsageError: no certificate is in force that the policy could serve under.
        """
        if mode == "enforce" and (self.in_force is None or self.alarm is not None):
            reason = "none was issued" if self.in_force is None else f"it was withdrawn: {self.alarm}"
            raise UsageError(f"{self.cascade} has no certificate in force ({reason}). Promote it: cascade promote")
        return self.changed(mode, by, why, at)

    def switched(self, killed: bool, by: str, why: str, at: str) -> CascadeState:
        """Return the state with the kill switch on or off."""
        return self.changed(self.mode, by, f"kill switch {'on' if killed else 'off'}: {why}", at, killed=killed)

    def dumps(self) -> str:
        """Return the state as JSON, without `version`, which the store keeps separately."""
        document = asdict(self)
        del document["version"]
        return json.dumps(document)

    @classmethod
    def loads(cls, text: str, version: int) -> CascadeState:
        """Return the state from the text of `dumps`."""
        return _READER.validate_python({**json.loads(text), "version": version})


_READER = TypeAdapter(CascadeState)


class Draw(NamedTuple):
    """A drawn request. It is recorded before its first call and never deleted.

    Attributes:
        trace_id: of its episode in the traces.
        cascade: the cascade's name.
        conversation: the name of its conversation; all turns of an observed one are drawn.
        turn: its name within the conversation.
        role: whether it may "fit" or "certify"; or "audit": the policy served, and pages show what came of it.
        drawn_s: when, in seconds since 1970.
        era: the cascade's, when it was drawn.
        certificate: of an audit, the id of the certificate that it is about.
        outcome: "missing" if a call made only for the record failed or the client left; that counts as a loss.
        why: why it is missing.
        look: the look that saw it as a certifying row.
        differs: of an audit, whether what was served differs from the guide's.
        e_value: the evidence after it; None until it is counted.
        off_path_nano_usd: the cost of the calls made only for the row; None if unknown.
        lost: the judgement by people: whether the differing answer is wrong and the guide's right. None without one.
        pair: the name under which its two answers are judged (`PairId.name`); None if they do not differ.
    """

    trace_id: str
    cascade: str
    conversation: str
    turn: str
    role: Role
    drawn_s: float
    era: int = 0
    certificate: str | None = None
    outcome: Outcome = "pending"
    why: str | None = None
    look: int | None = None
    differs: bool | None = None
    e_value: float | None = None
    off_path_nano_usd: int | None = None
    lost: bool | None = None
    pair: str | None = None


def harmless(right: bool | None, better: str | None, *, by_guide: bool) -> bool | None:
    """Return False if feedback shows that an answer other than the guide's loses nothing, else None.

    Feedback never shows a loss: that takes a judgement of both answers.

    Args:
        right: whether the answer served is right, if the client said so.
        better: the model that answered better, "equal" or "neither".
        by_guide: whether the guide's answer was served.

    >>> harmless(True, None, by_guide=False), harmless(False, None, by_guide=True), harmless(True, None, by_guide=True)
    (False, False, None)
    """
    settles = right is not None and right is not by_guide
    return False if settles or better == "neither" else None


def missed(row: Draw, losses: Mapping[str, bool], *, late: bool) -> bool | None:
    """Return whether an audit counts against a promise that people judge; None while they may still judge it.

    Args:
        row: the audit.
        losses: the reviewers' judgements, by the pair's name.
        late: whether the time for judgements is over.
    """
    if not row.differs:
        return row.differs
    verdicts = [lost for lost in (row.lost, losses.get(row.pair or "")) if lost is not None]
    return any(verdicts) if verdicts else True if late else None


def counted(
    state: CascadeState, waiting: Iterable[Draw], loses: Callable[[Draw], bool | None], now_s: float, at: str
) -> tuple[CascadeState, list[Draw]]:
    """Return the state after the audits that can be counted, and these audits with their verdict and the evidence.

    A conversation is one bet. It counts once it has ended, all its results are known and all that began before it have
    counted. So neither whether nor when it counts depends on a result. Those that wait are bet on at their lowest, in
    the same order, and the alarm is raised if that is enough (`Monitor.update`). An audit of which nobody can know
    whether it differs is passed over: a failure of the guide is no evidence.

    Args:
        state: the state.
        waiting: audits of the certificate in force, in the order in which they were drawn; none of a conversation that
            has counted.
        loses: whether an audit counts against the promise; None while that is unknown.
        now_s: the time, in seconds since 1970.
        at: the same, for the record.
    """
    monitor = state.monitor
    if monitor is None or state.mode != "enforce":
        return state, []
    conversations = defaultdict[str, list[Draw]](list)
    for audit in waiting:
        if audit.outcome == "pending" or audit.differs is not None:
            conversations[audit.conversation].append(audit)
    ahead, rows = None, list[Draw]()
    for conversation in islice(conversations.values(), _MOST_OPEN):
        audits = conversation[: monitor.turns]
        lost = [None if audit.outcome == "pending" else loses(audit) for audit in audits]
        full = len(audits) == monitor.turns or audits[-1].drawn_s + ENDS_S <= now_s
        bet = partial(Monitor.update, missed=lost.count(True), audits=len(lost), ended=full and None not in lost)
        if ahead is None and full and None not in lost:
            monitor = latest = bet(monitor)
            rows += [
                audit._replace(lost=verdict, e_value=monitor.e_value)
                for audit, verdict in zip(audits, lost, strict=True)
            ]
        else:
            ahead = latest = bet(ahead or monitor)
        if latest.alarmed:
            return state.alarmed(latest, at), rows
    return replace(state, monitor=monitor), rows


class Look(NamedTuple):
    """One look at certifying rows.

    Attributes:
        cascade: the cascade's name.
        look: k, from 1.
        by: who asked for it.
        opened_s: when it began, in seconds since 1970; rows that were drawn later have no part in it.
        level: the part of delta that it may spend.
        era: the cascade's when it began.
        tries: how many processes have begun it; all but the last were interrupted.
        verdict: "open" while it runs. One that broke off has spent its share, and is taken up again.
        page: the result, as plain JSON values.
    """

    cascade: str
    look: int
    by: str
    opened_s: float
    level: float
    era: int
    tries: int = 1
    verdict: Verdict = "open"
    page: Mapping[str, Any] = {}

    @property
    def at(self) -> str:
        """When it began, UTC, ISO 8601."""
        return datetime.fromtimestamp(self.opened_s, UTC).isoformat(timespec="seconds")


class Counts(NamedTuple):
    """Counts of a cascade's drawn rows, for its page and its plan.

    Attributes:
        pending, complete, missing: rows by their outcome.
        fit: settled rows of this era that may fit: those that do not certify, and those that a look has seen.
        certify: settled rows of this era that may still certify.
        conversations: their conversations, each with all of its turns.
        unknown: audits of the latest certificate of which nobody can know whether they differ; never counted.
        off_path_nano_usd: the known cost of calls made only for the rows.
        priced: the number of rows with a known cost.
    """

    pending: int = 0
    complete: int = 0
    missing: int = 0
    fit: int = 0
    certify: int = 0
    conversations: int = 0
    unknown: int = 0
    off_path_nano_usd: int = 0
    priced: int = 0
