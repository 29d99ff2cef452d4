"""What a row of a log says of its question: the numbers of its text, and of what kind its request is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cascade.episodes.schema import CHAT, chat_of, is_hashed, replay_of
from cascade.policies.question_features import asked_numbers
from cascade.policies.requests import Kind, kind_of


def numbers_asked(row: Mapping[str, Any]) -> Mapping[str, float]:
    """Return the numbers of a row's question; none where its text is not on record."""
    text: str | None = row["question"]
    return {} if text is None or is_hashed(text) else asked_numbers(text, row["context"], chat_of(row))


def kind_asked(row: Mapping[str, Any]) -> Kind | None:
    """Return what is special about a row's request; None where the log keeps no texts."""
    chat = chat_of(row)
    return None if chat is None and replay_of(row).get(CHAT) else kind_of(chat)
