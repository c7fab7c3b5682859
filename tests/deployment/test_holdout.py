"""Rows that silos set aside before training: the same persons everywhere, by a key that no coordinator knows."""

from __future__ import annotations

import itertools
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.deployment.common import OPEN, Rows, customers, job, parties, two_silos

from silosynth.core.conversation import Exchange, Roster
from silosynth.core.errors import ConfigError, PolicyError, ProtocolError, StorageError
from silosynth.core.messages import Message
from silosynth.core.streams import Streams
from silosynth.deployment import holdout, protocol
from silosynth.deployment.conducting import _begin
from silosynth.deployment.protocol import Job
from silosynth.deployment.silo import DeploymentSilo
from silosynth.privacy.sealed import seats
from silosynth.runtime.wire import decode, encode, pack, unpack

KEY, OTHER = b"k" * 32, b"o" * 32


def begun(one: Job, sides: dict[str, DeploymentSilo], change: Any = lambda silo, ask: ask) -> dict[str, list[Message]]:
    """Carry a job up to training; returns what silos replied."""
    talk, heard = _begin(one, Roster(one.silos)), {silo: list[Message]() for silo in sides}
    step = next(talk)
    try:
        while True:
            replies: dict[str, Message] = {}
            for silo, ask in step.asks.items() if isinstance(step, Exchange) else ():
                replies[silo] = decode(encode(sides[silo].answer(decode(encode(change(silo, ask))))))  # type: ignore
                heard[silo].append(replies[silo])
            step = talk.send(replies)
    except StopIteration:
        return heard


def trained_on(rows: Rows, side: DeploymentSilo) -> set[str]:
    """The customers whom a silo trains on."""
    assert side._order is not None
    return set(rows.frame["customer"].iloc[side._order.numpy()])


def aligned(share: float, folder: Path, silos: dict[str, Rows] | None = None, **more: Any) -> dict[str, set[str]]:
    """Each silo's customers to train on."""
    silos = two_silos() if silos is None else silos
    sides = parties(silos, folder)
    begun(job(silos, holdout=share, **more), sides)
    return {silo: trained_on(silos[silo], side) for silo, side in sides.items()}


def test_silos_hold_out_the_same_persons_and_again_the_same_in_later_jobs(tmp_path: Path) -> None:
    everybody = aligned(0.0, tmp_path / "all")
    first, second = aligned(0.2, tmp_path), aligned(0.2, tmp_path, name="later")
    assert first["bank"] == first["shop"] == second["bank"] == second["shop"]
    assert first["bank"] < everybody["bank"] and 10 <= len(everybody["bank"] - first["bank"]) <= 50  # of 143
    more = aligned(0.4, tmp_path, name="more")
    assert more["bank"] < first["bank"]  # of a larger share they are among the others


def test_keys_are_alike_secret_and_readable_by_the_silo_alone(tmp_path: Path) -> None:
    silos = two_silos()
    heard = begun(job(silos, holdout=0.2), parties(silos, tmp_path))
    files = [tmp_path / silo / "holdout.key" for silo in silos]
    assert len({file.read_bytes() for file in files}) == 1 and len(files[0].read_bytes()) == 32
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in files)
    assert not any(files[0].read_bytes() in encode(reply) for replies in heard.values() for reply in replies)
    sealed = [reply for replies in heard.values() for reply in replies if isinstance(reply, protocol.SealedHoldoutKey)]
    begun(job(silos, holdout=0.2, name="later"), sides := parties(silos, tmp_path))
    again = holdout.seal_key(sides["bank"]._group(), "bank", files[0].read_bytes())
    assert len(again) == len(sealed[0].sealed)  # whether a key is kept, the length does not tell


def test_a_silo_without_a_key_gets_that_of_the_others(tmp_path: Path) -> None:
    before = aligned(0.2, tmp_path)
    (tmp_path / "shop" / "holdout.key").unlink()
    assert aligned(0.2, tmp_path, name="later") == before
    assert (tmp_path / "shop" / "holdout.key").read_bytes() == (tmp_path / "bank" / "holdout.key").read_bytes()


