"""Models, samples and ledgers are those that were recorded, in both runtimes."""

from __future__ import annotations

import pytest
from tests.recorded import records
from tests.recorded.digests import digests
from tests.recorded.settings import APART, NAMES


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_both_runtimes_give_what_was_recorded(name):
    here = digests(name, "inprocess")
    if name in APART:
        assert here == digests(name, "processes")
    kept = records.read()
    if not kept:
        pytest.skip(records.REMEDY)
    assert name in kept, f"record it: python -m tests.recorded record {name!r} --at REV"
    assert here == {facet: digest for facet, digest in kept[name].items() if facet != "commit"}
