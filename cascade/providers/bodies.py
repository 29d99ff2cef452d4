"""Decompress the bytes of a reply as they arrive, up to a size limit, so that no gzip bomb fills the memory (F29)."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from cascade.types import Request

MOST_BYTES = 16 * 2**20
"""No reply is longer than this, whatever was asked for."""
_PLAIN_BYTES = 2 * 2**20
_TOKEN_BYTES = 64
_ALTERNATIVE_BYTES = 256
"""JSON of one token with its log-prob: field names, and the text twice (as bytes, too). 100–200 are usual."""
_EVENT_BYTES = 1_024
_SLICE_BYTES = 8 * 2**10
"""How much of a body is read before other calls have their turn. 4,000 empty lines of a stream take 2 ms; in slices of
64 KiB, 16 streams of such lines at once held up the deadlines of all by a second."""
_ENCODINGS = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


def most_streamed_bytes(request: Request) -> int:
    """Return the most bytes that a stream may have: more than a whole reply, since each event adds its own fields."""
    return MOST_BYTES + request.max_tokens * _EVENT_BYTES


class BadBodyError(Exception):
    """A body that cannot be decompressed, or is too long; the message says why."""


def most_bytes(request: Request) -> int:
    """Return the most bytes that a reply may have, decompressed: 2 MiB plus room for its tokens and log-probs.

    A reply is parsed in one piece, which takes 0.1 to 0.3 s for 2 MiB of the slowest JSON, so its length is limited
    beforehand.
    """
    token = _TOKEN_BYTES
    if request.top_logprobs is not None:
        token += (1 + request.top_logprobs) * _ALTERNATIVE_BYTES
    return min(MOST_BYTES, _PLAIN_BYTES + request.max_tokens * token)


def _slices(piece: bytes) -> Iterator[bytes]:
    return (piece[start : start + _SLICE_BYTES] for start in range(0, len(piece), _SLICE_BYTES))


class Body:
    """Decompresses the pieces of one body, a slice at a time.

    Args:
        encoding: the Content-Encoding header. One coding of gzip or deflate is known; no server needs two.
        most: the most bytes that are accepted, before and after decompression.

    Raises:
        BadBodyError: the coding is unknown.
    """

    def __init__(self, encoding: str, most: int) -> None:
        named = encoding.strip().lower()
        if named not in {"", "identity", *_ENCODINGS}:
            raise BadBodyError(f"the content encoding {encoding[:60]!r} is not one of gzip, deflate and identity")
        self._most = most
        self._bare = named == "deflate"  # some servers leave the two bytes before "deflate" out
        self._unpack = zlib.decompressobj(_ENCODINGS[named]) if named in _ENCODINGS else None
        self._came = 0
        self.size = 0

    def take(self, piece: bytes) -> Iterator[bytes]:
        """Yield the contents of a piece in slices of 8 KiB at most. Raises BadBodyError if damaged or too long."""
        self._came += len(piece)
        for plain in _slices(piece) if self._unpack is None else self._inflated(piece):
            self.size += len(plain)
            if max(self.size, self._came) > self._most:
                raise BadBodyError(f"the reply is longer than {self._most:,} bytes, which is more than was asked for")
            yield plain

    def _inflated(self, piece: bytes) -> Iterator[bytes]:
        assert self._unpack is not None  # noqa: S101 - the caller looked
        while piece and not self._unpack.eof:
            try:
                plain = self._unpack.decompress(piece, _SLICE_BYTES)
            except zlib.error:
                if not self._bare:
                    raise BadBodyError("the reply could not be decompressed") from None
                self._bare, self._unpack = False, zlib.decompressobj(-zlib.MAX_WBITS)
                continue
            self._bare, piece = False, self._unpack.unconsumed_tail
            yield plain

    @property
    def cut(self) -> bool:
        """Whether compressed data arrived without their end."""
        return self._unpack is not None and self._came > 0 and not self._unpack.eof
