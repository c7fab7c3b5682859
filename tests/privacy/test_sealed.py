from __future__ import annotations

import dataclasses
import traceback

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings, strategies as st
from tests.oracles import sealed as slow

from silosynth.core.conversation import Roster
from silosynth.core.errors import ConfigError, MessageError, ProtocolError
from silosynth.core.messages import Struct
from silosynth.core.streams import Streams
from silosynth.privacy import sealed
from silosynth.privacy.sealed import Envelope, Seat, derive, framed, seats
from silosynth.runtime.wire import decode, encode

SEATS = seats(("bank", "clinic", "shop"), Streams(7).child("seats"))
BANK, CLINIC, SHOP = SEATS.values()
TEXT = b"row 17 is Ada"
texts = st.text(max_size=20)


def fresh_seats(*names: str) -> dict[str, Seat]:
    keys = {name: X25519PrivateKey.generate() for name in names}
    roster = Roster(names, tuple(key.public_key().public_bytes_raw() for key in keys.values()))
    return {name: Seat(name, key.private_bytes_raw(), roster) for name, key in keys.items()}


class TestPrimitives:
    """The published vectors, through the functions that the package calls and through the slow twins."""

    def test_x25519(self) -> None:
        """RFC 7748, section 6.1."""
        alice = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
        bob = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
        alices, bobs = sealed._public(alice), sealed._public(bob)
        assert alices.hex() == "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
        assert bobs.hex() == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
        shared = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
        assert sealed._agreed(alice, bobs, "bob").hex() == sealed._agreed(bob, alices, "alice").hex() == shared
        assert (slow.public(alice), slow.public(bob)) == (alices, bobs)
        assert slow.x25519(alice, bobs).hex() == shared

    def test_hkdf(self) -> None:
        """RFC 5869, test cases 1 and 3, cut to the 32 bytes that a key has."""
        secret, salt, info = bytes([11] * 22), bytes(range(13)), bytes(range(0xF0, 0xFA))
        first = "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"
        third = "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d"
        assert derive(secret, info, salt).hex() == slow.hkdf(secret, info, salt).hex() == first
        assert derive(secret, b"").hex() == slow.hkdf(secret, b"").hex() == third
        assert slow.hkdf(secret, info, salt, 42).hex() == first + "34007208d5b887185865"

    def test_chacha20_poly1305(self) -> None:
        """RFC 8439, section 2.8.2."""
        key, nonce = bytes(range(0x80, 0xA0)), bytes.fromhex("070000004041424344454647")
        about = bytes.fromhex("50515253c0c1c2c3c4c5c6c7")
        text = (
            b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, "
            b"sunscreen would be it."
        )
        expected = bytes.fromhex(
            "d31a8d34648e60db7b86afbc53ef7ec2a4aded51296e08fea9e2b5a736ee62d63dbea45e8ca9671282fafb69da92728b"
            "1a71de0a9e060b2905d6a5b67ecd3b3692ddbd7f2d778b8c9803aee328091b58fab324e4fad675945585808b4831d7bc"
            "3ff4def08e4b7a9de576d26586cec64b61161ae10b594f09e26a7e902ecbd0600691"
        )
        assert sealed.ChaCha20Poly1305(key).encrypt(nonce, text, about) == expected
        assert slow.chacha20_poly1305(key, nonce, text, about) == expected

    @pytest.mark.parametrize("parts", [(("ab", "c"), ("a", "bc")), (("", "a"), ("a", "")), (("a",), ("a", ""))])
    def test_no_two_lists_of_parts_are_framed_alike(self, parts: tuple[tuple[str, ...], ...]) -> None:
        assert framed(*parts[0]) != framed(*parts[1])

    def test_frames(self) -> None:
        assert framed("é", b"\x00") == b"\x00\x00\x00\x02\xc3\xa9\x00\x00\x00\x01\x00"
        assert framed("\ud800")  # what JSON can carry is framed, not an exception