def test_silos_with_different_keys_are_told_what_to_do(tmp_path: Path) -> None:
    for silo, key in (("bank", KEY), ("shop", OTHER)):
        (tmp_path / silo).mkdir()
        (tmp_path / silo / "holdout.key").write_bytes(key)
    with pytest.raises(ProtocolError, match=r"by one key, and bank, shop keep different ones.*Delete work/hold"):
        aligned(0.2, tmp_path)
    (tmp_path / "shop" / "holdout.key").write_bytes(b"short")
    with pytest.raises(StorageError, match="is 32 bytes"):
        holdout.HoldoutKey(tmp_path / "shop").read()


def test_a_key_that_another_job_has_kept_meanwhile_stays(tmp_path: Path) -> None:
    keys = holdout.HoldoutKey(tmp_path)
    keys.keep(KEY)
    keys.keep(KEY)
    with pytest.raises(ProtocolError, match="keep different ones"):
        keys.keep(OTHER)
    assert keys.read() == KEY


def test_rows_in_the_same_order_are_held_out_by_their_place(tmp_path: Path) -> None:
    whole = customers(160)
    silos = {
        "bank": Rows(whole[["customer", "age", "income"]], ["customer"]),  # which only one silo has
        "shop": Rows(whole[["visits", "paid"]]),
    }
    sides = parties(silos, tmp_path)
    begun(job(silos, holdout=0.25, align=None), sides)
    orders = [side._order for side in sides.values()]
    assert orders[0] is not None and torch.equal(orders[0], orders[1])  # type: ignore[arg-type]
    assert 90 <= len(orders[0]) < 145


def test_silos_with_rows_of_their_own_need_no_common_key(tmp_path: Path) -> None:
    whole = customers(200).reset_index(drop=True)
    silos = {"north": Rows(whole[:100], ["customer"]), "south": Rows(whole[100:].reset_index(drop=True), ["customer"])}
    trained = {}
    for name in ("one", "two"):
        sides = parties(silos, tmp_path / name)
        heard = begun(job(silos, algorithm="gdts", align=None, options={}, holdout=0.2, name=name), sides)
        assert not any(isinstance(reply, protocol.SealedHoldoutKey) for replies in heard.values() for reply in replies)
        trained[name] = [side._order.tolist() for side in sides.values()]  # type: ignore[union-attr]
    assert trained["one"] == trained["two"] and trained["one"][0] != trained["one"][1]
    assert not (tmp_path / "one" / "north" / "holdout.key").exists()


def test_least_rows_counts_those_that_are_left(tmp_path: Path) -> None:
    silos = two_silos()
    policy = OPEN.model_copy(update={"least_rows": 140})  # of 143
    begun(job(silos), parties(silos, tmp_path / "all", policy))
    with pytest.raises(PolicyError, match="least_rows"):
        begun(job(silos, holdout=0.2), parties(silos, tmp_path / "some", policy))


def test_a_restored_silo_trains_on_the_same_rows(tmp_path: Path) -> None:
    silos = two_silos()
    sides, one = parties(silos, tmp_path), job(silos, holdout=0.2)
    begun(one, sides)
    again = parties(silos, tmp_path)["bank"]
    again.restore(unpack(pack(sides["bank"].state())))
    assert again._order is not None and torch.equal(again._order, sides["bank"]._order)  # type: ignore[arg-type]
    assert again._digest == sides["bank"]._digest


@pytest.mark.parametrize("share", [0.33, -0.05, 1.0, 0.01])
def test_shares_are_whole_twentieths(share: float) -> None:
    with pytest.raises(ConfigError, match="in whole twentieths"):
        job(two_silos(20), holdout=share)


# A coordinator that deviates.


def test_keys_of_an_earlier_job_do_not_open(tmp_path: Path) -> None:
    silos, old = two_silos(), []
    begun(job(silos, holdout=0.2), parties(silos, tmp_path), lambda _, ask: old.append(ask) or ask)  # type: ignore[func-returns-value]
    (earlier, *_) = (ask for ask in old if isinstance(ask, protocol.RelayedHoldoutKeys))

    def change(silo: str, ask: Message) -> Message:
        return earlier if isinstance(ask, protocol.RelayedHoldoutKeys) and silo == "shop" else ask

    with pytest.raises(ProtocolError, match="What a group sealed opens with its secret"):
        begun(job(silos, holdout=0.2, name="later"), parties(silos, tmp_path), change)


