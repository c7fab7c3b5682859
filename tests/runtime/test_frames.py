from __future__ import annotations

import json

import pytest
from hypothesis import given, settings, strategies as st

from silosynth.core.errors import MessageError
from silosynth.runtime.hub import ASK, DONE, MAX_BODY, REPLY, Frame, frame_from_bytes, read_frame

KINDS = st.sampled_from([ASK, REPLY, DONE])


def read(data: bytes) -> list[Frame]:
    """All frames of a stream of bytes."""
    at, frames = 0, []

    def take(size: int) -> bytes:
        nonlocal at
        at += size
        return data[at - size : at]

    while at < len(data):
        frames.append(read_frame(take))
    return frames


@settings(max_examples=50)
@given(st.lists(st.builds(Frame, KINDS, st.text(), st.integers(0), st.text(), st.binary())))
def test_frames_come_back_one_after_the_other(frames: list[Frame]) -> None:
    assert read(b"".join(frame.to_bytes() for frame in frames)) == frames
    assert [frame_from_bytes(frame.to_bytes()) for frame in frames] == frames


def head(**changes: object) -> bytes:
    fields = {"kind": ASK, "job": "j", "step": 1, "sender": "bank", "size": 2, **changes}
    text = json.dumps({key: value for key, value in fields.items() if value is not None}).encode()
    return b"\x01" + len(text).to_bytes(4, "little") + text


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01",
        b"\x02ab",
        b"\x03\x02\x00\x00\x00{}",
        b"\x01\xff\xff\xff\xff{}",
        b"\x01\x02\x00\x00\x00[]",
        head() + b"abc",
        head() + b"a",
        head(kind="shout") + b"ab",
        head(size=-1),
        head(size=MAX_BODY + 1),
        head(size=MAX_BODY) + b"ab",
        head(size="2") + b"ab",
        head(step=True) + b"ab",
        head(step=None) + b"ab",
        head(extra=1) + b"ab",
    ],
)
def test_bytes_that_are_no_frame_are_refused(data: bytes) -> None:
    with pytest.raises(MessageError) as caught:
        frame_from_bytes(data)
    assert caught.value.remedy
