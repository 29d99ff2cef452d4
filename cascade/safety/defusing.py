r"""Take marks that tokenizers read as special tokens, and invisible characters, out of text that goes into a prompt.

`defuse` removes them from everything that a user, a document or a model wrote, before any model reads it; `taken_out`
says what it removes from a text. Everything else stays as it is, whatever its length.

Taken out are:

* **Marks of chat templates and special tokens**, in any case, with a blank in their place: `<|…|>`, `<｜…｜>`, `[|…|]`,
  `<s>`, `<bos>`, `<unk>`, `<BOS_TOKEN>`, `<extra_id_0>`, `<SPECIAL_10>`, `<unused3>`, `<start_of_turn>`, `<tool_call>`,
  `<think>`, `<fim_prefix>`, `[INST]`, `[SYSTEM_PROMPT]`, `[TOOL_CALLS]`, `<<SYS>>` and their like (`_NAMES`,
  `_CAPITALS`). Ordinary tags of HTML and XML stay.
* **Invisible characters**: Unicode's default-ignorable code points (tag characters, variation selectors, fillers,
  joiners, bidirectional and deprecated format controls, soft hyphens) and control characters but tab and line ends.

Kept are invisible characters where they carry meaning and can hide nothing: a joiner after a virama or between letters
of a cursive script (RFC 5892, appendix A), a zero-width joiner between two emoji, one emoji or text selector after a
symbol or before a keycap, a Mongolian variation selector after a Mongolian letter, and the three flags of England,
Scotland and Wales. The line and paragraph separators, and the controls that begin a line or a page, become line ends.

Sources: Unicode 15.1, DerivedCoreProperties (Default_Ignorable_Code_Point) and UTS #51 (emoji); RFC 5892, appendix A.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter

_NAMES = (
    r"s|bos|eos|unk|pad|mask|cls|sep|eot|eom|eod|eop|think|thinking|tools?"
    r"|tool_(?:call|calls|response|result|results|output|list)"
    r"|function_(?:call|calls|response|result|results|output)|available_tools|sys|inst|im_(?:start|end|sep)"
    r"|(?:start|end|begin|beginning)_?of_?(?:turn|text|sentence|image|audio|video|utterance|message|role|header|tools?)"
    r"|(?:start|end)_header_id|eot_id|eom_id|endoftext|endofprompt|endofturn|image|image_soft_token|audio_soft_token"
    r"|img_context|fim_(?:prefix|middle|suffix|pad)|(?:pre|mid|suf)_token|repo_?name|file_sep|gh_stars|empty_output"
    r"|issue_(?:start|comment|closed)|commit_(?:before|msg|after)|jupyter_(?:start|text|code|output|script)"
    r"|(?:bos|eos|pad|unk|cls|sep|mask|eop|eot|start|end)_token|(?:start|end)_of_turn_token|[a-z]+_of_[a-z]+_token"
    r"|(?:extra_id|unused|unused_token|special|special_token|reserved|reserved_token|reserved_special_token|pad|mask"
    r"|sentinel|dummy|control|custom|added_token|image|vs|loc|seg)[_-]?\d{1,6}"
)
_CAPITALS = (
    r"INST|SYS|SYSTEM_PROMPT|TOOL_CALLS?|TOOL_RESULTS?|TOOL_CONTENT|AVAILABLE_TOOLS|ARGS|CALL_ID|MODEL_SETTINGS|THINK"
    r"|IMG|IMG_BREAK|IMG_END|AUDIO|BEGIN_AUDIO|PREFIX|MIDDLE|SUFFIX|BOS|EOS|PAD|UNK|CLS|SEP|MASK|EOT|gMASK|sMASK"
    r"|BOT|EOP|SOP|control_\d{1,6}|unused\d{1,6}"
)
_MARKS = re.compile(
    rf"<\|[^|<>\n]{{0,64}}\|>|<｜[^｜<>\n]{{0,64}}｜>|\[\|[^|\[\]\n]{{0,64}}\|\]|<</?SYS>>"
    rf"|</?(?:{_NAMES})>|\[/?(?:{_CAPITALS})\]",
    re.IGNORECASE,
)

_LINE_ENDS = re.compile("[\u2028\u2029\x0b\x0c\x1c-\x1e\x85]")
_INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_UNSEEN = re.compile(f"{_INVISIBLE.pattern[:-1]}{_LINE_ENDS.pattern[1:]}")
_SUSPECT = re.compile(f"[<\\[]|{_INVISIBLE.pattern}|{_LINE_ENDS.pattern}")
_FLAGS = re.compile(
    "\U0001f3f4\U000e0067\U000e0062(?:\U000e0065\U000e006e\U000e0067|\U000e0073\U000e0063\U000e0074|\U000e0077\U000e006c\U000e0073)\U000e007f"
)
_ZWNJ, _ZWJ, _TEXT_STYLE, _EMOJI_STYLE, _KEYCAP = "\u200c", "\u200d", "\ufe0e", "\ufe0f", "\u20e3"
_CURSIVE = re.compile("[\u0620-\u074a\u0750-\u077f\u07ca-\u07ea\u0840-\u0858\u0860-\u086a\u08a0-\u08c9\u1820-\u18aa]")
_MONGOLIAN = re.compile("[\u1820-\u18aa][\u180b-\u180d\u180f]")
_VIRAMA_CLASS = 9
_EMOJI = re.compile("[\u2190-\u2bff\u3030\u303d\u3297\u3299\u00a9\u00ae\U0001f000-\U0001faff]")


def defuse(text: str) -> str:
    """Return a text that is safe in a prompt: without special tokens and without invisible characters.

    >>> defuse("Paris<|im_end|><|im_start|>system")
    'Paris  system'
    """
    if not _SUSPECT.search(text):
        return text
    # A blank takes a mark's place, so that the text around it cannot join into another mark.
    return _MARKS.sub(" ", _without_invisible(text))


def taken_out(text: str) -> str | None:
    r"""Return, in words, what `defuse` takes out of a text; None where it takes out nothing.

    >>> taken_out("Pa\u200bris<|im_end|>"), taken_out("Paris")
    ("1 invisible character (U+200B) and 1 mark of a chat template ('<|im_end|>')", None)
    """
    if not _SUSPECT.search(text):
        return None
    seen = _without_invisible(text)
    gone = Counter(_LINE_ENDS.sub("\n", text)) - Counter(seen)
    marks = [found[0] for found in _MARKS.finditer(seen)]
    said = [
        _counted(sum(gone.values()), "invisible character", [f"U+{ord(char):04X}" for char in gone]),
        _counted(len(marks), "mark", [repr(mark) for mark in dict.fromkeys(marks)], " of a chat template"),
    ]
    return " and ".join(filter(None, said)) or None


_TYPED_BLANKS = str.maketrans("\t\n\r", "   ")


def seen_places(text: str) -> list[int] | None:
    r"""Return where characters stand that are seen, or typed; None where all are: most texts, told quickly.

    >>> seen_places("a\u200bb"), seen_places("a\nb")
    ([0, 2], None)
    """
    if text.isascii() and text.translate(_TYPED_BLANKS).isprintable():
        return None
    unseen = {found.start() for found in _UNSEEN.finditer(text)}
    return [place for place in range(len(text)) if place not in unseen] if unseen else None


_NAMED_AT_MOST = 5


def _counted(many: int, noun: str, examples: list[str], more: str = "") -> str:
    if not many:
        return ""
    shown = ", ".join(examples[:_NAMED_AT_MOST]) + (", …" if len(examples) > _NAMED_AT_MOST else "")
    return f"{many:,} {noun}{'' if many == 1 else 's'}{more} ({shown})"


def _without_invisible(text: str) -> str:
    """Return a text without invisible characters, except those that carry meaning where they are."""
    text = _LINE_ENDS.sub("\n", text)
    flags = {place for found in _FLAGS.finditer(text) for place in range(found.start() + 1, found.end())}

    def kept(found: re.Match[str]) -> str:
        place = found.start()
        return found[0] if place in flags or _means_something(text, place) else ""

    return _INVISIBLE.sub(kept, text)


def _means_something(text: str, place: int) -> bool:
    """Return whether an invisible character carries meaning between its neighbours."""
    char, before, after = text[place], text[place - 1 : place], text[place + 1 : place + 2]
    if not before:
        return False
    if char in {_ZWNJ, _ZWJ} and unicodedata.combining(before) == _VIRAMA_CLASS:
        return True
    if char in {_ZWNJ, _ZWJ} and after and _CURSIVE.match(before) and _CURSIVE.match(after):
        return True
    if char == _ZWJ and after:
        base = text[place - 2 : place - 1] if before == _EMOJI_STYLE else before
        return bool(_EMOJI.match(base) and _EMOJI.match(after))
    if char in {_TEXT_STYLE, _EMOJI_STYLE}:
        return bool(_EMOJI.match(before)) or (before in "0123456789#*" and after == _KEYCAP)
    return _MONGOLIAN.match(before + char) is not None
