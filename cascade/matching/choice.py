"""Multiple choice: which option an answer names, by its letter or by its text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from cascade.matching.base import RIGHT, UNKNOWN, WRONG, Verdict, accepted
from cascade.matching.reading import clean, stated
from cascade.text import normalize_answer

DEFAULT_LETTERS = "ABCDEFGHIJ"
"""The options of the public sets have two to ten letters (MMLU 4, MMLU-Pro 10)."""


class Option(NamedTuple):
    """An option as written: its letter, its normalised text, or both."""

    letter: str | None = None
    text: str | None = None


def read_option(plain: str, letters: str = DEFAULT_LETTERS) -> Option:
    """Return the option that a cleaned text names: "B", "(b)", "B. Vienna" or "Vienna".

    >>> read_option("(b) Vienna"), read_option("Vienna")
    (Option(letter='B', text='vienna'), Option(letter=None, text='vienna'))
    """
    bare = plain_letters(plain) or plain
    found = _patterns(letters).option.match(bare)
    text = bare[found.end() :] if found else bare
    return Option(_named(found) if found else None, normalize_answer(text) if text.strip() else None)


def named_letters(said: str, letters: str = DEFAULT_LETTERS) -> set[str]:
    """Return the letters of the options that a cleaned answer names, without those that it rules out.

    Letters that are stated as the answer count, and a letter at its start; else a letter at its start, with letters
    that are marked as options on the same line or start another line; else those in parentheses; else capitals among
    words that only introduce them.

    >>> sorted(named_letters("A is tempting, but the answer is (C)")), sorted(named_letters("not A but B"))
    (['C'], ['B'])
    >>> named_letters("Vitamin C")
    set()
    """
    patterns = _patterns(letters)
    part = plain_letters(stated(said))
    lines = part.split("\n")
    everywhere = _read(plain_letters(said), patterns)
    here = everywhere if part == plain_letters(said) else _read(part, patterns)
    claimed = {one.letter for one in everywhere.named if one.claimed}
    opening = _open(lines[:1], patterns) - everywhere.ruled_out
    if claimed:
        return claimed | opening
    if opening:
        marked = {one.letter for one in _read(lines[0], patterns).named if one.marked or one.joined}
        return opening | marked | _open(lines[1:], patterns)
    marked = {one.letter for one in here.named if one.marked}
    if marked or not here.words <= _FILLERS:
        return marked
    return {one.letter for one in here.named}


_NO_MARKUP = str.maketrans(dict.fromkeys("*_`$", ""))
_COMMANDS = re.compile(r"\\(?:text|math)[a-z]{0,8}\{|[{}]")


def plain_letters(text: str) -> str:
    r"""Return a text without the marks that set its letters in bold or in a formula.

    >>> plain_letters(r"**B**"), plain_letters(r"\text{(B)}")
    ('B', '(B)')
    """
    return _COMMANDS.sub("", text).translate(_NO_MARKUP).strip()


class _Patterns(NamedTuple):
    """How the letters of one set of options look.

    `option`: at the start of a line. `token`: a marked letter, a bare one, a word, or a sign.
    """

    option: re.Pattern[str]
    token: re.Pattern[str]


@lru_cache(maxsize=16)
def _patterns(letters: str) -> _Patterns:
    capital, any_case = f"[{letters}]", f"[{letters}{letters.lower()}]"
    boxed = rf"[(\[] ?(?P<boxed>{any_case}) ?[)\]]"
    closed = rf"(?P<closed>{any_case})(?:[).:](?=\s|$)|\s*$)"
    option = rf"(?:{boxed}[.:]?|{closed}|(?P<led>{capital})(?=[,;])|(?P<dashed>{capital}) ?- )\s*"
    # A bare letter is no initial (J.S.), no part of a name (B-flat, C++), no possessive.
    bare = rf"(?<![\w'.])(?<!\w\w-)(?P<bare>{any_case})(?!\w|['+#]|\.\w|-\w\w)"
    token = rf"{boxed}|(?<![\w'(])(?P<closed>{any_case})\)|{bare}|(?P<word>\w+(?:'\w+)?)|(?P<sign>\n|[^\w\s])"
    return _Patterns(re.compile(option), re.compile(token))


def _named(found: re.Match[str]) -> str:
    groups = found.groupdict()
    return next(groups[name] for name in ("boxed", "closed", "led", "dashed", "bare") if groups.get(name)).upper()


def _open(lines: list[str], patterns: _Patterns) -> set[str]:
    return {_named(found) for line in lines if (found := patterns.option.match(line))}


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_JOINERS = _words("or and nor , / & + -")
_CLAIMS = _words("answer option choice choose chose pick select letter correct")
_DENIALS = _words("not never neither except unlike isn't wasn't can't cannot couldn't don't doesn't instead than")
_LINKS = _words(
    "is was be would should must will the option choice letter one clearly definitely probably likely maybe therefore "
    "thus so then with either both of think believe it it's that : = >"
)
_PREDICATES = _words("is are was were seems looks isn't aren't wasn't")
_WRONGS = _words("not wrong incorrect false tempting impossible out isn't aren't wasn't")
_RIGHTS = _words("correct right best answer true")
_FILLERS = _CLAIMS | _DENIALS | _LINKS | _PREDICATES | _WRONGS | _RIGHTS | _JOINERS
_FILLERS |= _words("i i'm my final say guess go its this but rather because sure course hence to your")
_PREDICATE_WORDS = 4
_AFTER_A = _JOINERS | _PREDICATES | {"because", "since", "as", "but", "for"}
"""What may follow the letter A or I; before any other word "A" is an article and "I" a person."""


@dataclass(slots=True)
class _Letter:
    letter: str
    marked: bool
    claimed: bool
    denied: bool
    joined: bool


class _Reading(NamedTuple):
    named: list[_Letter]
    ruled_out: set[str]
    words: set[str]


class _Token(NamedTuple):
    """A word in lower case or a sign; or an option's letter, then `letter` holds it."""

    word: str
    letter: str | None = None
    marked: bool = False


