"""Write cascade/data/prices.json from the price map of the installed litellm (MIT): chat models priced by the token.

python tools/make_prices.py 2026-11-21
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path

from cascade.money import compact_map, litellm_map_path


def main() -> None:
    """Read the map and write the table, dated as the command line says."""
    path = litellm_map_path()
    if path is None:
        sys.exit("litellm is not installed")
    models = compact_map(json.loads(path.read_bytes()))
    head = {
        "as_of": sys.argv[1],
        "source": f"the price map of litellm {version('litellm')}",
        "unit": "USD per 10^6 tokens",
    }
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in sorted(models.items()))
    text = json.dumps(head, indent=1)[:-2] + ',\n "models": {\n' + lines + "\n }\n}\n"
    target = Path(__file__).parent.parent / "cascade" / "data" / "prices.json"
    target.write_text(text, "utf-8")
    print(f"{len(models)} models, {len(text)} bytes")


if __name__ == "__main__":
    main()
