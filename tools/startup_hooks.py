"""Fail if an installed package runs code at every start of Python through a .pth file that is not known (F72)."""

from __future__ import annotations

import site
import sys
from pathlib import Path

KNOWN = ("distutils-precedence.pth", "__editable__", "_virtualenv.pth", "_certified_cascade.pth", "a1_coverage.pth")


def main() -> None:
    """Look through every site folder."""
    hooks = [
        str(path)
        for folder in site.getsitepackages()
        for path in Path(folder).glob("*.pth")
        if not path.name.startswith(KNOWN)
        and any(line.startswith(("import ", "import\t")) for line in path.read_text("utf-8").splitlines())
    ]
    if hooks:
        sys.exit("these files run code at every start of Python: " + ", ".join(hooks))
    print("no unknown start-up hooks")


if __name__ == "__main__":
    main()
