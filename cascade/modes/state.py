"""The state of a cascade in service: its mode, the certificate in force, the audits, when the next look is due.

Values are immutable. `ModeStore` stores them; every change is a method here that returns the next value.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import Any, Literal, NamedTuple, TypeAlias

from pydantic import TypeAdapter

from cascade.config.schema import ModesConfig
from cascade.conformal.binomial import most_losses
from cascade.conformal.monitor import Monitor
from cascade.errors import UsageError
from cascade.modes.draws import Role, look_level

Mode = Literal["observe", "enforce", "fallback"]
Outcome = Literal["pending", "complete", "missing"]
Verdict = Literal["open", "promoted", "refused"]
Signs: TypeAlias = Mapping[str, tuple[str, ...]]
"""What replies report about models: the values of each sign, such as "small answers as"."""
ENDS_S = 86_400.0
"""Seconds after which a conversation counts as ended: since its last audit, or its first turn if it is to certify."""
_MOST_OPEN = 5_000
"""The most conversations that are counted, or bet on, at a time."""
_CHANGES = 100
"""The most changes that are kept, the latest ones."""
LEAST_FIT = 50
"""The fewest rows that a policy is fitted on."""
_SIGNS = 50
"""The most names, and the most builds, of a model that are kept: some servers report a new one with each reply."""


def iso(at_s: float) -> str:
    """Return a time in seconds since 1970 as UTC, ISO 8601, to the second."""
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds")


class Change(NamedTuple):
    """A change of a mode.

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


@dataclass(frozen=True, slots=True)
class InForce:
    """The certificate that a cascade serves under.

    Attributes:
        look: the look that issued it.
        risk: the share of requests that may differ from the guide's answer.
        level: the part of delta at which it was tested.
        n: the number of conversations that certified it.
        comparator: the rule that says whether two answers are the same.
        turns: the most audits of one conversation that count.
        signs: what replies to the certifying requests reported about models.
    """

    certificate: str
    look: int
    risk: float
    level: float
    n: int
    comparator: str
    turns: int = 1
    signs: Signs = field(default_factory=dict)


def signs_of(model: str, echoed: str | None, build: str | None, deployment: str | None = None) -> dict[str, str]:
    """Return the name and the build that a reply reports for its model at a deployment, without unknown ones."""
    whose = model if deployment is None else f"{model} at {deployment}"
    signs = {f"{whose} answers as": echoed, f"{whose} answers from the build": build}
    return {sign: value for sign, value in signs.items() if value is not None}


def audits_each(rate: float, longest: int) -> int:
    """Return a number of audited turns that a conversation of at most `longest` hardly ever exceeds at a rate."""
    audits = rate * longest
    return max(1, min(longest, math.ceil(audits + 2 * math.sqrt(audits))))


