"""What an aligner's replies depend on, found from data flow: see `tests.contracts.test_declared`."""

from __future__ import annotations

import hashlib
import itertools
from types import SimpleNamespace

import pytest
from tests.alignment.talk import Talk, aligned

from silosynth.core.messages import Release, wire_name
from silosynth.deployment.policy import EXACT_ROWS
from silosynth.privacy import agreement, sealed

DECLARED = (Release.SEALED, Release.PSEUDONYMS, Release.COUNTS)


def talk(monkeypatch: pytest.MonkeyPatch, method: str, other: bytes) -> Talk:
    """Of two silos, one of which has a row of somebody else; the system's randomness is the same each time."""
    count = itertools.count()
    known = SimpleNamespace(urandom=lambda size: hashlib.sha512(b"%d" % next(count)).digest()[:size])
    for module in (agreement, sealed):
        monkeypatch.setattr(module, "os", known)
    return aligned([[b"ada", b"bob", b"eve"], [b"bob", b"eve", other]], method)


@pytest.mark.parametrize("method", ["keyed-hash", "psi"])
def test_every_reply_that_depends_on_an_identifier_declares_it(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    if method == "psi":
        pytest.importorskip("private_set_intersection.python")
    one, other = (talk(monkeypatch, method, name).answered for name in (b"joe", b"ada"))
    differing = {type(a[1]) for a, b in zip(one, other, strict=True) if a[2] != b[2]}
    assert differing and all(kind.release in DECLARED for kind in differing)
    if method == "psi":
        assert {wire_name(kind) for kind in differing} <= EXACT_ROWS.keys()
