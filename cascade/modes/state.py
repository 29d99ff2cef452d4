"""The state of a cascade in service: its mode, the certificate in force, the audits. Values are frozen.

`ModeStore` keeps them; every change is a method here that returns the next value.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple

from pydantic import TypeAdapter

from cascade.conformal.monitor import Monitor
from cascade.errors import UsageError
from cascade.modes.draws import Role, look_level

Mode = Literal["observe", "enforce", "fallback"]
Source = Literal["observe", "audit"]
Outcome = Literal["pending", "complete", "missing"]
Verdict = Literal["open", "promoted", "refused"]
BY_PEOPLE: Final = "regret"
"""The promise that people's judgements decide."""
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


@dataclass(frozen=True, slots=True)
class Signs:
    """The names and builds that replies report of their models.

    Attributes:
        models: by model the names in its replies.
        builds: by model the fingerprints in its replies.
    """

    models: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    builds: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def updated(self, model: str, echoed: str | None, build: str | None, *, when: str) -> str | None:
        """Return a message if a reply shows that a model has changed, else None."""
        for known, now, what in ((self.models, echoed, "as"), (self.builds, build, "from the build")):
            before = known.get(model)
            if before and now is not None and now not in before:
                return f"{model} now answers {what} {now}, and {when} {what} {', '.join(before)}"
        return None

    def knows(self, model: str, echoed: str | None, build: str | None) -> bool:
        """Whether the name and build in a reply are already known."""
        both = ((self.models, echoed), (self.builds, build))
        return all(now is None or now in known.get(model, ()) for known, now in both)

    def joined(self, model: str, echoed: str | None, build: str | None) -> Signs:
        """Return these signs with those of a reply added."""
        return Signs(_joined(self.models, model, echoed), _joined(self.builds, model, build))


def _joined(known: Mapping[str, tuple[str, ...]], model: str, now: str | None) -> Mapping[str, tuple[str, ...]]:
    before = known.get(model, ())
    return known if now is None or now in before else {**known, model: (*before, now)[-_SIGNS:]}


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
        models: by model the names in its replies; another name voids the certificate.
        builds: by model the fingerprints in its replies; another one voids it too.
        promise: its kind, "agreement" or "regret".
        longest: the number of turns of the longest conversation that was observed.
    """

    certificate: str
    look: int
    risk: float
    level: float
    n: int
    comparator: str
    models: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    builds: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    promise: str = "agreement"
    longest: int = 1

    def audits_each(self, rate: float) -> int:
        """Return how many turns of a conversation are audited at a rate, hardly ever more."""
        audits = rate * self.longest
        return max(1, min(self.longest, math.ceil(audits + 2 * math.sqrt(audits))))

    @property
    def by_people(self) -> bool:
        """Whether people's later judgements decide what counts against it."""
        return self.promise == BY_PEOPLE

    @property
    def broken(self) -> str:
        """The event whose share is at most `risk`, in words."""
        if self.by_people:
            return "answered wrongly where the guide is right, or differently with nobody to judge it,"
        return "served otherwise than the guide would"

    def updated(self, model: str, echoed: str | None, build: str | None) -> str | None:
        """Return how a reply shows that a model has changed since the certificate was made; None if it does not."""
        return Signs(self.models, self.builds).updated(model, echoed, build, when="while it was certified")


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
        rate: the share of requests that is drawn while observing, as it was last set; None before.
        rate_set_s: when that was, in seconds since 1970.
        in_force: the certificate in force; the last one in "fallback".
        monitor: its monitor, with the audits so far.
        alarm: why it was withdrawn, in words.
        changes: the latest changes, the oldest first.
        era: how often a certificate was withdrawn, or a model changed while the guide served. Rows that were drawn in
            an earlier era neither fit nor certify, since the models may have changed.
        signs: the names and builds that replies have reported, in any era.
    """

    cascade: str
    mode: Mode = "observe"
    version: int = 0
    killed: bool = False
    looks: int = 0
    spent: float = 0.0
    rate: float | None = None
    rate_set_s: float = 0.0
    in_force: InForce | None = None
    monitor: Monitor | None = None
    alarm: str | None = None
    changes: tuple[Change, ...] = ()
    era: int = 0
    signs: Signs = field(default_factory=Signs)

    @property
    def serves_policy(self) -> bool:
        """Whether the policy serves."""
        return self.mode == "enforce" and not self.killed and self.in_force is not None

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
        made = (*self.changes, Change(at, by, mode, why))[-_CHANGES:]
        return replace(self, mode=mode, changes=made, **others)

    def promoted(self, held: InForce, monitor: Monitor, by: str, at: str) -> CascadeState:
        """Return the state in which a new certificate is in force."""
        why = f"look {held.look} issued the certificate {held.certificate}"
        return self.changed("enforce", by, why, at, in_force=held, monitor=monitor, alarm=None)

    def audited(self, missed: bool, at: str, before: tuple[int, int] = (0, 0)) -> CascadeState:
        """Return the state after one more audit of the certificate in force; an alarm ends its service.

        `before` has the earlier audits of the same conversation, and how many of them were missed.
        """
        if self.monitor is None or self.in_force is None or self.mode != "enforce":
            return self
        after = self.monitor.update(missed, before)
        if not after.alarmed:
            return replace(self, monitor=after)
        risk = self.in_force.risk
        said = (
            f"audits found {after.misses} of {after.audits} requests {self.in_force.broken.rstrip(',')}, and at most "
            f"{risk:.0%} were promised"
        )
        if after.misses <= risk * after.audits:  # the traffic changed after many audits without fault
            said += (
                f": the share of all audits is within that, but so many of the latest differ that the evidence is "
                f"{after.e_value:.3g}"
            )
        return self.withdrawn(said, "audits", at, monitor=after)

    def replied(self, model: str, echoed: str | None, build: str | None, at: str) -> CascadeState:
        """Return the state after a reply of a model, which may have changed.

        Under a certificate the guide serves from then on. Without one a new era begins: a certificate from requests
        before and after the change would not hold now.
        """
        joined = replace(self, signs=self.signs.joined(model, echoed, build))
        if self.mode == "enforce" and self.in_force is not None:
            told = self.in_force.updated(model, echoed, build)
            return joined if told is None else joined.withdrawn(told, "a reply", at)
        told = self.signs.updated(model, echoed, build, when="before")
        if told is None:
            return joined
        why = f"{told}: requests that were observed before neither fit nor certify"
        return joined.changed(self.mode, "a reply", why, at, era=self.era + 1)

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
        role: whether it may fit or certify.
        source: "observe", or "audit" while a policy serves.
        rate: the probability with which it was drawn.
        drawn_s: when, in seconds since 1970.
        outcome: "missing" if a call made only for the record failed or the client left; that counts as a loss.
        why: why it is missing.
        look: the look that saw it as a certifying row.
        certificate: of an audit, the id of the certificate that it is about.
        differs: of an audit, whether what was served differs from the guide's.
        counted: whether the e-process has had it.
        e_value: the evidence after it.
        off_path_nano_usd: the cost of the calls made only for the row; None if unknown.
        era: the cascade's, when it was drawn.
        lost: the judgement by people: whether the differing answer is wrong and the guide's right. None without one.
        pair: the name under which its two answers are judged (`pair_name`); None if they do not differ.
    """

    trace_id: str
    cascade: str
    conversation: str
    turn: str
    role: Role
    source: Source
    rate: float
    drawn_s: float
    outcome: Outcome = "pending"
    why: str | None = None
    look: int | None = None
    certificate: str | None = None
    differs: bool | None = None
    counted: bool = False
    e_value: float | None = None
    off_path_nano_usd: int | None = None
    era: int = 0
    lost: bool | None = None
    pair: str | None = None