@dataclass(frozen=True, slots=True)
class CascadeState:
    """The state of one cascade.

    Attributes:
        mode: "observe": the guide serves; "enforce": the policy serves; "fallback": the guide serves after an alarm.
        version: grows with each change.
        looks: looks at certifying rows so far, including refused ones.
        spent: the part of delta that the looks have spent, each by the delta set at the time.
        in_force: the certificate in force; in "fallback", the last one.
        monitor: the certificate's monitor, with the audits so far.
        alarm: why the certificate was withdrawn, in words.
        changes: the latest changes, the oldest first.
        era: how often a certificate was withdrawn, a model changed while the guide served, or a server began with
            another configuration. Rows that were drawn in an earlier era neither fit nor certify.
        signs: what replies have reported about models: the values of each sign, such as "small answers as".
        observes: the SHA-256 of the observed cascade, as certificates describe it; None if it was not served yet.
    """

    cascade: str
    mode: Mode = "observe"
    version: int = 0
    looks: int = 0
    spent: float = 0.0
    in_force: InForce | None = None
    monitor: Monitor | None = None
    alarm: str | None = None
    changes: tuple[Change, ...] = ()
    era: int = 0
    signs: Signs = field(default_factory=dict)
    observes: str | None = None

    def next_level(self, delta: float) -> float:
        """Return the part of delta that the next look may spend."""
        return look_level(delta, self.looks + 1)

    def looked(self, delta: float) -> CascadeState:
        """Return the state after one more look has begun.

        All looks together spend at most the largest delta that was ever set.
        """
        return replace(self, looks=self.looks + 1, spent=self.spent + self.next_level(delta))

    def changed(self, mode: Mode, by: str, why: str, at: str, **others: Any) -> CascadeState:
        """Return the state with a new (or the same) mode, and a record of the change."""
        changes = (*self.changes, Change(at, by, mode, why))[-_CHANGES:]
        return replace(self, mode=mode, changes=changes, **others)

    def promoted(self, certificate: InForce, level: float, at: str) -> CascadeState:
        """Return the state in which a new certificate is in force.

        `level` bounds the probability of a false alarm over all certificates; each look may spend a part of it.
        """
        false_alarm = look_level(level, certificate.look)
        monitor = Monitor.start(risk=certificate.risk, level=false_alarm, turns=certificate.turns)
        why = f"look {certificate.look} issued the certificate {certificate.certificate}"
        return self.changed("enforce", "cascade promote", why, at, in_force=certificate, monitor=monitor, alarm=None)

    def alarmed(self, monitor: Monitor, at: str) -> CascadeState:
        """Return the state in which the certificate is withdrawn, since the monitor of its audits alarms."""
        assert self.in_force is not None  # noqa: S101 - the monitor is the certificate's
        why = (
            f"in {monitor.misses} of {monitor.audits} audits the served answer differed from the guide's by the "
            f"comparator {self.in_force.comparator}, and at most {self.in_force.risk:.0%} were promised: the "
            f"evidence is {monitor.e_value:.3g}, and {1 / monitor.level:.3g} raises the alarm"
        )
        return self.withdrawn(why, "audits", at, monitor=monitor)

    def replied(
        self, model: str, echoed: str | None, build: str | None, deployment: str | None, at: str
    ) -> CascadeState:
        """Return the state after a model's reply, which may show that the model changed; `self` if nothing is new.

        After a change under a certificate, the guide serves. Without a certificate, a new era begins: one from
        requests before and after the change would not hold now. `echoed` and `build` are what the reply
        reports, None if it does not; `deployment` is the one of several that replied.

        Each deployment has its own names and builds. A deployment that no certifying request reached must report
        what the model reported elsewhere.
        """
        reply, elsewhere = signs_of(model, echoed, build, deployment), signs_of(model, echoed, build)
        certified = self.in_force if self.mode == "enforce" else None
        known = self.signs if certified is None else certified.signs  # a build of another era was not certified
        more = {
            sign: (*before, value)[-_SIGNS:]
            for sign, value in reply.items()
            if value not in (before := self.signs.get(sign, ()))
        }
        state = replace(self, signs={**self.signs, **more}) if more else self
        changes = [
            f"{sign} {value} now, and {', '.join(earlier)} before"
            for (sign, value), anywhere in zip(reply.items(), elsewhere, strict=True)
            if (earlier := known.get(sign) or known.get(anywhere)) and value not in earlier
        ]
        if not changes:
            return state
        if certified is not None:
            return state.withdrawn(changes[0], "a reply", at)
        why = f"{changes[0]}: requests that were observed before neither fit nor certify"
        return state.changed(self.mode, "a reply", why, at, era=self.era + 1)

    def observing(self, cascade_sha256: str, at: str) -> CascadeState:
        """Return the state after a server begins to observe a cascade; a different configuration begins an era."""
        if self.observes in (None, cascade_sha256):
            return replace(self, observes=cascade_sha256)
        reason = "the configuration changed: requests that were observed before neither fit nor certify"
        return self.changed(self.mode, "serve", reason, at, era=self.era + 1, observes=cascade_sha256)

    def withdrawn(self, why: str, by: str, at: str, **others: Any) -> CascadeState:
        """Return the state in which the certificate is withdrawn, and the guide serves."""
        return self.changed("fallback", by, why, at, alarm=why, era=self.era + 1, **others)

    def set_mode(self, mode: Mode, by: str, why: str, at: str) -> CascadeState:
        """Return the state with the mode that a person sets.

        Raises UsageError for "enforce" if no certificate is in force.
        """
        if mode == "enforce" and (self.in_force is None or self.alarm is not None):
            reason = "none was issued" if self.in_force is None else f"it was withdrawn: {self.alarm}"
            raise UsageError(f"{self.cascade} has no certificate in force ({reason}). Promote it: cascade promote")
        return self.changed(mode, by, why, at)

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
        conversation: the name of its conversation; all turns of an observed one are drawn.
        turn: its name within the conversation.
        role: whether it may "fit" or "certify"; or "audit": the policy served, and pages show the result.
        drawn_s: when it was drawn, in seconds since 1970.
        era: the cascade's era when it was drawn.
        certificate: for an audit, the id of the certificate that it is about.
        outcome: "missing" if a later call failed, the client left or the server stopped; a loss if the row certifies.
        look: the look that used it as a certifying row.
        differs: for an audit, whether the served answer differs from the guide's; None if unknown.
        e_value: the evidence after this audit; None until it is counted.
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
    look: int | None = None
    differs: bool | None = None
    e_value: float | None = None


