"""Random logs of single calls: missing answers, records that end early, unknown rightness, equal answers."""

import numpy as np

from cascade.table import Log, Node, Reference


def random_log(seed: int, n: int = 40, width: int = 4, *, whole: bool = False) -> Log:
    draw = np.random.default_rng([31, seed])
    length = np.full(n, width) if whole else draw.integers(1, width + 1, n)
    bought = np.arange(width) < length[:, None]
    answer = np.where(bought & (draw.random((n, width)) < 0.9), draw.integers(0, 3, (n, width)), -1)
    correct = draw.integers(0, 3, n)
    right = np.where(answer >= 0, answer == correct[:, None], np.nan)
    right = np.where(draw.random((n, width)) < 0.05, np.nan, right)
    cost = np.where(bought, draw.integers(1, 50, (n, width)) * 10 ** np.arange(width), 0)
    difficulty = draw.random(n)
    signals = {
        "reply_mean_logprob": np.where(bought, -difficulty[:, None] + 0.4 * draw.normal(size=(n, width)), np.nan),
        "reply_tokens": np.where(bought, draw.integers(1, 60, (n, width)), np.nan),
        "self_check": np.where(bought & (draw.random((n, width)) < 0.7), draw.random((n, width)).round(1), np.nan),
    }
    return Log(
        name="random",
        nodes=tuple([Node(f"model {at}", at, reads=()) for at in range(width)]),
        ids=tuple([f"r{at}" for at in range(n)]),
        groups=tuple([f"g{at}" for at in range(n)]),
        answer=answer,
        right=right,
        cost_nano_usd=cost,
        bought=bought,
        complete=(length == width) | (draw.random(n) < 0.5),
        confidence=np.where(answer >= 0, draw.random((n, width)), np.nan),
        signals=signals,
        features={"words": draw.integers(1, 90, n) + 0.0, "digits": difficulty + 0.2 * draw.normal(size=n)},
        reference=Reference(np.nan_to_num(right[:, -1]), cost[:, -1], is_last=True),
        texts_known=draw.random(n) < 0.8,
    )
