"""Several deployments of one model: which one a conversation is sent to, and in which order the others are tried.

Weighted rendezvous hashing: a hash of its name, the model and the conversation gives each deployment a number from an
exponential distribution whose rate is its weight; the smallest comes first. So each deployment is first for its share
of the conversations, and adding, removing or skipping one moves no conversation between the others.

Reference: C. Schindelhauer, G. Schomaker, "Weighted distributed hash tables", SPAA 2005 (the logarithmic method).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from hashlib import sha256

from cascade.chat import text_of
from cascade.types import Request


def ranked(request: Request, weights: Mapping[str, float]) -> list[Request]:
    """Return the request once for each deployment of its model, in the order in which they are to be asked.

    Args:
        request: the request.
        weights: the weight of each deployment, by its name.
    """
    head = sha256(_head(request).encode("utf-8", "surrogatepass")).hexdigest()

    def distance(name: str) -> float:
        number = int.from_bytes(sha256(f"{name}|{request.model}|{head}".encode()).digest()[:8], "big")
        return -math.log((number + 1) / 2**64) / weights[name]

    return [request._replace(deployment=name) for name in sorted(weights, key=distance)]


def _head(request: Request) -> str:
    """Return what all requests of a conversation share: its group, or else its texts up to the first user message.

    A prompt cache has seen this part of the next request. Cache marks may move between requests, so only texts count.
    """
    if request.question.group is not None:
        return f"group {request.question.group}"
    if request.chat is None:
        return request.question.text
    messages = request.chat.messages
    end = next((at for at, message in enumerate(messages, 1) if message.get("role") == "user"), 1)
    return "\0".join([text_of(message.get("content")) for message in messages[:end]])
