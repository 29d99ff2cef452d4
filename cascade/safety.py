r"""Handles untrusted input: text for prompts, keys in any text, and files named by a user.

`defuse` removes marks that tokenizers read as special tokens, and invisible characters, from everything that a user, a
document or a model wrote, before any model reads it. Everything else is unchanged, whatever its length. It removes:

* **Marks of chat templates and special tokens**, in upper or lower case, replaced by a blank: `<|…|>`, `<｜…｜>`,
  `[|…|]`, `<s>`, `<bos>`, `<unk>`, `<BOS_TOKEN>`, `<extra_id_0>`, `<SPECIAL_10>`, `<unused3>`, `<start_of_turn>`,
  `<tool_call>`, `<think>`, `<fim_prefix>`, `[INST]`, `[SYSTEM_PROMPT]`, `[TOOL_CALLS]`, `<<SYS>>` and the like
  (`_NAMES`, `_CAPITALS`). Ordinary tags of HTML and XML stay.
* **Invisible characters**: Unicode's default-ignorable code points (tag characters, variation selectors, fillers,
  joiners, bidirectional and deprecated format controls, soft hyphens) and control characters except tabs and line ends.

Joiners and the selectors of emoji and of Mongolian carry meaning: at most two in a row stay, after a non-ASCII
character, a digit, "#" or "*". The line and paragraph separators, and the controls that begin a line or a page, become
line ends.

`redact` removes keys, tokens and passwords from a text, so that none is shown, stored or written into an error. Their
shapes are those that the issuers document, or on which secret scanners agree. A key without an issuer's mark (such as
32 hex digits) is recognised only after the name of a secret (`"api_key": "…"`), or if the configuration names its
variable. Invisible characters inside a key do not hide it.

A file that a user names (`open_regular`, `read_bounded`) must be a regular one, so no pipe is waited for, no endless
device is read, and no more bytes than allowed. A command that judges an output (`exit_code`) ends with all it started.

Source: Unicode 15.1, DerivedCoreProperties (Default_Ignorable_Code_Point).
"""

from __future__ import annotations

import errno
import os
import re
import signal
import stat
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

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
    rf"|</?(?=[\w-]{{1,99}}>)(?:{_NAMES})>|\[/?(?=\w{{1,99}}\])(?:{_CAPITALS})\]",
    re.IGNORECASE,
)

_LINE_ENDS = re.compile("[\u2028\u2029\x0b\x0c\x1c-\x1e\x85]")
_JOINERS = "\u180b-\u180d\u180f\u200c\u200d\ufe0e\ufe0f"
_HIDING = (
    "\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f"
    "\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff"
)
_INVISIBLE = re.compile(f"[{_HIDING}]")
_IDLE = re.compile(f'(?:^|(?<=[\x00-"$-)+-/:-\x7f]))[{_JOINERS}]+|(?<=[{_JOINERS}]{{2}})[{_JOINERS}]+')
"""Joiners that join nothing: at the beginning, after ASCII other than digits, "#" and "*", or beyond two in a row."""
_UNSEEN = re.compile(f"[{_HIDING}{_JOINERS}{_LINE_ENDS.pattern[1:]}")
_SUSPECT = re.compile(f"[<\\[{_HIDING}{_JOINERS}{_LINE_ENDS.pattern[1:]}")


def defuse(text: str) -> str:
    """Return a text that is safe in a prompt: without special tokens and without invisible characters.

    >>> defuse("Paris<|im_end|><|im_start|>system")
    'Paris  system'
    """
    if not _SUSPECT.search(text):
        return text
    text = _IDLE.sub("", _INVISIBLE.sub("", _LINE_ENDS.sub("\n", text)))
    # A blank takes a mark's place, so that the text around it cannot join into another mark.
    return _MARKS.sub(" ", text)


def broken_up(text: str) -> str:
    """Return a text with a blank inside each mark of a chat template, so that a tokenizer reads it as text.

    >>> broken_up("Paris<|im_end|>")
    'Paris< |im_end|>'
    """
    while _MARKS.search(text):  # "<<SYS>>" holds "<SYS>"
        text = _MARKS.sub(lambda mark: f"{mark[0][0]} {mark[0][1:]}", text)
    return text


_TYPED_BLANKS = str.maketrans("\t\n\r", "   ")


def seen_places(text: str) -> list[int] | None:
    r"""Return the positions of visible and typed characters; None if all are, as in most texts, which is fast.

    >>> seen_places("a\u200bb"), seen_places("a\nb")
    ([0, 2], None)
    """
    if text.isascii() and text.translate(_TYPED_BLANKS).isprintable():
        return None
    unseen = {match.start() for match in _UNSEEN.finditer(text)}
    return [index for index in range(len(text)) if index not in unseen] if unseen else None


# --- keys ---

REDACTED = "[redacted]"