def counted(state: CascadeState, waiting: Iterable[Draw], now_s: float, at: str) -> tuple[CascadeState, list[Draw]]:
    """Return the state after the audits that can be counted, and these audits with the evidence.

    A conversation is one bet. It counts once it has ended, all its results are known and all that began before it
    have counted. So neither whether nor when it counts depends on a result. On those that wait, the bets that end
    lowest are made in the same order, and the alarm is raised if they suffice (`Monitor.update`). An audit that
    ended without a result is skipped: a failure of the guide is no evidence. `waiting` has audits of the
    certificate in force in the order of their draws, none of a conversation that has counted.
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
        known = [audit.differs for audit in audits if audit.differs is not None]
        full = len(audits) == monitor.turns or audits[-1].drawn_s + ENDS_S <= now_s
        ended = full and len(known) == len(audits)
        bet = partial(Monitor.update, missed=sum(known), audits=len(known), ended=ended)
        if ahead is None and ended:
            monitor = latest = bet(monitor)
            rows += [audit._replace(e_value=monitor.e_value) for audit in audits]
        else:
            ahead = latest = bet(ahead or monitor)
        if latest.alarmed:
            return state.alarmed(latest, at), rows
    return replace(state, monitor=monitor), rows


class Look(NamedTuple):
    """One look at certifying rows.

    Attributes:
        look: k, from 1.
        opened_s: when it began, in seconds since 1970; rows that were drawn later have no part in it.
        until_s: when another process may resume it, since its own must have ended by then.
        level: the part of delta that it may spend.
        era: the cascade's era when it began.
        tries: how many processes have begun it; all but the last were interrupted.
        verdict: "open" until it is closed. An interrupted look has spent its part of delta, and is resumed.
        page: the result, as plain JSON values.
    """

    cascade: str
    look: int
    opened_s: float
    until_s: float
    level: float
    era: int
    tries: int = 1
    verdict: Verdict = "open"
    page: Mapping[str, Any] = {}

    @property
    def at(self) -> str:
        """When it began, UTC, ISO 8601."""
        return iso(self.opened_s)


class Counts(NamedTuple):
    """Counts of a cascade's drawn rows.

    Attributes:
        fit: settled rows of this era that may fit: those that do not certify, and those that a look has used.
        conversations: conversations that may certify, each with all of its turns.
        pending: rows without an outcome yet, which hold up all conversations that began later.
        since_s: when the first pending row was drawn, in seconds since 1970; None if there is none.
        until_s: when the last of them counts as missing, if their processes were killed.
    """

    fit: int = 0
    conversations: int = 0
    pending: int = 0
    since_s: float | None = None
    until_s: float | None = None

    @property
    def hindrance(self) -> str | None:
        """What keeps further conversations out of a look, as a message; None if nothing does."""
        if self.since_s is None or self.until_s is None:
            return None
        since, until = iso(self.since_s), iso(self.until_s)
        return (
            f"Drawn requests without an outcome yet: {self.pending:,}, the first of {since}. Conversations that began "
            f"later wait for them. Those left by a killed process count as missing from {until} on."
        )


class NextLook(NamedTuple):
    """What the next look needs, and the counts so far.

    Attributes:
        look: its number.
        needed: how many certifying conversations it needs (`conversations_for`).
        wait: about how many more conversations have to be served until it is due, at the rate of the draws.
        counts: the counts so far.
    """

    look: int
    needed: int
    wait: int
    counts: Counts

    @property
    def is_ready(self) -> bool:
        """Whether the look is due."""
        return self.wait == 0

    def describe(self) -> str:
        """Describe the look in a sentence."""
        lack = "" if self.is_ready else f", so about {self.wait} more conversations have to be served"
        return (
            f"look {self.look} needs {self.needed} certifying conversations and {LEAST_FIT} rows to fit; there are "
            f"{self.counts.conversations} and {self.counts.fit}{lack}"
        )


def next_look(state: CascadeState, counts: Counts, modes: ModesConfig) -> NextLook:
    """Return what a cascade's next look needs.

    No outcome of a row that may certify is read, so the time of a look does not depend on these outcomes.
    """
    needed = conversations_for(modes.risk, state.next_level(modes.delta))
    certify, fit = modes.share * modes.certify, modes.share * (1 - modes.certify)
    waits = (needed - counts.conversations) / certify, (LEAST_FIT - counts.fit) / fit
    return NextLook(state.looks + 1, needed, max(0, *map(math.ceil, waits)), counts)


def conversations_for(risk: float, level: float) -> int:
    """Return about how many conversations suffice to certify if half of the promised share of them is lost.

    >>> conversations_for(0.1, 0.05)
    116
    """
    count = math.ceil(math.log(level) / math.log1p(-risk))  # enough if none is lost
    while (most_losses(count, risk, level) or 0) < risk * count / 2:
        count += max(1, count // 20)
    return count