class TestConstruction:
    def test_the_form_on_the_wire_does_not_drift(self) -> None:
        """Silos of different versions talk to each other: changing it takes another label."""
        envelope = sealed._seal(BANK, "clinic", "purpose a, step 3", TEXT, bytes(range(32)))
        assert BANK.roster.key("bank").hex() == "66649d2090f99273696726a66c787873c0e2e7f50065399012e6d5aa44787a44"
        assert envelope.ephemeral.hex() == "8f40c5adb68f25624ae5b214ea767a6ec94d829d3d7b5e1ad1ba6f3e2138285f"
        assert envelope.ciphertext.hex() == "47c3ff161a5b37181c02d532b1ac7546a8715468e9e3dc379a22ded585"
        assert CLINIC.open(envelope, "purpose a, step 3") == TEXT

    @settings(max_examples=25)
    @given(st.binary(max_size=150), texts, st.binary(min_size=32, max_size=32))
    def test_it_is_the_one_that_the_docstring_describes(self, plaintext: bytes, context: str, ephemeral: bytes) -> None:
        ours = sealed._seal(SHOP, "bank", context, plaintext, ephemeral)
        theirs = slow.seal(SHOP.private, BANK.private, ("shop", "bank"), context, plaintext, ephemeral)
        assert (ours.ephemeral, ours.ciphertext) == theirs

    @settings(max_examples=50)
    @given(st.binary(max_size=400), texts)
    def test_what_is_sealed_opens(self, plaintext: bytes, context: str) -> None:
        envelope = decode(encode(BANK.seal("shop", context, plaintext)))
        assert isinstance(envelope, Envelope)
        assert SHOP.open(envelope, context) == plaintext
        assert len(envelope.ciphertext) == len(plaintext) + 16

    def test_the_same_text_never_looks_the_same(self) -> None:
        made = [BANK.seal("shop", "c", TEXT) for _ in range(50)]
        assert len({one.ephemeral for one in made}) == len({one.ciphertext for one in made}) == 50

    def test_both_directions_have_keys_of_their_own(self) -> None:
        once = bytes(range(32))
        there = sealed._seal(BANK, "shop", "c", TEXT, once)
        back = sealed._seal(SHOP, "bank", "c", TEXT, once)
        assert there.ciphertext != back.ciphertext


