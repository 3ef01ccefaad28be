"""Damaged inputs: what a good file is after a few blows."""

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

PLACE = st.integers(0, 1 << 20)


@st.composite
def mutated(draw: Any, good: bytes, words: Sequence[bytes]) -> bytes:
    """The good bytes after one to four blows, or anything at all."""
    if draw(st.integers(0, 19)) == 0:
        return draw(st.binary(max_size=300))
    content = bytearray(good)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(PLACE) % (len(content) + 1)
        end = min(len(content), at + draw(st.sampled_from([1, 1, 2, 4, 8, 30, 1000])))
        how = draw(st.sampled_from(["flip", "byte", "word", "cut", "drop", "again", "over"]))
        if how == "flip" and at < len(content):
            content[at] ^= 1 << draw(st.integers(0, 7))
        elif how == "byte" and at < len(content):
            content[at] = draw(st.integers(0, 255))
        elif how == "word":
            content[at:at] = draw(st.sampled_from(words))
        elif how == "over":
            content[at:end] = draw(st.sampled_from(words))[: end - at or None]
        elif how == "cut":
            del content[at:]
        elif how == "drop":
            del content[at:end]
        elif how == "again":
            content[at:at] = content[at:end]
    return bytes(content)