class _Shape(NamedTuple):
    """A pattern of keys, and a text in lower case that every match contains.

    If the pattern has groups, the one that matched is the key itself; a match of no group is not a key.
    """

    substring: str
    pattern: re.Pattern[str]


def _any_case(substring: str, pattern: str) -> _Shape:
    return _Shape(substring, re.compile(pattern, re.IGNORECASE | re.ASCII))


def _exact(prefix: str, rest: str) -> _Shape:
    return _Shape(prefix.lower(), re.compile(rf"(?<![A-Za-z0-9]){re.escape(prefix)}{rest}", re.ASCII))


def _field(substring: str, name: str) -> _Shape:
    """Return the shape of a value after the name of a secret: `"client-secret": "…"`, `API_KEY=…`."""
    sign = r"\\?[\"']?\s{0,8}[:=]\s{0,8}"
    return _any_case(
        substring, rf"{name}{sign}(?:\\?[\"']({_NO_NAME}{_ODD}[^\s\"'\\]{{8,}})|({_NO_NAME}{_ODD}[\w./+=~-]{{16,}}))"
    )


_WORD = r"[\w-]"
_ODD = (
    r"(?:(?=[^\s\"'\\]{0,60}\d)(?=[^\s\"'\\]{0,60}[a-z])"
    r"|(?=[a-z]{16})(?=[a-z]{0,60}(?-i:[A-Z]))(?=[A-Z]{0,60}(?-i:[a-z])))"
)
"""A letter and a digit, or 16 letters of both cases: `"token": "Paris"` and `password: required` are not keys."""
_NO_NAME = r"(?!(?-i:[A-Z][A-Z0-9]*(?:_[A-Z0-9]{1,40}){1,8})(?![\w/+=.~-])|os\.environ)"
"""Not the name of a variable that holds the secret, such as OPENAI_API_KEY_2."""
_ISSUED = """
    ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ glpat- hf_ r8_ tgp_v1_ fw_ pplx- nvapi- csk- tvly- pcsk_ jina_ lsv2_pt_
    AKIA ASIA ABSK AIza ya29. GOCSPX- xoxa- xoxb- xoxe- xoxp- xoxs- xapp- whsec_ npm_ pypi- dckr_pat_ dapi dop_v1_ hvs.
    glsa_ SG. shpat_
"""
"""Prefixes of the keys of GitHub, GitLab, model hosts, AWS, Google, Slack, registries and clouds. A digit must follow
soon, since names in programs seldom have one."""
_SHAPES = (
    _any_case("bearer", r"bearer\s+[\w.~+/=-]{8,}"),  # an Authorization header
    *(
        _any_case(f"{name}{mark}", rf"\b{name}{mark}{_WORD}{{8,}}")
        for name in ("sk", "pk", "rk", "gsk", "xai")  # OpenAI, Anthropic, Stripe, Groq, xAI, …
        for mark in "-_"
    ),
    *(_any_case(prefix, rf"\b{prefix}(?=[a-z]{{0,40}}\d)[a-z0-9]{{16,}}") for prefix in ("key-", "key_")),  # Mailgun
    _field("secret", r"secret(?:[_ -]?access)?(?:[_ -]?key)?"),
    _field("token", "token"),
    _field("password", "password"),
    _field("passwd", "passwd"),
    _field("passphrase", "passphrase"),
    _field("key", r"(?:api|access|account|auth|encryption|master|private|shared|signing|subscription)[_ -]?key"),
    _any_case("basic", r"\bauthorization\\?[\"']?\s{0,8}[:=]\s{0,8}\\?[\"']?basic\s+([A-Za-z0-9+/=]{8,})"),
    _any_case("://", r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"),  # user:password@host
    _Shape(
        "private key-----",
        re.compile(
            r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----(?:[A-Za-z0-9+/=\s:,]|-(?!----)){40,}"
            r"(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY-----)?"
        ),
    ),
    # A JSON Web Token; or, without a group, a text that is not one, so that no part of it is searched again.
    _Shape(
        "eyj",
        re.compile(rf"(?<![A-Za-z0-9])(?:(eyJ{_WORD}{{8,}}\.eyJ{_WORD}{{8,}}\.{_WORD}{{8,}})|eyJ{_WORD}*)", re.ASCII),
    ),
    *(_exact(prefix, r"(?=[A-Za-z]{0,40}\d)[\w.+/=-]{16,}") for prefix in _ISSUED.split()),
)


def holds_key(text: str, secrets: Iterable[str] = ()) -> bool:
    """Return whether `redact` would change a text. This is fast for a text without a key (benchmarks/traces.py).

    >>> holds_key("a well-known work-around"), holds_key("use sk-abcdefgh")
    (False, True)
    """
    return next(_keys(text, secrets), None) is not None


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    r"""Return `text` without anything that has the shape of a key, and without the given secrets.

    >>> redact("Authorization: Bearer abcdefghijkl and sk-abcd\u200befghijkl")
    'Authorization: [redacted] and [redacted]'
    """
    pieces, last = list[str](), 0
    for start, end in sorted(_keys(text, secrets)):
        if start >= last:  # overlapping keys become one
            pieces += [text[last:start], REDACTED]
        last = max(last, end)
    return "".join([*pieces, text[last:]])


_FILE = re.compile(r"[\"'](?:data:[^\"',]{0,200},)?([A-Za-z0-9+/=]{10000,})")
"""A quoted file in Base64, such as an image. No key is that long, and a part that looks like one does so by chance."""


def _keys(text: str, secrets: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Yield start and end of the keys in a text, even if they contain invisible characters. They may overlap.

    Files in Base64 are searched only for the given secrets: searching a megabyte for shapes takes half a second.
    """
    filled, last = [secret for secret in secrets if secret], 0
    yield from _verbatim(text, filled)
    files = [file.span(1) for file in _FILE.finditer(text)]
    for start, end in (*files, (len(text), len(text))):
        yield from ((last + first, last + after) for first, after in _keys_in(text[last:start], filled))
        last = end


def _keys_in(text: str, secrets: Sequence[str]) -> Iterator[tuple[int, int]]:
    yield from _shaped(text, secrets)
    positions = seen_places(text)
    if positions is not None:
        bare = "".join([text[index] for index in positions])
        yield from ((positions[start], positions[end - 1] + 1) for start, end in _shaped(bare, secrets))


def _verbatim(text: str, secrets: Iterable[str]) -> Iterator[tuple[int, int]]:
    for secret in secrets:
        start = text.find(secret)
        while start >= 0:
            yield start, start + len(secret)
            start = text.find(secret, start + len(secret))


_STEP, _LONGEST_KEY = 1_000_000, 65_536
"""How many characters one search covers, since it blocks other threads; and the longest key across a boundary."""


def _shaped(text: str, secrets: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Yield start and end of the keys in a text without invisible characters."""
    yield from _verbatim(text, secrets)
    for start in range(0, len(text), _STEP):
        end = start + _STEP + _LONGEST_KEY
        lowered = text[start:end].lower()
        for shape in _SHAPES:
            if shape.substring not in lowered:
                continue
            for match in shape.pattern.finditer(text, start, end):
                full = shape.pattern.match(text, match.start()) if match.end() == end else None
                if match.lastindex or not shape.pattern.groups:
                    yield (full or match).span(match.lastindex or 0)


# --- files ---

_OPEN_ALREADY = {"/dev/fd", "/proc/self/fd"}
"""Folders of this process's open files: a pipe there is from the shell, as in `cascade ask -c <(make-config)`."""


def open_regular(path: Path, *, or_open_pipe: bool = False) -> BinaryIO:
    """Open a regular file for reading; refuse a pipe, a device or a socket without waiting for it.

    Args:
        path: the file.
        or_open_pipe: whether a pipe that this process already has open, such as /dev/fd/63, may be read too.

    Raises:
        OSError: the file cannot be opened, or is not a regular file; `strerror` then says so.
    """
    _check_kind(path.stat().st_mode, path, or_open_pipe=or_open_pipe)  # opening some devices has an effect
    # O_NONBLOCK: another file may have taken its place since, and a pipe would wait
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _check_kind(os.fstat(descriptor).st_mode, path, or_open_pipe=or_open_pipe)
        os.set_blocking(descriptor, True)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_bounded(path: Path, most_bytes: int, *, or_open_pipe: bool = False) -> bytes | None:
    """Return the contents of a file; None if they are longer than `most_bytes`, whatever size the file claims.

    Raises:
        OSError: as `open_regular` does, or the file cannot be read.
    """
    with open_regular(path, or_open_pipe=or_open_pipe) as file:
        data = file.read(most_bytes + 1)
    return None if len(data) > most_bytes else data


def _check_kind(mode: int, path: Path, *, or_open_pipe: bool) -> None:
    if stat.S_ISREG(mode):
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if stat.S_ISFIFO(mode) and or_open_pipe and (str(path.parent) in _OPEN_ALREADY or str(path) == "/dev/stdin"):
        return
    kind = "a pipe" if stat.S_ISFIFO(mode) else "a device or a socket"
    raise OSError(errno.EINVAL, f"it is not a regular file but {kind}; write its contents to a file and name that")


# --- commands ---


def exit_code(
    command: Sequence[str],
    folder: str,
    environment: Mapping[str, str],
    limit_s: float,
) -> int | None:
    """Run a command and return its exit code; None if it ran out of time.

    It runs without a shell, in a session of its own, whose processes are killed at the end. This is not a sandbox.

    Args:
        command: the program and its arguments.
        folder: the working directory.
        environment: its complete environment.
        limit_s: how long it may take, in seconds.

    Raises:
        OSError: the command cannot be started.
    """
    process = subprocess.Popen(  # noqa: S603 - the user's own command
        list(command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        env=dict(environment),
        start_new_session=True,
    )
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _kill_session(process)


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    """Kill a command and the processes of its group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
