"""Recognise keys, tokens and passwords, so that none is shown, stored or written into an error.

The shapes are those that the issuers document, or on which secret scanners agree. A key without an issuer's mark (such
as 32 hex digits) is recognised only if the configuration names its variable.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

REDACTED = "[redacted]"


class _Shape(NamedTuple):
    """A pattern of keys, and a text in lower case that every match contains."""

    piece: str
    pattern: re.Pattern[str]


def _any_case(piece: str, pattern: str) -> _Shape:
    return _Shape(piece, re.compile(pattern, re.IGNORECASE | re.ASCII))


def _exact(prefix: str, rest: str) -> _Shape:
    return _Shape(prefix.lower(), re.compile(rf"(?<![A-Za-z0-9]){re.escape(prefix)}{rest}", re.ASCII))


_WORD = r"[\w-]"
_RANDOM = r"(?=[A-Za-z]{0,40}\d)[A-Za-z0-9]{16,}"
"""Letters and digits, with at least one digit, since names in programs seldom have one."""
_SHAPES = (
    _any_case("bearer", r"bearer\s+[\w.~+/=-]{8,}"),  # an Authorization header
    *(
        _any_case(f"{name}{mark}", rf"\b{name}{mark}{_WORD}{{8,}}")
        for name in ("sk", "pk", "rk", "gsk", "xai", "key")  # OpenAI, Anthropic, Stripe, Groq, xAI, Mailgun, …
        for mark in "-_"
    ),
    _any_case("://", r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"),  # user:password@host
    _Shape(
        "private key-----",
        re.compile(
            r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----(?:[A-Za-z0-9+/=\s:,]|-(?!----)){40,}"
            r"(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY-----)?"
        ),
    ),
    _exact("eyJ", rf"{_WORD}{{8,}}\.eyJ{_WORD}{{8,}}\.{_WORD}{{8,}}"),  # a JSON Web Token
    *(_exact(prefix, _RANDOM) for prefix in ("ghp_", "gho_", "ghu_", "ghs_", "ghr_")),  # GitHub
    _exact("github_pat_", r"\w{20,}"),
    *(_exact(prefix, rf"{_WORD}{{16,}}") for prefix in ("glpat-", "gldt-", "glrt-", "glptt-", "glsoat-")),  # GitLab
    *(_exact(prefix, r"[A-Z0-9]{16,}") for prefix in ("AKIA", "ASIA", "ABIA", "ACCA")),  # AWS
    _any_case("aws_secret_access_key", r"(?<=aws_secret_access_key)\W{1,4}[A-Za-z0-9/+=]{40}"),
    _exact("ABSK", r"[A-Za-z0-9+/=]{40,}"),
    _exact("AIza", rf"{_WORD}{{20,}}"),  # Google
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
    if any(secret in text for secret in secrets if secret):
        return True
    return any(shape.pattern.search(text) is not None for shape in _possible(text))


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Return `text` without anything that has the shape of a key, and without the given secrets.

    >>> redact("Authorization: Bearer abcdefghijkl and sk-abcdefghijkl")
    'Authorization: [redacted] and [redacted]'
    """
    for secret in secrets:
        if secret:
            text = text.replace(secret, REDACTED)
    for shape in _possible(text):
        text = shape.pattern.sub(REDACTED, text)
    return text


def _possible(text: str) -> Iterable[_Shape]:
    """Return the shapes whose piece the text contains: only these can match."""
    lowered = text.lower()
    return [shape for shape in _SHAPES if shape.piece in lowered]
