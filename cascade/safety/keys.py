"""Recognise keys, tokens and passwords, so that none is shown, stored or written into an error.

The shapes are those that the issuers document, or on which secret scanners agree. A key without an issuer's mark (such
as 32 hex digits) is recognised only behind the name of a secret (`"api_key": "…"`), or if the configuration names its
variable. Invisible characters inside a key hide nothing of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from cascade.safety.defusing import seen_places

REDACTED = "[redacted]"


class _Shape(NamedTuple):
    """A pattern of keys, and a text in lower case that every match contains. Its group, if any, is the key alone."""

    piece: str
    pattern: re.Pattern[str]


def _any_case(piece: str, pattern: str) -> _Shape:
    return _Shape(piece, re.compile(pattern, re.IGNORECASE | re.ASCII))


def _exact(prefix: str, rest: str) -> _Shape:
    return _Shape(prefix.lower(), re.compile(rf"(?<![A-Za-z0-9]){re.escape(prefix)}{rest}", re.ASCII))


def _glued(prefix: str, rest: str) -> _Shape:
    """Return the shape of a key that follows a letter or digit directly, as in `xAKIA…`."""
    return _Shape(prefix.lower(), re.compile(rf"(?<=[A-Za-z0-9]){re.escape(prefix)}{rest}", re.ASCII))


def _marked(*prefixes: str, rest: str) -> Iterator[_Shape]:
    """Yield the shapes of keys whose prefix ends in a mark (`ghp_`): by themselves, and behind a letter or digit."""
    for prefix in prefixes:
        yield _exact(prefix, rest)
        yield _glued(prefix, rf"{_CHANCE}{rest}")


def _field(piece: str, name: str) -> _Shape:
    """Return the shape of a value behind the name of a secret: `"client-secret": "…"`, `API_KEY=…`."""
    sign = r"\\?[\"']?\s{0,8}[:=]\s{0,8}"
    return _any_case(
        piece, rf"{name}{sign}(?:\\?[\"']({_NO_NAME}{_ODD}[^\s\"'\\]{{8,}})|({_NO_NAME}{_ODD}[\w./+=~-]{{16,}}))"
    )


_WORD = r"[\w-]"
_RANDOM = r"(?=[A-Za-z]{0,40}\d)[A-Za-z0-9]{16,}"
"""Letters and digits, with at least one digit, since names in programs seldom have one."""
_CHANCE = r"(?=\w{0,40}\d)(?=\w{0,40}(?-i:[A-Z]))(?=\w{0,40}(?-i:[a-z]))(?=[\w.-]{20})"
"""What no word has: a digit, a capital and a small letter soon, and 20 characters."""
_ODD = (
    r"(?:(?=[^\s\"'\\]{0,60}\d)(?=[^\s\"'\\]{0,60}[a-z])"
    r"|(?=[a-z]{16})(?=[a-z]{0,60}(?-i:[A-Z]))(?=[A-Z]{0,60}(?-i:[a-z])))"
)
"""A letter and a digit, or 16 letters, capital and small: `"token": "Paris"` and `password: required` are words."""
_NO_NAME = r"(?!(?-i:[A-Z][A-Z0-9]*(?:_[A-Z0-9]{1,40}){1,8})(?![\w/+=.~-])|os\.environ)"
"""Not the name of a variable that holds the secret, such as OPENAI_API_KEY_2."""
_SHAPES = (
    _any_case("bearer", r"bearer\s+[\w.~+/=-]{8,}"),  # an Authorization header
    *(
        _any_case(f"{name}{mark}", rf"\b{name}{mark}{_WORD}{{8,}}")
        for name in ("sk", "pk", "rk", "gsk", "xai")  # OpenAI, Anthropic, Stripe, Groq, xAI, …
        for mark in "-_"
    ),
    *(_any_case(prefix, rf"\b{prefix}(?=[a-z]{{0,40}}\d)[a-z0-9]{{16,}}") for prefix in ("key-", "key_")),  # Mailgun
    *(_glued(prefix, rf"(?:[a-z]{{2,8}}\d{{0,2}}-){{0,2}}{_CHANCE}\w{{20,}}") for prefix in ("sk-", "sk_", "gsk_")),
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
    _exact("eyJ", rf"{_WORD}{{8,}}\.eyJ{_WORD}{{8,}}\.{_WORD}{{8,}}"),  # a JSON Web Token
    *_marked("ghp_", "gho_", "ghu_", "ghs_", "ghr_", rest=r"[A-Za-z0-9]{16,}"),  # GitHub
    *_marked("github_pat_", rest=r"\w{20,}"),
    *(_exact(prefix, rf"{_WORD}{{16,}}") for prefix in ("glpat-", "gldt-", "glrt-", "glptt-", "glsoat-")),  # GitLab
    *(_exact(prefix, r"[A-Z0-9]{16,}") for prefix in ("AKIA", "ASIA", "ABIA", "ACCA")),  # AWS
    *(_glued(prefix, r"(?=[A-Z]{0,15}\d)[A-Z0-9]{16,}") for prefix in ("AKIA", "ASIA", "ABIA", "ACCA")),
    _any_case("aws_secret_access_key", r"(?<=aws_secret_access_key)\W{1,4}[A-Za-z0-9/+=]{40}"),
    _exact("ABSK", r"[A-Za-z0-9+/=]{40,}"),
    _exact("AIza", rf"{_WORD}{{20,}}"),  # Google
    _glued("AIza", rf"{_CHANCE}{_WORD}{{35}}(?!{_WORD})"),
    *(_exact(prefix, rf"{_WORD}{{20,}}") for prefix in ("ya29.", "GOCSPX-")),
    _any_case("accountkey=", r"(?<=accountkey=)[A-Za-z0-9+/=]{40,}"),  # Azure storage
    *(_exact(prefix, _RANDOM) for prefix in ("hf_", "api_org_", "r8_")),  # Hugging Face, Replicate
    *(
        _exact(prefix, _RANDOM) for prefix in ("tgp_v1_", "fw_", "pcsk_", "jina_")
    ),  # Together, Fireworks, Pinecone, Jina
    *(_exact(prefix, rf"{_WORD}{{16,}}") for prefix in ("pplx-", "nvapi-", "csk-", "tvly-")),  # Perplexity, NVIDIA, …
    *(_exact(prefix, r"\w{24,}") for prefix in ("lsv2_pt_", "lsv2_sk_")),  # LangSmith
    *(
        _exact(prefix, r"[A-Za-z0-9-]{10,}")
        for prefix in ("xoxa-", "xoxb-", "xoxe-", "xoxp-", "xoxr-", "xoxs-", "xapp-")
    ),
    _any_case("hooks.slack.com/", r"(?<=hooks\.slack\.com/)services/[\w/]{20,}"),
    _exact("whsec_", r"[A-Za-z0-9+/=]{20,}"),  # Stripe
    _exact("SG.", rf"{_WORD}{{16,}}\.{_WORD}{{16,}}"),  # SendGrid
    *(_exact(prefix, _RANDOM) for prefix in ("npm_", "rubygems_", "sbp_", "nfp_")),  # npm, RubyGems, Supabase, Netlify
    *(_exact(prefix, rf"{_WORD}{{20,}}") for prefix in ("pypi-AgE", "dckr_pat_")),
    *(_exact(prefix, r"[a-f0-9]{40,}") for prefix in ("dop_v1_", "doo_v1_", "dor_v1_", "pul-")),  # DigitalOcean, Pulumi
    _exact("dapi", r"[a-f0-9]{32}"),  # Databricks
    *(_exact(prefix, rf"{_WORD}{{20,}}") for prefix in ("hvs.", "hvb.", "hvr.", "dp.pt.", "dp.st.")),  # Vault, Doppler
    *(_exact(prefix, r"\w{24,}") for prefix in ("glsa_", "sntrys_", "sntryu_")),  # Grafana, Sentry
    *(_exact(prefix, _RANDOM) for prefix in ("glc_", "figd_", "lin_api_", "ntn_")),  # Grafana, Figma, Linear, Notion
    *(_exact(prefix, rf"{_WORD}{{24,}}") for prefix in ("NRAK-", "PMAK-", "HRKU-", "CCIPAT_", "ATATT3")),
    *(_exact(prefix, r"[a-fA-F0-9]{32}") for prefix in ("shpat_", "shpss_", "shpca_", "shppa_")),  # Shopify
    *(_exact(prefix, rf"{_WORD}{{20,}}") for prefix in ("sq0atp-", "sq0csp-", "pscale_tkn_", "AGE-SECRET-KEY-1")),
    *(_exact(prefix, _RANDOM) for prefix in ("LTAI", "AKID", "ATBB")),  # Alibaba, Tencent, Bitbucket
    _Shape(":aa", re.compile(rf"(?<!\d)\d{{8,10}}:AA{_WORD}{{30,}}", re.ASCII)),  # Telegram
)


def holds_key(text: str, secrets: Iterable[str] = ()) -> bool:
    """Return whether `redact` would change a text. It is quick on a text without a key (benchmarks/traces.py).

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
        if start >= last:  # those that overlap are one
            pieces += [text[last:start], REDACTED]
        last = max(last, end)
    return "".join([*pieces, text[last:]])


def _keys(text: str, secrets: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Yield where keys stand in a text, start and end, whether or not something unseen is in them. They may overlap."""
    known = [secret for secret in secrets if secret]
    yield from _found(text, known)
    places = seen_places(text)
    if places is not None:
        bare = "".join([text[place] for place in places])
        yield from ((places[start], places[end - 1] + 1) for start, end in _found(bare, known))


def _found(text: str, secrets: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Yield where keys stand in a text that are written without a break."""
    for secret in secrets:
        start = text.find(secret)
        while start >= 0:
            yield start, start + len(secret)
            start = text.find(secret, start + len(secret))
    lowered = text.lower()
    for shape in _SHAPES:
        if shape.piece in lowered:
            for found in shape.pattern.finditer(text):
                yield found.span(found.lastindex or 0)
