"""Where networks can be trained."""

from __future__ import annotations

import torch


def gpus() -> int:
    """Return how many GPUs torch finds here."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0
