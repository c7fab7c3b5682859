"""A stream belongs to one attempt at a job: processes left over from an earlier one are refused."""

from __future__ import annotations

import threading

import pytest
from tests.runtime.toy import STREAMS, Adder

from silosynth.core.errors import ProtocolError
from silosynth.runtime.endpoint import PartyEndpoint
from silosynth.runtime.stream import StreamHub, serve_endpoint
from silosynth.runtime.tls import Authority


@pytest.mark.live
def test_a_process_of_another_attempt_is_refused_and_leaves_its_place_to_the_right_one() -> None:
    authority = Authority()
    hub = StreamHub(["bank"], authority.coordinator(), attempt="second")

    def serve(attempt: str) -> None:
        endpoint = PartyEndpoint("bank", Adder("bank", STREAMS), None)
        serve_endpoint(endpoint, address=hub.address, certs=authority.party("bank"), patience=10.0, attempt=attempt)

    try:
        with pytest.raises(ProtocolError, match="'bank' belongs to another attempt, or another job"):
            serve("first")
        right = threading.Thread(target=serve, args=("second",))
        right.start()
        hub.wait_for_all(30.0, lambda name: None)
    finally:
        hub.stop()
    right.join(30.0)
    assert not right.is_alive()
