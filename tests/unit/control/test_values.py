from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vringd.control import values
from vringd.control.host import show_cpus


@pytest.mark.parametrize("value", ["on", "yes", "true", "y", True])
def test_switch_on(value: Any) -> None:
    assert values.switch(value) is True


@pytest.mark.parametrize("value", ["off", "no", "false", "n", False])
def test_switch_off(value: Any) -> None:
    assert values.switch(value) is False


@pytest.mark.parametrize("value", ["", "On", "1", 1, 0, None, [], {}])
def test_switch_refuses_everything_else(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^expected on or off$"):
        values.switch(value)


@pytest.mark.parametrize(
    ("value", "expected"), [("0", 0), ("10", 10), ("0x10", 16), ("010", 8), ("+7", 7), (12, 12)]
)
def test_integers_are_spelled_as_in_c(value: Any, expected: int) -> None:
    assert values.integer(0, 100)(value) == expected


@pytest.mark.parametrize(
    "value", ["", "x", "1x", "-1", "101", "1.5", "08", "0x", " 1", "1_0", "\u0661", True, 1.0, None]
)
def test_integer_refuses_everything_else(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^expected a whole number from 0 to 100$"):
        values.integer(0, 100)(value)


def test_integer_without_an_upper_limit_does_not_tell_one() -> None:
    with pytest.raises(ValueError, match=r"^expected a whole number, 0 or more$"):
        values.integer(0, values.UINT64_MAX)(str(2**64))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("512", 512),
        ("512B", 512),
        ("4k", 4096),
        ("4K", 4096),
        ("1M", 1 << 20),
        ("1G", 1 << 30),
        ("2T", 2 << 40),
        ("1P", 1 << 50),
        ("1E", 1 << 60),
        ("1.5K", 1536),
        ("0x200", 512),
        ("010", 10),
        (512, 512),
    ],
)
def test_sizes_have_suffixes(value: Any, expected: int) -> None:
    assert values.size(0)(value) == expected


@pytest.mark.parametrize("value", ["", "K", "-1K", "1KB", "1 K", "1.K", "8E", True, None])
def test_size_refuses_everything_else(value: Any) -> None:
    with pytest.raises(
        ValueError, match=r"^expected a size of 0 or more \(suffixes K, M, G, T: powers of 1024\)$"
    ):
        values.size(0)(value)


@given(st.integers(0, values.INT64_MAX))
def test_a_shown_size_reads_back(number: int) -> None:
    assert values.size(0)(values.show_size(number)) == number


def test_power_of_two_suggests_one() -> None:
    with pytest.raises(ValueError, match=r"^expected a power of two, such as 512$"):
        values.power_of_two(values.size(512))("1000")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0", (0,)),
        ("0-3,8", (0, 1, 2, 3, 8)),
        ("8,0-3,2", (0, 1, 2, 3, 8)),
        ("0-1, 4", (0, 1, 4)),
        (5, (5,)),
        ([0, "2-3"], (0, 2, 3)),
        (["0-1", "7"], (0, 1, 7)),
    ],
)
def test_cpu_lists(value: Any, expected: tuple[int, ...]) -> None:
    assert values.cpu_list(value) == expected


@pytest.mark.parametrize(
    "value", ["", "x", "3-1", "0-", "-1", "0,,1", "9999999", "8192", [], True, {}]
)
def test_cpu_list_refuses_everything_else(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^expected CPU numbers such as 0-3,8$"):
        values.cpu_list(value)


@given(st.sets(st.integers(0, 8191), min_size=1, max_size=40))
def test_a_shown_cpu_set_reads_back(cpus: set[int]) -> None:
    assert values.cpu_list(show_cpus(cpus)) == tuple(sorted(cpus))


def test_texts_are_limited_in_bytes_not_characters() -> None:
    assert values.limited_text(4)("ää") == "ää"
    with pytest.raises(ValueError, match=r"^expected at most 4 bytes, this has 6$"):
        values.limited_text(4)("äää")


def test_a_word_like_on_may_be_written_as_a_boolean() -> None:
    assert values.choice("off", "on", "unmap")(True) == "on"
