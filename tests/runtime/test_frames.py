from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from silosynth.core.errors import MessageError
from silosynth.runtime import frames as module
from silosynth.runtime.frames import ASK, LARGEST, PIECE, REPLY, Frame, Joiner


def joined(pieces: list[bytes]) -> list[Frame]:
    joiner = Joiner()
    return [frame for piece in pieces if (frame := joiner.add(piece)) is not None]


@settings(max_examples=50)
@given(st.lists(st.builds(Frame, st.sampled_from([ASK, REPLY]), st.text(), st.integers(0), st.text(), st.binary())))
def test_frames_come_back_one_after_the_other(frames: list[Frame]) -> None:
    assert joined([piece for frame in frames for piece in frame.pieces()]) == frames


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 2 * PIECE + 1])
def test_large_frames_travel_in_pieces(size: int) -> None:
    frame = Frame(ASK, "job", 3, "bank", bytes(size))
    pieces = list(frame.pieces())
    assert len(pieces) == max(1, -(-size // PIECE))
    assert max(map(len, pieces)) < PIECE + 1000 < 4 << 20
    assert joined(pieces) == [frame]


def head(**changes: object) -> bytes:
    fields = {"kind": ASK, "job": "j", "step": 1, "sender": "bank", "size": 2, **changes}
    text = json.dumps({key: value for key, value in fields.items() if value is not None}).encode()
    return b"\x01" + len(text).to_bytes(4, "little") + text


@pytest.mark.parametrize(
    "pieces",
    [
        [b""],
        [b"\x02ab"],
        [b"\x03"],
        [b"\x01\xff\xff\xff\xff{}"],
        [b"\x01\x02\x00\x00\x00[]"],
        [head() + b"abc"],
        [head() + b"a", head() + b"a"],
        [head() + b"a", b"\x02"],
        [head() + b"a", b"\x02bc"],
        [head(kind="shout")],
        [head(size=-1)],
        [head(size=LARGEST + 1)],
        [head(size="2")],
        [head(step=True)],
        [head(step=None)],
        [head(extra=1)],
    ],
)
def test_pieces_that_do_not_fit_are_refused(pieces: list[bytes]) -> None:
    with pytest.raises(MessageError) as caught:
        joined(pieces)
    assert caught.value.remedy


def test_an_unfinished_frame_is_no_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE", 10)
    pieces = list(Frame(ASK, "job", 1, "bank", bytes(35)).pieces())
    assert len(pieces) == 4
    assert joined(pieces[:-1]) == []
