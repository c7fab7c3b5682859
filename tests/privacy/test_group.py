from __future__ import annotations

import itertools

import pytest
import torch
from scipy import stats
from tests.oracles import sealed as slow
from tests.privacy.talk import agreed, secret

from silosynth.core.errors import ProtocolError
from silosynth.privacy.sealed import framed


class TestPermutation:
    @pytest.mark.parametrize("n", [0, 1, 2, 3, 1000])
    def test_it_is_one(self, n: int) -> None:
        order = agreed(1)["bank"].permutation(n, "rows")
        assert order.dtype == torch.int64
        assert sorted(order.tolist()) == list(range(n))

    def test_it_is_the_order_of_a_chacha20_keystream(self) -> None:
        silo = agreed(1)["bank"]
        key = slow.hkdf(secret(silo), framed("silosynth group 1", "permutation", "shuffle", "rows", "100"))
        stream = b"".join(slow.chacha20_block(key, i, bytes(12)) for i in range(13))
        words = [int.from_bytes(stream[8 * i : 8 * i + 8], "little", signed=True) for i in range(100)]
        assert silo.permutation(100, "rows").tolist() == sorted(range(100), key=words.__getitem__)

    @pytest.mark.parametrize("n", [2, 3, 4])
    def test_every_order_is_equally_likely(self, n: int) -> None:
        """Over contexts of a lasting secret, so that the test is the same each time."""
        silo, orders = agreed(1, fresh=False)["bank"], list(itertools.permutations(range(n)))
        found = [tuple(silo.permutation(n, f"rows {i}").tolist()) for i in range(200 * len(orders))]
        assert stats.chisquare([found.count(order) for order in orders]).pvalue > 0.001

    def test_contexts_and_lengths_give_independent_orders(self) -> None:
        silo = agreed(1, fresh=False)["bank"]
        first, other = silo.permutation(4000, "a"), silo.permutation(4000, "b")
        assert torch.equal(first, silo.permutation(4000, "a"))
        longer = silo.permutation(4001, "a")
        assert abs(stats.spearmanr(first, other).statistic) < 5 / 4000**0.5
        assert abs(stats.spearmanr(first, longer[:4000]).statistic) < 5 / 4000**0.5
        assert (first == other).sum() < 12  # one is expected


class TestSealing:
    def test_only_the_group_opens_it_and_for_its_context_only(self) -> None:
        silos, strangers = agreed(), agreed()
        blob = silos["bank"].seal("rows", b"text")
        assert silos["shop"].open("rows", blob) == b"text"
        for group, context in ((silos["shop"], "columns"), (strangers["shop"], "rows")):
            with pytest.raises(ProtocolError, match="opens with its secret"):
                group.open(context, blob)

    def test_every_byte_counts(self) -> None:
        silo = agreed(1)["bank"]
        blob = silo.seal("rows", b"text")
        for place in range(len(blob)):
            with pytest.raises(ProtocolError):
                silo.open("rows", blob[:place] + bytes([blob[place] ^ 1]) + blob[place + 1 :])
            with pytest.raises(ProtocolError):
                silo.open("rows", blob[:place])

    def test_a_nonce_is_used_once(self) -> None:
        silo = agreed(1)["bank"]
        assert len({silo.seal("rows", b"text")[:12] for _ in range(100)}) == 100

    def test_its_form_is_chacha20_poly1305_after_a_nonce(self) -> None:
        silo = agreed(1)["bank"]
        blob = silo.seal("rows", b"text")
        key = slow.hkdf(secret(silo), framed("silosynth group 1", "seal", "shuffle", "rows"))
        assert slow.chacha20_poly1305(key, blob[:12], b"text", b"") == blob[12:]

    def test_uses_have_keys_of_their_own(self) -> None:
        silo = agreed(1)["bank"]
        assert len({silo.key("a"), silo.key("b"), silo._key("seal", "a"), silo._key("permutation", "a", "3")}) == 4

    def test_nothing_secret_is_shown(self) -> None:
        silo = agreed(1)["bank"]
        assert secret(silo).hex() not in repr(silo) and repr(secret(silo)) not in repr(silo)