def pair_name(question: str, output: str, reference: str) -> str:
    """Return the name under which two answers to a question are judged, from their digests (`review.pairs.PairId`)."""
    return f"{question}/{output}/{reference}"


class Opened(NamedTuple):
    """A look that has begun, for the process that holds the lease.

    Attributes:
        look: k, from 1.
        level: the part of delta that it may spend.
        certifying: the rows of whole conversations that no earlier look has seen, in the order of the draws.
        opened_s: when it began, in seconds since 1970; rows that were drawn later have no part in it.
        tries: how many processes have begun it; all but the last were interrupted.
        era: the cascade's when it began.
    """

    look: int
    level: float
    certifying: list[Draw]
    opened_s: float
    tries: int
    era: int


class Look(NamedTuple):
    """One look at certifying rows, with its arithmetic.

    Attributes:
        cascade: the cascade's name.
        look: k, from 1.
        at: when it began, UTC, ISO 8601.
        by: who asked for it.
        verdict: "open" while it runs. One that broke off has spent its share, and is taken up again.
        page: the result, as plain JSON values (`modes.look.Found`).
    """

    cascade: str
    look: int
    at: str
    by: str
    verdict: Verdict = "open"
    page: Mapping[str, Any] = {}


class Counts(NamedTuple):
    """Counts of a cascade's drawn rows, for its page and its plan.

    Attributes:
        pending, complete, missing: rows by their outcome.
        fit: settled rows of this era that may fit: those drawn for it, and those that a look has seen.
        certify: settled rows of this era that may still certify.
        conversations: their conversations, each with all of its turns.
        audits, differing: audits of the latest certificate that the e-process counted, and those that differ.
        unknown: its audits of which nobody can know whether they differ, as where the guide failed; never counted.
        requests: how many requests there were, by the rates of the draws, to the nearest whole number.
        first_s: when the first row was drawn; None without any.
        off_path_nano_usd: the known cost of calls made only for the rows.
        priced: the number of rows with a known cost.
    """

    pending: int = 0
    complete: int = 0
    missing: int = 0
    fit: int = 0
    certify: int = 0
    conversations: int = 0
    audits: int = 0
    differing: int = 0
    unknown: int = 0
    requests: float = 0.0
    first_s: float | None = None
    off_path_nano_usd: int = 0
    priced: int = 0

    @property
    def row_nano_usd(self) -> float | None:
        """The mean cost of a row's extra calls, over rows of known cost; None without any."""
        return self.off_path_nano_usd / self.priced if self.priced else None
