"""Draw the JSON Schemas in docs/schemas from documents that commands printed.

    KEEP_JSON_DOCUMENTS=DOCUMENTS pytest tests/unit/cli     # keeps what each command prints with --json
    python tools/json_schemas.py DOCUMENTS

The tests of the command line hold every document against its schema, so a document that changes its shape fails there.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from genson import SchemaBuilder

SCHEMAS = Path(__file__).parents[1] / "docs" / "schemas"
_MAPS = "figures levels models intervals prices signals settings cost_by_model_usd strategy options dropped datasets"
MAPS = frozenset(_MAPS.split())
"""Objects whose keys are a user's own names."""
OPEN = frozenset({"made_for", "chat", "message", "schema"})
"""What a strategy or an application fills as it likes."""
TITLES = {
    "ask": "An answer, as cascade ask --json prints it",
    "collect": "A collected log, as cascade collect --json prints it",
    "compare": "Ways to answer, compared, as cascade compare --json prints it; costs are shares of the reference's",
    "demo": "The demo, as cascade demo --json prints it",
    "doctor": "Findings, as cascade doctor --json prints them",
    "evaluate": "A policy on a log, or its audits, as cascade evaluate --json prints it; costs in USD a request",
    "fit": "A fit, as cascade fit --json prints it; costs as shares of the reference's",
    "import": "An imported log, as cascade import --json prints it",
    "onboard": "A new model, probed, as cascade onboard --json prints it; costs as shares of the reference's",
    "promote": "A look, as cascade promote --json prints it; saving in USD a request",
    "promote-plan": "What the next look takes, as cascade promote --plan --json prints it",
    "prices": "Prices, as cascade prices --json prints them",
    "prove": "What a cascade would save, as cascade prove --json prints it; costs are shares of the reference's",
    "verify": "The checks of a policy, as cascade verify --json prints them",
}


def _closed(schema: Any, name: str = "") -> Any:
    """Return a schema in which objects have no other keys than those seen, but for maps by name."""
    if isinstance(schema, list):
        return [_closed(one, name) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if name in OPEN:
        return {}
    if "properties" in schema and name in MAPS:
        every = list(schema["properties"].values())
        builder = SchemaBuilder()
        for one in every:
            builder.add_schema(one)
        kept = {key: value for key, value in builder.to_schema().items() if key != "$schema"}
        return {"type": schema["type"], "additionalProperties": _closed(kept) if kept else True}
    found = {key: value for key, value in schema.items() if key != "properties"}
    if "properties" in schema:
        found["properties"] = {key: _closed(one, key) for key, one in sorted(schema["properties"].items())}
        found["additionalProperties"] = False
    for key in ("items", "anyOf"):
        if key in found:
            found[key] = _closed(found[key], name)
    return found


def main() -> None:
    """Write a schema for each command of which there are documents."""
    documents = defaultdict(list)
    for path in sorted(Path(sys.argv[1]).glob("*.json")):
        documents[path.name.split(".")[0]].append(json.loads(path.read_text("utf-8")))
    SCHEMAS.mkdir(exist_ok=True)
    for command, found in sorted(documents.items()):
        builder = SchemaBuilder()
        for one in found:
            builder.add_object(one)
        drawn = builder.to_schema()
        drawn.pop("$schema", None)
        head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": TITLES.get(command, command)}
        text = json.dumps({**head, **_closed(drawn)}, indent=1, ensure_ascii=False)
        (SCHEMAS / f"{command}.json").write_text(text + "\n", "utf-8")
        sys.stdout.write(f"{command}: {len(found)} documents\n")


if __name__ == "__main__":
    main()
