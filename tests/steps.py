"""How much work a function does with a text, in steps and not in seconds.

A step is a character that a regular expression of `cascade` looks at, or a line of `cascade` that runs. The expressions
are walked as `re` walks them, by trying and going back, but for one thing: a number of repetitions counts as 8 where it
is more, so that what is bounded is seen to be bounded on short texts.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from re import _compiler, _parser  # type: ignore[attr-defined]
from typing import Any

import pytest

_MOST_REPEATED = 8
_MOST_STEPS = 1_000_000
_LONG, _SHORT = 240, 120
_METHODS = {"match", "fullmatch", "search", "findall", "split", "sub", "subn", "finditer"}

Next = Callable[[int], int]
"""Goes on at a place of the text; returns where the match ends, -1 where there is none."""


class Walker:
    """One regular expression, walked in Python. `steps` counts the characters it looked at."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern, self.steps, self.text = pattern.pattern, 0, ""
        parsed = _parser.parse(pattern.pattern, pattern.flags)
        self._state = parsed.state
        self._match = self._sequence(list(parsed), parsed.state.flags, lambda at: at)
        self._whole = self._sequence(list(parsed), parsed.state.flags, lambda at: at if at == len(self.text) else -1)

    def runs(self, text: str, at: int, method: str) -> Iterator[int]:
        """Yield where each match ends that a method of `re.Pattern` looks for."""
        self.text = text
        while at <= len(text):
            self.steps += 1
            end = (self._whole if method == "fullmatch" else self._match)(at)
            if method in {"match", "fullmatch"}:
                return
            if end >= 0:
                yield end
                if method == "search":
                    return
            at = max(end, at + 1)

    def _sequence(self, nodes: list[Any], flags: int, then: Next) -> Next:
        for node in reversed(nodes):
            then = self._node(node, flags, then)
        return then

    def _node(self, node: Any, flags: int, then: Next) -> Next:
        kind, value = str(node[0]), node[1]
        if kind in {"LITERAL", "NOT_LITERAL", "ANY", "IN"}:
            fits = self._fits(node, flags)
            return lambda at: then(at + 1) if fits(at) else -1
        if kind == "AT":
            place = _compiler.compile(_parser.SubPattern(self._state, [node]), flags)
            return lambda at: then(at) if place.match(self.text, at) else -1
        if kind == "BRANCH":
            ways = [self._sequence(list(way), flags, then) for way in value[1]]
            return lambda at: next((end for way in ways if (end := way(at)) >= 0), -1)
        if kind == "SUBPATTERN":
            _number, more, less, inner = value
            return self._sequence(list(inner), (flags | more) & ~less, then)
        if kind in {"ASSERT", "ASSERT_NOT"}:
            return self._assertion(kind == "ASSERT", value[0], value[1], flags, then)
        if kind in {"MAX_REPEAT", "MIN_REPEAT"}:
            return self._repeat(kind, *value, flags, then)
        raise AssertionError(kind)  # a construct that no pattern of the project has

    def _fits(self, node: Any, flags: int) -> Callable[[int], bool]:
        compiled, known = _compiler.compile(_parser.SubPattern(self._state, [node]), flags), dict[str, bool]()

        def fits(at: int) -> bool:
            self.steps += 1
            if self.steps > _MOST_STEPS:
                raise OverflowError(self._pattern)
            if at >= len(self.text):
                return False
            char = self.text[at]
            if char not in known:
                known[char] = compiled.match(char) is not None
            return known[char]

        return fits

    def _assertion(self, wanted: bool, direction: int, inner: Any, flags: int, then: Next) -> Next:
        alone, back = self._sequence(list(inner), flags, lambda at: at), inner.getwidth()[0] if direction < 0 else 0
        return lambda at: then(at) if (at >= back and alone(at - back) >= 0) is wanted else -1

    def _repeat(self, kind: str, least: Any, most: Any, inner: Any, flags: int, then: Next) -> Next:
        bounded = most is not _parser.MAXREPEAT
        low, high = min(int(least), _MOST_REPEATED), min(int(most), _MOST_REPEATED) if bounded else sys.maxsize
        if len(inner) == 1 and str(inner[0][0]) in {"LITERAL", "NOT_LITERAL", "ANY", "IN"}:
            return self._characters(kind, self._fits(inner[0], flags), low, high, then)
        counts, places = [0], [-1]

        def again(at: int) -> int:
            place, places[-1] = places[-1], at
            counts[-1] += 1
            try:
                return left(at) if at == place and counts[-1] >= low else tried(at)
            finally:
                counts[-1] -= 1
                places[-1] = place

        own = self._sequence(list(inner), flags, again)

        def tried(at: int) -> int:
            if counts[-1] < low:
                return own(at)
            if kind == "MIN_REPEAT":
                return end if (end := left(at)) >= 0 or counts[-1] >= high else own(at)
            return end if counts[-1] < high and (end := own(at)) >= 0 else left(at)

        def left(at: int) -> int:
            count, place = counts.pop(), places.pop()
            try:
                return then(at)
            finally:
                counts.append(count)
                places.append(place)

        def begun(at: int) -> int:
            counts.append(0)
            places.append(at)
            try:
                return tried(at)
            finally:
                counts.pop()
                places.pop()

        return begun

    def _characters(self, kind: str, fits: Callable[[int], bool], low: int, high: int, then: Next) -> Next:
        def few(at: int) -> int:
            count = 0
            while count < low or (end := then(at + count)) < 0:
                if count >= high or not fits(at + count):
                    return -1
                count += 1
            return end

        def many(at: int) -> int:
            count = 0
            while count < high and fits(at + count):
                count += 1
            for length in range(count, low - 1, -1):
                self.steps += 1
                if (end := then(at + length)) >= 0:
                    return end
            return -1

        return few if kind == "MIN_REPEAT" else many