def _tokens(text: str, patterns: _Patterns) -> list[_Token]:
    found = list(patterns.token.finditer(text))
    tokens = []
    for at, one in enumerate(found):
        following = (found[at + 1]["word"] or found[at + 1]["bare"] or "").lower() if at + 1 < len(found) else ""
        if one["boxed"] or one["closed"]:
            tokens.append(_Token("", _named(one), marked=True))
        elif one["bare"] and (one["bare"] not in "AIai" or not following or following in _AFTER_A):
            tokens.append(_Token(one["bare"], one["bare"].upper()))
        else:
            tokens.append(_Token(one[0].lower()))
    return tokens


def _read(text: str, patterns: _Patterns) -> _Reading:
    """Read an answer once from left to right: the words just before a letter decide its role."""
    tokens = _tokens(text, patterns)
    letters: list[_Letter] = []
    group: list[_Letter] = []  # the letters that are joined to the last one
    claiming = denying = False
    for at, token in enumerate(tokens):
        if token.letter is not None:
            if token.marked or claiming or token.word.isupper() or group:
                group.append(_Letter(token.letter, token.marked, claiming, denying, bool(group)))
        elif not (group and token.word in _JOINERS):
            if group:
                letters += _with_predicate(group, tokens[at : at + _PREDICATE_WORDS])
                group, claiming, denying = [], False, False
            linked = token.word in _LINKS
            denying = token.word in _DENIALS or (denying and linked)
            claiming = token.word in _CLAIMS or (claiming and (linked or denying))
    letters += group
    named = [one for one in letters if not one.denied]
    words = {token.word for token in tokens if token.letter is None and token.word.isalnum()}
    return _Reading(named, {one.letter for one in letters if one.denied}, words)


def _with_predicate(group: list[_Letter], behind: list[_Token]) -> Iterator[_Letter]:
    """Yield joined letters with the role from the words after them: "A and B are wrong", "C is correct"."""
    words = {token.word for token in behind}
    said = bool(behind) and behind[0].word in _PREDICATES
    for one in group:
        one.denied = one.denied or (said and bool(words & _WRONGS))
        one.claimed = one.claimed or (said and bool(words & _RIGHTS))
        yield one


@dataclass(frozen=True, slots=True)
class ChoiceMatcher:
    """The letter of an option, in any usual form, or the option's text.

    Attributes:
        letters: the letters of the options.

    If the accepted answers have a letter and a text ("B", "Vienna"), the letter decides; an answer without a letter is
    right if it is the text. An answer that names several options is wrong. If the accepted answers have no letter and
    the answer is only a letter, its truth is unknown.

    >>> ChoiceMatcher().matches("The answer is (b).", ["B", "Vienna"]).correct
    True
    >>> ChoiceMatcher().matches("A or B", ["B"]).correct
    False
    """

    letters: str = DEFAULT_LETTERS

    def matches(self, answer: str, gold: Sequence[str]) -> Verdict:
        """Return whether the answer names the accepted option."""
        golds = [read_option(clean(one) or "", self.letters) for one in accepted(gold)]
        wanted = {one.letter for one in golds if one.letter}
        texts = {one.text for one in golds if one.text} | _whole(accepted(gold), golds)
        if not wanted and not texts:
            return UNKNOWN
        said = clean(answer)
        if not said:
            return WRONG
        if normalize_answer(said) in texts:
            return RIGHT
        return self._by_letter(said, wanted, texts)

    def _by_letter(self, said: str, wanted: set[str], texts: set[str]) -> Verdict:
        part = stated(said)
        named = named_letters(said, self.letters)
        if not named:
            opened = Option(part[0], normalize_answer(part[1:])) if part[0] in self.letters else Option()
            if opened.text in texts:  # "B Vienna": without the text nobody knew that the B is a letter
                return Verdict(not wanted or opened.letter in wanted)
            return Verdict(normalize_answer(part) in texts)
        if wanted:
            return Verdict(len(named) == 1 and named <= wanted)
        behind = read_option(part, self.letters).text
        return RIGHT if behind in texts else WRONG if behind else UNKNOWN


def _whole(golds: Sequence[str], options: Sequence[Option]) -> set[str]:
    """Return the accepted answers that contain a text, complete: "A. Lincoln" may be a name."""
    return {normalize_answer(one) for one, read in zip(golds, options, strict=True) if read.text}
