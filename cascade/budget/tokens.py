"""Estimate token counts that providers do not report: too high rather than too low, and marked as estimates.

`tiktoken` would fetch its vocabulary from the network on first use, so the copy that litellm ships is read from its
file; without it, the estimate is UTF-8 bytes / 3, which is high: English has about 4 bytes per token.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from functools import cache
from importlib import util
from pathlib import Path
from typing import Any

from cascade.chat import ChatRequest
from cascade.types import Request

_BYTES_PER_TOKEN = 3
_LONG_CHARS = 100_000
"""A longer text is counted as one token per byte, since encoding a million characters takes a second."""
_TOKENS_PER_MESSAGE = 8
"""Chat templates add 3-7 tokens per message in the models that were checked."""
_MOST_BYTES = 10**15
_MARGIN_PERCENT = 15
"""Vocabularies differ by about this much on English text; an estimate for billing must not be low."""


def bound_tokens(request: Request) -> int:
    """Return an upper bound on a prompt's tokens: byte-level BPE makes at most one token per byte."""
    if request.chat is not None:
        return written_out(request.chat)[0] + 2 * _TOKENS_PER_MESSAGE
    texts = [message.content for message in request.messages]
    return sum(map(_utf8_bytes, texts)) + 2 * _TOKENS_PER_MESSAGE * len(texts)


def written_out(chat: ChatRequest) -> tuple[int, int]:
    """Return an upper bound on a request's bytes with every `$ref` of its schemas expanded, and the nesting depth.

    litellm expands them for Gemini, Bedrock and Anthropic. If each definition refers twice to the next one, every
    definition doubles the size. The count takes time linear in the request and stops at 10¹⁵ bytes.
    """
    plain = _utf8_bytes(chat.canonical)
    if '"$ref"' not in chat.canonical:
        return plain, 0
    options = {name: value for name, value in chat.options.items() if name in ("tools", "functions", "response_format")}
    nodes: list[Any] = [options]
    for node in nodes:  # the list grows meanwhile
        nodes += node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    groups = [node.get(name) for node in nodes if isinstance(node, dict) for name in ("$defs", "definitions")]
    definitions = {name: rule for group in groups if isinstance(group, dict) for name, rule in group.items()}
    sizes, path = dict[int, tuple[int, int]](), [(options, False)]
    while path:
        node, counted = path.pop()
        if not counted and id(node) in sizes:
            continue
        own, inside = _parts(node, definitions)
        if counted:
            counts = [sizes[id(each)] for each in inside]
            count = min(sum([count for count, _ in counts], own), _MOST_BYTES)
            sizes[id(node)] = count, 1 + max([levels for _, levels in counts], default=0)
        else:
            sizes[id(node)] = 0, 0  # until it is counted: a circular reference is not expanded
            path += [(node, True), *((each, False) for each in inside)]
    count, levels = sizes[id(options)]
    return plain + count, levels


def _parts(node: Any, definitions: Mapping[str, Any]) -> tuple[int, Collection[Any]]:
    """Return the bytes of a schema node without its children, and its children; a reference's is its definition."""
    if isinstance(node, dict):
        name = str(node.get("$ref", "")).rpartition("/")[2]
        if name in definitions:
            return 0, (definitions[name],)
        return sum(len(json.dumps(key)) for key in node), node.values()
    return (0, node) if isinstance(node, list) else (_utf8_bytes(json.dumps(node)) + 2, ())


def _utf8_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def estimate_tokens(text: str) -> int:
    """Return a high estimate of the tokens in a text.

    >>> 3 <= estimate_tokens("Which river runs through Vienna?") <= 20
    True
    """
    if len(text) > _LONG_CHARS:
        return _utf8_bytes(text)
    encoding = _encoding()
    if encoding is None:
        return -(-_utf8_bytes(text) // _BYTES_PER_TOKEN)
    count = len(encoding.encode(text, disallowed_special=()))
    return count + -(-count * _MARGIN_PERCENT // 100)


def estimate_prompt(request: Request) -> int:
    """Return a high estimate of the tokens in a prompt, including tools and the chat template."""
    if (chat := request.chat) is not None:
        return estimate_tokens(chat.canonical) + _TOKENS_PER_MESSAGE * len(chat.messages)
    return sum(estimate_tokens(message.content) + _TOKENS_PER_MESSAGE for message in request.messages)


@cache
def _encoding() -> Any | None:
    path = _vocabulary_path()
    if path is None:
        return None
    import tiktoken
    from tiktoken.load import load_tiktoken_bpe
    from tiktoken_ext.openai_public import r50k_pat_str

    # The split pattern of an older vocabulary splits a little finer than cl100k's own, so the count is high.
    return tiktoken.Encoding(
        "estimate", pat_str=r50k_pat_str, mergeable_ranks=load_tiktoken_bpe(str(path)), special_tokens={}
    )


def _vocabulary_path() -> Path | None:
    spec = util.find_spec("litellm")
    if spec is None or not spec.submodule_search_locations or util.find_spec("tiktoken") is None:
        return None
    folder = Path(spec.submodule_search_locations[0]) / "litellm_core_utils" / "tokenizers"
    # The file's name is tiktoken's cache key: the SHA-1 of the URL of cl100k_base.
    path = folder / "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"
    return path if path.is_file() else None