_walker = functools.cache(Walker)


class Watched:
    """A regular expression that works as ever and whose steps are counted."""

    def __init__(self, pattern: re.Pattern[str], counter: Counter[str]) -> None:
        self._pattern, self._counter = pattern, counter

    @property
    def _walker(self) -> Walker:
        return _walker(self._pattern)

    def __getattr__(self, name: str) -> Any:
        plain = getattr(self._pattern, name)
        if name not in _METHODS:
            return plain

        def counted(*given: Any, **more: Any) -> Any:
            subject = given[name in {"sub", "subn"}] if len(given) > (name in {"sub", "subn"}) else more["string"]
            at = given[1] if len(given) > 1 and name not in {"sub", "subn", "split"} else 0
            if name == "finditer":
                return self._one_by_one(subject, at, plain(*given, **more))
            self._count(self._walker.runs(subject, at, name), sys.maxsize)
            return plain(*given, **more)

        return counted

    def _one_by_one(self, text: str, at: int, matches: Iterator[Any]) -> Iterator[Any]:
        runs = self._walker.runs(text, at, "finditer")
        while True:
            self._count(runs, 1)  # first, since what is exponential would never come back
            match = next(matches, None)
            if match is None:
                return
            yield match

    def _count(self, runs: Iterator[int], most: int) -> None:
        tracer, self._walker.steps = sys.gettrace(), 0
        sys.settrace(None)
        for _ in zip(range(most), runs, strict=False):
            pass
        sys.settrace(tracer)
        self._counter[self._pattern.pattern] += self._walker.steps


def _watched(value: Any, counter: Counter[str]) -> Any:
    """Return a value with its regular expressions watched; itself where it holds none."""
    if isinstance(value, re.Pattern):
        return Watched(value, counter) if isinstance(value.pattern, str) else value
    if isinstance(value, tuple | list):
        inner = [_watched(part, counter) for part in value]
        if all(new is old for new, old in zip(inner, value, strict=True)):
            return value
        return type(value)(*inner) if hasattr(value, "_fields") else type(value)(inner)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {part.name: getattr(value, part.name) for part in dataclasses.fields(value) if part.init}
        new = {name: _watched(part, counter) for name, part in fields.items() if isinstance(part, re.Pattern)}
        return dataclasses.replace(value, **new) if new else value
    return value


@contextmanager
def watching() -> Iterator[Counter[str]]:
    """Count the steps of every regular expression that a module of `cascade` holds, and the lines each function runs."""
    counter: Counter[str] = Counter()

    def traced(frame: Any, event: str, _given: Any) -> Any:
        if not frame.f_globals.get("__name__", "").startswith("cascade."):
            return None
        if event == "line":
            counter[f"{frame.f_globals['__name__']}.{frame.f_code.co_name}"] += 1
        return traced

    limit, before = sys.getrecursionlimit(), sys.gettrace()
    with pytest.MonkeyPatch.context() as patch:
        for name, module in list(sys.modules.items()):
            if name.startswith("cascade."):
                for attribute, value in list(vars(module).items()):
                    new = _watched(value, counter) if isinstance(value, re.Pattern | tuple | list) else value
                    if new is not value:
                        patch.setattr(module, attribute, new)
        sys.setrecursionlimit(50_000)
        sys.settrace(traced)
        try:
            yield counter
        finally:
            sys.settrace(before)
            sys.setrecursionlimit(limit)


def superlinear(work: Callable[[str], object], piece: str, end: str = "!") -> list[str]:
    """Return what takes more than three times the steps for twice the text, by name: linear is 2, quadratic 4."""
    counts = list[Counter[str]]()
    with watching() as counter:
        for chars in (_SHORT, _LONG):
            counter.clear()
            try:
                work(piece * (chars // len(piece)) + end)
            except OverflowError as error:
                return [str(error)]
            counts.append(Counter(counter))
    short, long = counts
    return [name for name, steps in long.items() if steps > 2 * _LONG and steps > 3 * short[name]]
