"""Formulas as a LaTeX parser needs them: plain notation such as 2*sqrt(3) or 3 1/2 becomes LaTeX."""

from __future__ import annotations

import re

from cascade.matching.exact import only_number
from cascade.matching.reading import clean, stated

MAX_FORMULA_CHARS = 2_000
"""A longer one is not read: the parser takes more than 2 s for 5,000 brackets (measured, math-verify 0.9)."""
_FUNCTIONS = (
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln exp max min gcd lcm det "
    "pi theta alpha beta gamma delta epsilon lambda mu sigma phi omega rho tau infty"
)
_DELIMITED = re.compile(r"\$[^$]+\$|\\\(|\\\[")
_KNOWN = re.compile(rf"(?<![\\A-Za-z])({'|'.join(sorted(_FUNCTIONS.split(), key=len, reverse=True))})(?![A-Za-z])")
_INFINITY = re.compile(r"(?<![\\A-Za-z])(?:infinity|inf|oo)(?![A-Za-z])|∞")
_ROOT = re.compile(r"√ ?(?:(\d{1,50}|[A-Za-z])|\(([^()]{1,200})\))")
_SQRT = re.compile(r"(?<![\\A-Za-z])sqrt ?\(([^()]{1,200})\)")
_MIXED = re.compile(r"(?<![\d./^])(\d{1,50}) (\d{1,50})/(\d{1,50})(?![\d/])")
_SCIENTIFIC = re.compile(r"(?<![\w.])(\d{1,50}(?:\.\d{1,50})?)[eE]([-+]?\d{1,6})\b")
_WORD = re.compile(r"(?<![\\A-Za-z{])[A-Za-z]{4,}(?![A-Za-z{])")
_SHORT_WORD = re.compile(r"(?<![\\A-Za-z{])[A-Za-z]{2,}(?![A-Za-z{])")


def as_latex(text: str) -> str | None:
    r"""Return the formula that an answer states, as LaTeX between dollars; None if it holds none.

    What is boxed or follows "answer is" counts. Formulas between marks stay as they are. Of a sentence without a
    formula the only number counts.

    >>> as_latex("The answer is 2*sqrt(3)."), as_latex(r"so \boxed{3 1/2}"), as_latex("It has 12 sides in all")
    ('$2*\\sqrt{3}$', '$3\\frac{1}{2}$', '$12$')
    >>> as_latex("It is $x=5$."), as_latex("even"), as_latex("")
    ('It is $x=5$', '$\\text{even}$', None)
    """
    plain = clean(text)
    if plain is None:
        return None
    part = stated(plain).strip("* ").rstrip(".,;")
    if len(part) > MAX_FORMULA_CHARS:
        return None
    if _DELIMITED.search(part):
        return part
    bare = part.replace("\\$", "").replace("$", "").strip()
    if not bare:
        return None
    written = _as_commands(bare)
    if _is_prose(written):
        number = only_number(bare)
        return None if number is None else f"${number:f}$"
    return f"${_WORD.sub(_as_text, written)}$"


def _is_prose(written: str) -> bool:
    """Whether a text is a sentence: two words of four letters, or three of two, that are no commands."""
    return len(_WORD.findall(written)) >= 2 or len(_SHORT_WORD.findall(written)) >= 3


def _as_text(word: re.Match[str]) -> str:
    """Return a word as text: letter by letter it would be a product, and equal to its anagrams."""
    return f"\\text{{{word[0]}}}"


def _as_commands(text: str) -> str:
    text = _SCIENTIFIC.sub(r"\1 \\times 10^{\2}", text.replace("**", "^"))
    text = _ROOT.sub(lambda found: f"\\sqrt{{{found[1] or found[2]}}}", text)
    text = _SQRT.sub(r"\\sqrt{\1}", text)
    text = _MIXED.sub(r"\1\\frac{\2}{\3}", text)
    return _KNOWN.sub(r"\\\1", _INFINITY.sub(r"\\infty ", text))
