"""What the command line prints in tests: every JSON document is held against its schema in docs/schemas."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema

SCHEMAS = Path(__file__).parents[3] / "docs" / "schemas"
WITHOUT = {"demo", "models-list"}
"""Commands whose documents say what ships; their shape is no promise."""
KEEP = os.environ.get("KEEP_JSON_DOCUMENTS")
"""A folder in which the documents are kept, for `tools/json_schemas.py`; then nothing is checked."""


def check_document(arguments: Sequence[str], out: str) -> None:
    """Fail where a command printed a document that its schema does not describe."""
    name = command_of(arguments)
    document = json.loads(out)
    if KEEP:
        digest = hashlib.sha256(out.encode()).hexdigest()[:16]
        Path(KEEP, f"{name}.{digest}.json").write_text(out, "utf-8")
        return
    if not (SCHEMAS / f"{name}.json").exists():
        assert name in WITHOUT, f"docs/schemas has none for {name}: tools/json_schemas.py draws it"
        return
    errors = sorted(_validator(name).iter_errors(document), key=lambda one: one.json_path)
    assert not errors, [f"{one.json_path}: {one.message[:200]}" for one in errors[:5]]


def document(ran: Any) -> dict[str, Any]:
    """Return what a command that ended well printed as JSON."""
    assert ran.code == 0, ran.err
    found: dict[str, Any] = json.loads(ran.out)
    return found


def words(text: str) -> str:
    """Return a text in one line, however it was wrapped."""
    return " ".join(text.split())


def command_of(arguments: Sequence[str]) -> str:
    """Return a command's name in `docs/schemas`: `traces stats` is traces-stats."""
    words = 2 if arguments[0] in {"traces", "models"} or arguments[1:] == ["plan"] else 1
    return "-".join(arguments[:words])


@cache
def _validator(name: str) -> Any:
    schema = json.loads((SCHEMAS / f"{name}.json").read_text("utf-8"))
    return jsonschema.Draft202012Validator(schema)
