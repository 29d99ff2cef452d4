"""Multiple choice: which option an answer names, by its letter or by its text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cascade.matching.base import RIGHT, UNKNOWN, WRONG, Verdict, accepted
from cascade.matching.letters import DEFAULT_LETTERS, Option, named_letters, read_option
from cascade.matching.reading import clean, stated
from cascade.text import normalize_answer


@dataclass(frozen=True, slots=True)
class ChoiceMatcher:
    """The letter of an option, in any usual form, or the option's text.

    Attributes:
        letters: what the options are called.

    Where the accepted answers hold a letter and a text ("B", "Vienna"), the letter decides; an answer without a letter
    is right if it is the text. An answer that names several options is wrong. If the accepted answers hold no letter
    and the answer is nothing but one, its truth is unknown.

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
    """Return the accepted answers that hold a text, whole: "A. Lincoln" may be a name after all."""
    return {normalize_answer(one) for one, read in zip(golds, options, strict=True) if read.text}
