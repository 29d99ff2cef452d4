"""No circle of imports, module by module. `lint-imports` sees circles of siblings; a package and what is in it are none."""

from __future__ import annotations

from graphlib import TopologicalSorter

import grimp


def test_modules_import_each_other_in_no_circle() -> None:
    graph = grimp.build_graph("cascade", cache_dir=None)  # imports in functions and for types are in it
    imported = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(imported).prepare()  # raises CycleError with the circle