@pytest.mark.parametrize(
    "change",
    [
        lambda ask: replace(ask, sealed=ask.sealed[::-1]),
        lambda ask: replace(ask, sealed=ask.sealed[:1]),
        lambda ask: replace(ask, sealed=(ask.sealed[0], ask.sealed[0])),
        lambda ask: replace(ask, sealed=(b"x", ask.sealed[1])),
    ],
)
def test_altered_keys_are_refused(change: Any, tmp_path: Path) -> None:
    silos = two_silos(60)

    def deviate(_: str, ask: Message) -> Message:
        return change(ask) if isinstance(ask, protocol.RelayedHoldoutKeys) else ask

    with pytest.raises(ProtocolError, match=r"sealed opens with|told what every silo keeps"):
        begun(job(silos, holdout=0.2), parties(silos, tmp_path), deviate)
    assert not (tmp_path / "bank" / "holdout.key").exists()


def test_silos_that_hold_out_other_rows_notice(tmp_path: Path) -> None:
    """Such as because their rows are not in the same order, and differ in number of rows nowhere."""
    silos = two_silos()
    sides = parties(silos, tmp_path)
    shop = sides["shop"]
    shop._hold_out = lambda: setattr(shop, "_held", torch.ones(143, dtype=torch.bool))  # type: ignore[method-assign]
    with pytest.raises(ProtocolError, match=r"(All silos take up the same rows|same rows in the same order)"):
        begun(job(silos, holdout=0.2, align=None), {**sides})


@pytest.mark.parametrize("at", [protocol.AskHoldoutKey, protocol.AskHoldoutTag, protocol.ShownHoldoutTags])
def test_holding_out_has_its_turn(at: type[Message], tmp_path: Path) -> None:
    silos = two_silos()
    sides = parties(silos, tmp_path)

    def deviate(silo: str, ask: Message) -> Message:
        return protocol.PrepareRows() if isinstance(ask, at) and silo == "shop" else ask

    with pytest.raises(ProtocolError, match="in their turn"):
        begun(job(silos, holdout=0.2), sides, deviate)


# The hash.


def test_shares_are_nested_and_of_about_the_size_that_they_say() -> None:
    names = [f"C-{row}".encode() for row in range(2000)]
    found = [holdout.held_out(KEY, share, names) for share in protocol.SHARES]
    for smaller, larger in itertools.pairwise(found):
        assert bool((smaller <= larger).all())
    for share, rows in zip(protocol.SHARES, found, strict=True):
        assert abs(float(rows.float().mean()) - share) < 5 * (share * (1 - share) / 2000) ** 0.5 + 1e-9
    assert not torch.equal(holdout.held_out(OTHER, 0.2, names), holdout.held_out(KEY, 0.2, names))
    assert torch.equal(holdout.held_out(KEY, 0.2, 50), holdout.held_out(KEY, 0.2, 80)[:50])  # rows that are added


def test_tags_are_of_a_silo_its_rows_and_the_job(tmp_path: Path) -> None:
    silos = two_silos(40)
    begun(job(silos, holdout=0.2), sides := parties(silos, tmp_path))
    group, rows = sides["bank"]._group(), torch.tensor([True, False, True])
    made = {holdout.tag(group, silo, held) for silo in silos for held in (rows, ~rows, rows[:2])}
    assert len(made) == 6
    begun(job(silos, holdout=0.2, name="later"), later := parties(silos, tmp_path))
    assert holdout.tag(later["bank"]._group(), "bank", rows) not in made


def test_own_keys_follow_from_the_silos_keys() -> None:
    made = seats(["a", "b"], Streams(1))
    assert holdout.own_key(made["a"]) != holdout.own_key(made["b"]) and holdout.own_key(made["a"]) != made["a"].private
