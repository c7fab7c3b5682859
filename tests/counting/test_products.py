"""Products modulo 2^k against Python's own integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from silosynth.counting.products import ROWS, WIDTHS, level_sums, product, random_words, row_products

widths = st.sampled_from(sorted(WIDTHS))


def drawn(data: st.DataObject, rows: int, columns: int, bits: int) -> np.ndarray:
    """Words of which many are the greatest."""
    top = (1 << bits) - 1
    word = st.one_of(st.just(top), st.integers(0, top))
    cells = data.draw(st.lists(word, min_size=rows * columns, max_size=rows * columns))
    return np.array(cells, WIDTHS[bits]).reshape(rows, columns)


@settings(max_examples=25)
@given(st.data(), widths, st.integers(0, 4), st.integers(1, 3), st.integers(1, 3))
def test_products_are_those_of_integers(data: st.DataObject, bits: int, rows: int, k: int, j: int) -> None:
    a, b = drawn(data, rows, k, bits), drawn(data, rows, j, bits)
    exact = [[sum(int(x) * int(y) for x, y in zip(a[:, c], b[:, d], strict=True)) for d in range(j)] for c in range(k)]
    found = product(a, b)
    assert found.dtype == a.dtype and found.tolist() == [[cell % (1 << bits) for cell in line] for line in exact]
    by_row = [[int(x) * int(y) % (1 << bits) for x in a[i] for y in b[i]] for i in range(rows)]
    assert row_products(a, b).tolist() == by_row


@pytest.mark.parametrize("bits", sorted(WIDTHS))
def test_the_largest_products_of_many_rows_are_exact(bits: int) -> None:
    top, rows = (1 << bits) - 1, 2 * ROWS + 1
    a = np.full((rows, 1), top, WIDTHS[bits])
    assert int(product(a, a)[0, 0]) == top * top * rows % (1 << bits)


@pytest.mark.parametrize("bits", sorted(WIDTHS))
def test_products_of_parts_of_matrices(bits: int) -> None:
    """Whose words do not lie next to each other."""
    a, b = random_words(bytes(32), 50, 7, bits), random_words(bytes([1]) * 32, 50, 5, bits)
    whole = product(a, b)
    assert np.array_equal(product(a[:, 2:4], b[:, 1:]), whole[2:4, 1:])
    assert np.array_equal(product(np.asfortranarray(a), b), whole)
    assert np.array_equal(whole, (a.astype(object).T @ b.astype(object)) % (1 << bits))


@settings(max_examples=25)
@given(st.data(), widths, st.integers(0, 5), st.integers(0, 3), st.integers(1, 3), st.integers(0, 2))
def test_sums_by_level_are_those_of_adding_one_by_one(
    data: st.DataObject, bits: int, rows: int, each: int, k: int, beyond: int
) -> None:
    words = drawn(data, rows + beyond, k, bits)
    levels = np.array(data.draw(st.lists(st.integers(0, 3), min_size=rows * each, max_size=rows * each)), np.int64)
    levels = levels.reshape(rows, each)
    expected = np.zeros((4, k), WIDTHS[bits])
    for factor in range(each):
        np.add.at(expected, levels[:, factor], words[:rows])
    found = level_sums(words, levels, 4)
    assert found.dtype == words.dtype and np.array_equal(found, expected.T)


def test_random_words_are_those_of_the_seed_alone() -> None:
    a, b = random_words(bytes(32), 3, 4, 16), random_words(bytes(32), 4, 3, 16)
    assert a.tobytes() == b.tobytes() == random_words(bytes(32), 3, 2, 32).tobytes()
    assert a.tobytes() != random_words(bytes([1]) * 32, 3, 4, 16).tobytes()
