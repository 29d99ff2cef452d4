"""When two questions are the same.

Two questions are the same (`identity`) if they differ only in case, blanks, Unicode form or idle punctuation. A
question that is repeated with a trailing blank or in capitals is not an independent question, and a policy that has
seen one has seen the other. The same rule decides which rows of a log are one question, which questions a policy has
seen, and which questions are in one group. It drops only characters without meaning. Digits, signs, brackets, quotation
marks, marks between digits and the letters of choice options all stay: "x+1" is not "x-1", "3.5" is not "35", "n!" is
not "n", "x²" is not "x2".
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from functools import lru_cache


def hash_of(name: str) -> str:
    """Return the first 64 bits of the SHA-256 of a text, in hex."""
    return hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:16]


def question_id(question: str, context: str | None) -> str:
    """Return a stable id of a question: the start of the SHA-256 of its text and context."""
    return hash_of(f"{question}\x1f{context or ''}")


_STORABLE = re.compile(r"[!-~]{1,100}")


def name_key(name: str) -> str:
    """Return a client's name for something in a form that any database accepts as a key.

    A name of other than 1 to 100 printable ASCII characters, without blanks, is hashed.

    >>> name_key("ann"), name_key("Ann Lee").startswith("sha256:")
    ('ann', True)
    """
    if _STORABLE.fullmatch(name):
        return name
    return "sha256:" + hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()


_RAISED = {"<super>": "^", "<sub>": "_", "<fraction>": " "}
"""Marks for what NFKC would lose, by the kind of compatibility decomposition: 2² would become 22, 1½ 11/2."""
_SAME = str.maketrans(
    {
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-"),
        **dict.fromkeys("\u2018\u2019\u201a\u201b\u2032", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u201f\u00ab\u00bb\u2033", '"'),
        **dict.fromkeys("\u3002\uff61", "."),
        "\u3001": ",",
        "\u2044": "/",
    }
)
"""One form for dashes, quotation marks, full stops, commas and the fraction slash."""
# A mark that ends a word of two letters or more, before a blank or the end: "f(a, b)", "1, 2", "5!" and "n!" stay.
_BETWEEN_WORDS = re.compile(r"(?<=[^\W\d_][^\W\d_])[,;:.?!]+(?=\s|$)")
_AT_THE_END = " .?,;:"
"""The marks at the end of a text. An exclamation mark after a digit, one letter or a bracket is a factorial."""
_LONGEST = 100_000
"""The most characters of a text that is compared so, which takes 30 ms. Longer ones are compared as they are."""


def plain(text: str) -> str:
    """Return the form of a text in which questions are compared: NFKC, lower case, single blanks, no idle punctuation.

    A text of more than 100,000 characters stays as it is. Kept apart: digits, signs, brackets, quotation marks,
    superscripts, marks between digits or around single letters.

    >>> plain("  Who wrote\u00a0HAMLET ?"), plain("Who, then, wrote “Hamlet”…")
    ('who wrote hamlet', 'who then wrote "hamlet"')
    >>> plain("Is x+1 > 2?"), plain("Is x-1 > 2?"), plain("What is 2²?"), plain("What is 5!")
    ('is x+1 > 2', 'is x-1 > 2', 'what is 2^2', 'what is 5!')
    """
    if len(text) > _LONGEST:
        return text
    blanks = " ".join(unicodedata.normalize("NFKC", folded(text).casefold()).casefold().split())
    return _BETWEEN_WORDS.sub("", blanks).rstrip(_AT_THE_END) or blanks


def folded(text: str) -> str:
    """Return a text in NFKC, with powers as ^2 and fractions as 1/2, one form of each mark, and nothing invisible."""
    if text.isascii():
        return text
    signs = {*text}
    for kind, mark in _RAISED.items():
        if raised := "".join([sign for sign in signs if unicodedata.decomposition(sign).startswith(kind)]):
            text = re.sub(f"[{raised}]+", rf"{mark}\g<0>", text)
    plain = unicodedata.normalize("NFKC", text).translate(_SAME)
    invisible = {ord(sign): None for sign in {*plain} if unicodedata.category(sign) == "Cf"}  # zero width, byte order
    return plain.translate(invisible) if invisible else plain


@lru_cache(maxsize=4_096)  # a log needs a question's identity once per row
def identity(text: str, context: str | None = None) -> str:
    """Return a hash (16 hex digits) that a question shares with its near-duplicates: `question_id` of plain texts.

    Args:
        text: the question.
        context: the text that its answer is to be read from, compared by the same rule.

    >>> identity("Who wrote Hamlet?") == identity("who wrote  hamlet"), identity("x+1?") == identity("x-1?")
    (True, False)
    """
    return question_id(plain(text), None if context is None else plain(context))