class TestRefusals:
    @settings(max_examples=300)
    @given(st.sampled_from(["ephemeral", "ciphertext"]), st.integers(0, 10_000), st.integers(1, 255))
    def test_a_changed_byte(self, field: str, place: int, change: int) -> None:
        envelope = BANK.seal("shop", "c", TEXT)
        raw = bytearray(getattr(envelope, field))
        raw[place % len(raw)] ^= change
        with pytest.raises(ProtocolError):
            SHOP.open(dataclasses.replace(envelope, **{field: bytes(raw)}), "c")

    @settings(max_examples=100)
    @given(st.sampled_from(["ephemeral", "ciphertext"]), st.binary(max_size=70))
    def test_other_bytes_of_any_length(self, field: str, raw: bytes) -> None:
        with pytest.raises(ProtocolError):
            SHOP.open(dataclasses.replace(BANK.seal("shop", "c", TEXT), **{field: raw}), "c")

    @pytest.mark.parametrize("position", [0, 12, 13, 28])
    def test_every_part_of_the_ciphertext_is_authenticated(self, position: int) -> None:
        """First and last byte of the text, first and last byte of the tag; and cut or extended there."""
        envelope = BANK.seal("shop", "c", TEXT)
        raw = envelope.ciphertext
        assert len(raw) == 29
        flipped = raw[:position] + bytes([raw[position] ^ 1]) + raw[position + 1 :]
        for other in (flipped, raw[:position], raw[:position] + b"\0" + raw[position:], raw + b"\0"):
            with pytest.raises(ProtocolError, match="silo 'shop' opens with the pinned keys"):
                SHOP.open(dataclasses.replace(envelope, ciphertext=other), "c")

    def test_the_bit_that_x25519_ignores(self) -> None:
        envelope = BANK.seal("shop", "c", TEXT)
        high = envelope.ephemeral[:31] + bytes([envelope.ephemeral[31] ^ 0x80])
        with pytest.raises(ProtocolError):
            SHOP.open(dataclasses.replace(envelope, ephemeral=high), "c")

    @given(texts, texts)
    @settings(max_examples=50)
    def test_another_context(self, sealed_for: str, opened_for: str) -> None:
        envelope = BANK.seal("shop", sealed_for, TEXT)
        if sealed_for == opened_for:
            assert SHOP.open(envelope, opened_for) == TEXT
        else:
            with pytest.raises(ProtocolError, match="another step"):
                SHOP.open(envelope, opened_for)

    def test_a_wrong_recipient(self) -> None:
        envelope = BANK.seal("shop", "c", TEXT)
        with pytest.raises(ProtocolError, match=r"addressed to it \(got: shop\)"):
            CLINIC.open(envelope, "c")
        with pytest.raises(ProtocolError, match="pinned keys"):
            CLINIC.open(dataclasses.replace(envelope, receiver="clinic"), "c")

    def test_a_sender_who_is_not_the_one_it_names(self) -> None:
        with pytest.raises(ProtocolError, match="one from 'clinic' that does not"):
            SHOP.open(dataclasses.replace(BANK.seal("shop", "c", TEXT), sender="clinic"), "c")

    def test_an_own_envelope_that_comes_back(self) -> None:
        envelope = BANK.seal("shop", "c", TEXT)
        with pytest.raises(ProtocolError, match="addressed to it"):
            BANK.open(envelope, "c")
        for names in ({"receiver": "bank"}, {"sender": "shop", "receiver": "bank"}):
            with pytest.raises(ProtocolError, match=r"other silos|pinned keys"):
                BANK.open(dataclasses.replace(envelope, **names), "c")

    @pytest.mark.parametrize("name", ["bank", "stranger", "coordinator", ""])
    def test_strangers_and_oneself(self, name: str) -> None:
        with pytest.raises(ProtocolError, match="with the other silos that its roster pins"):
            BANK.seal(name, "c", TEXT)
        with pytest.raises(ProtocolError, match="with the other silos that its roster pins"):
            BANK.open(dataclasses.replace(SHOP.seal("bank", "c", TEXT), sender=name), "c")

    @pytest.mark.parametrize("point", [0, 1, slow.P - 1, slow.P, slow.P + 1, 2**255 - 1])
    def test_points_of_low_order_and_other_forms(self, point: int) -> None:
        """0, 1, p - 1, p and p + 1 have low order (RFC 7748, section 6.1); the last has two encodings."""
        envelope = dataclasses.replace(BANK.seal("shop", "c", TEXT), ephemeral=point.to_bytes(32, "little"))
        with pytest.raises(ProtocolError):
            SHOP.open(envelope, "c")

    def test_a_pinned_key_of_low_order(self) -> None:
        seat = Seat("bank", BANK.private, Roster(("bank", "shop"), (BANK.roster.key("bank"), bytes(32))))
        with pytest.raises(ProtocolError, match="low order"):
            seat.seal("shop", "c", TEXT)

    def test_a_coordinator_who_substitutes_keys(self) -> None:
        """It sends each silo any keys that it likes: only those that each silo pinned count."""
        false = fresh_seats("bank", "shop")
        for envelope in (false["bank"].seal("shop", "c", TEXT), self._between(false["bank"])):
            with pytest.raises(ProtocolError, match="compare them"):
                SHOP.open(envelope, "c")
        with pytest.raises(ProtocolError, match="compare them"):
            false["shop"].open(BANK.seal("shop", "c", TEXT), "c")

    @staticmethod
    def _between(false: Seat) -> Envelope:
        """A forger who knows SHOP's true public key but not BANK's private one."""
        roster = Roster(("bank", "shop"), (false.roster.key("bank"), SHOP.roster.key("shop")))
        return Seat("bank", false.private, roster).seal("shop", "c", TEXT)

    def test_nothing_private_and_no_foreign_exception_is_shown(self) -> None:
        envelope = dataclasses.replace(BANK.seal("shop", "c", TEXT), ciphertext=bytes(40))
        with pytest.raises(ProtocolError) as caught:
            SHOP.open(envelope, "c")
        assert caught.value.__cause__ is None and caught.value.__suppress_context__
        shown = "".join(traceback.format_exception(caught.value)) + repr(SHOP) + str(SHOP)
        assert "InvalidTag" not in shown
        assert SHOP.private.hex() not in shown and repr(SHOP.private) not in shown and "private" not in repr(SHOP)
        assert caught.value.rule and caught.value.remedy


class TestSeats:
    def test_simulated_keys_are_a_function_of_the_seed(self) -> None:
        again = seats(("bank", "clinic", "shop"), Streams(7).child("seats"))
        other = seats(("bank", "clinic", "shop"), Streams(8).child("seats"))
        assert again == SEATS
        assert {seat.private for seat in other.values()}.isdisjoint(seat.private for seat in SEATS.values())
        assert len({seat.private for seat in SEATS.values()}) == 3

    def test_a_silo_keeps_its_key_whoever_else_takes_part(self) -> None:
        assert seats(("shop", "bank"), Streams(7).child("seats"))["bank"].private == BANK.private

    def test_a_private_key_that_is_not_the_pinned_one_is_refused(self) -> None:
        for private in (SHOP.private, b"", bytes(31)):
            with pytest.raises(ConfigError, match="belongs to the public key"):
                Seat("bank", private, BANK.roster)

    def test_a_roster_without_keys_or_name_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="pin each other's keys"):
            Seat("bank", BANK.private, Roster(("bank", "shop")))
        with pytest.raises(ConfigError, match="no such silo"):
            Seat("school", BANK.private, BANK.roster)

    def test_a_seat_cannot_travel(self) -> None:
        assert not isinstance(BANK, Struct)
        with pytest.raises(MessageError):
            encode(BANK)  # type: ignore[arg-type]
