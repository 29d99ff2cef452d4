"""An optional local sentence model: a question's meaning as 384 numbers.

all-MiniLM-L6-v2 with int8 weights, run by onnxruntime (extra `embed`); its weights come with `cascade models pull
minilm`, pinned by hash as those of the other local models. One question takes about 7 ms of one core; its first 256
tokens are read. Nothing leaves the machine.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import Any

import numpy as np

from cascade.conformal.arrays import Floats
from cascade.errors import MissingExtraError, ModelFileError
from cascade.forks import after_fork
from cascade.providers import weights

MODEL = "minilm"
WIDTH = 384
MOST_TOKENS = 256
"""The number of tokens that the model was trained on at a time."""
_NEEDED_FOR = "A policy that looks at a question's embedding"


class SentenceModel:
    """Embeds texts, one at a time: float64 (384,) of length 1, the mean over its tokens. Safe to share.

    Raises:
        MissingExtraError: onnxruntime or tokenizers is not installed.
        ModelFileError: the weights are not on this machine.
    """

    def __init__(self) -> None:
        try:
            import onnxruntime
            import tokenizers
        except ModuleNotFoundError as error:
            raise MissingExtraError(str(error.name), _NEEDED_FOR) from None
        model, words = weights.with_others([MODEL])
        if not (model.here and words.here):
            raise ModelFileError(f"{_NEEDED_FOR} needs the weights of {MODEL}. Fetch them: cascade models pull {MODEL}")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1  # one order of additions, so the same bits
        self._session: Any = onnxruntime.InferenceSession(str(model.path), options, providers=["CPUExecutionProvider"])
        self._tokenizer: Any = tokenizers.Tokenizer.from_file(str(words.path))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(MOST_TOKENS)
        self._begin()
        after_fork(self._begin)
        self._name = f"{MODEL}:{model.sha256[:16]}"

    def _begin(self) -> None:
        """Make the lock, again in a forked child. The session runs in the caller's thread, so it survives a fork."""
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """The model's name: `MODEL` and the start of its weights' SHA-256."""
        return self._name

    def __call__(self, text: str) -> Floats:
        """Return a text's embedding."""
        with self._lock:
            tokens = np.array([self._tokenizer.encode(text).ids], dtype=np.int64)
            fed = {"input_ids": tokens, "attention_mask": np.ones_like(tokens), "token_type_ids": np.zeros_like(tokens)}
            states = self._session.run(None, fed)[0][0].astype(np.float64)
        mean = states.mean(axis=0)
        return np.asarray(mean / np.sqrt((mean * mean).sum()))


@cache
def sentence_model() -> SentenceModel:
    """Return the process's shared model; loading it takes a third of a second. Raises as `SentenceModel` does."""
    return SentenceModel()
