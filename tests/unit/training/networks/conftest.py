"""One thread: what is multiplied here is small, and a second one waits more than it works."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    pytest.importorskip("torch")
    from cascade.training.networks.fitting import one_torch_thread

    with one_torch_thread():
        yield
