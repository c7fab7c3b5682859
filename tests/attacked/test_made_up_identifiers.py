"""A silo, with a coordinator's help, that makes up identifiers to learn whom another silo holds."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.alignment.talk import aligners, people, run
from tests.deployment import common

from silosynth.alignment import AlignConfig, Aligner, intersection, protocol
from silosynth.core.conversation import Conversation, Exchange, Party, Roster
from silosynth.core.errors import ProtocolError
from silosynth.core.messages import Message
from silosynth.deployment.conducting import _begin
from silosynth.deployment.policy import SiloPolicy
from silosynth.privacy.agreement import agree

HELD = people(range(20))
PSI = AlignConfig()


def two(made_up: int) -> dict[str, Aligner]:
    """A bank with made-up people, of whom the clinic holds some."""
    return aligners([people(range(made_up)), HELD])


def agreed(silos: dict[str, Aligner]) -> dict[str, Aligner]:
    """The same, with their secrets."""
    for purpose, fresh in ((protocol.TAGS, True), (protocol.ORDER, False)):
        driven(agree(Roster(tuple(silos)), purpose, fresh=fresh), silos)
    return silos


def driven(talk: Conversation[Any], silos: Mapping[str, Party]) -> None:
    """Have these silos answer to the end."""
    answers: dict[str, Message] | None = None
    try:
        while True:
            step = talk.send(answers)  # type: ignore[arg-type]
            asks = step.asks if isinstance(step, Exchange) else {}
            answers = {silo: silos[silo].answer(ask) for silo, ask in asks.items()}
    except StopIteration:
        return


def query(bank: Aligner, numbers: range) -> protocol.Answer:
    """A further query, of people that the bank makes up: it knows all that its own alignment knows."""
    key = bank._tagging.key("tags")
    tags = [hmac.digest(key, name, "sha256") for name in people(numbers) if name is not None]
    bank._key = intersection.new_key()
    return protocol.Answer(bank._seal("clinic", "query", intersection.query(bank._key, tags)))


def test_a_silo_answers_one_query() -> None:
    silos = agreed(two(30))
    bank, clinic = silos.values()
    for silo in (bank, clinic):
        silo.answer(protocol.TagRows())
    assert isinstance(clinic.answer(query(bank, range(5))), protocol.Answered)
    with pytest.raises(ProtocolError, match="answers one query"):
        clinic.answer(query(bank, range(5, 10)))


def test_rows_are_tagged_once_so_that_no_new_key_answers_another_query() -> None:
    silos = agreed(two(30))
    bank, clinic = silos.values()
    for silo in (bank, clinic):
        silo.answer(protocol.TagRows())
    clinic.answer(query(bank, range(5)))
    with pytest.raises(ProtocolError, match="tags its rows once"):
        clinic.answer(protocol.TagRows())
    agreed({"bank": bank, "clinic": clinic})
    with pytest.raises(ProtocolError, match="tags its rows once"):
        clinic.answer(protocol.TagRows())


def test_one_query_asks_about_no_more_than_a_multiple_of_the_rows() -> None:
    assert run(two(200), PSI).matched["clinic"].common == 20
    with pytest.raises(ProtocolError, match="no more identifiers of another"):
        run(two(201), PSI)


def test_the_leader_is_compared_with_no_more_either() -> None:
    with pytest.raises(ProtocolError, match="no more identifiers of another"):
        run(aligners([HELD, people(range(201))]), PSI)


def test_a_list_of_common_rows_is_taken_once_and_its_refusal_counts_nothing() -> None:
    silos = two(20)
    run(silos, PSI)
    bank, clinic = silos.values()
    key = bank._tagging.key("tags")
    made_up = bank._seal("clinic", "common", key)  # 32 bytes that are nobody's tag
    with pytest.raises(ProtocolError, match="once in an alignment"):
        clinic.answer(protocol.PlaceSealed(made_up))


def test_attempts_of_one_job_are_counted_together(tmp_path: Path) -> None:
    rows = common.two_silos(60)
    policy = SiloPolicy(public_seed=True, least_rows=10, psi_queries=2.5)
    job = common.job(rows, align=PSI)

    def attempt() -> None:
        silos = common.parties(rows, tmp_path, policy)
        driven(_begin(job, Roster(tuple(silos))), silos)

    attempt()
    attempt()
    with pytest.raises(ProtocolError, match="all attempts of the job"):
        attempt()
