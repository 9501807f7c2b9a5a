from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vringd.control.errors import OptionError
from vringd.control.keyval import parse, parse_keyval


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("a=1", {"a": "1"}),
        ("a=", {"a": ""}),
        ("a=1,", {"a": "1"}),
        ("a=x=y", {"a": "x=y"}),
        ("a=1,b-c_d=2", {"a": "1", "b-c_d": "2"}),
        ("a=1,a=2", {"a": "2"}),
        ("a=1,,2", {"a": "1,2"}),
        ("a=,,", {"a": ","}),
        ("a=1,,,b=2", {"a": "1,", "b": "2"}),
        ("a=,,,,,b=2", {"a": ",,", "b": "2"}),
        ("a.b.c=1,a.b.d=2", {"a": {"b": {"c": "1", "d": "2"}}}),
        ("l.1=b,l.0=a", {"l": ["a", "b"]}),
        ("l.0.x=1,l.0.y.0=2", {"l": [{"x": "1", "y": ["2"]}]}),
        ("a={x}", {"a": "{x}"}),
    ],
)
def test_pairs_become_a_tree(text: str, expected: dict[str, Any]) -> None:
    assert parse_keyval(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("file", {"driver": "file"}),
        ("file,", {"driver": "file"}),
        ("file,a=1", {"driver": "file", "a": "1"}),
        ("driver=file", {"driver": "file"}),
        ("a=1,driver=file", {"a": "1", "driver": "file"}),
        ("file,driver=null-co", {"driver": "null-co"}),
    ],
)
def test_first_key_may_be_implied(text: str, expected: dict[str, Any]) -> None:
    assert parse_keyval(text, "driver") == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a", "'a' has no value: write a=VALUE (a comma inside a value is written twice: ',,')"),
        (
            "a=0-3,8",
            "'8' has no value: write 8=VALUE (a comma inside a value is written twice: ',,')",
        ),
        (",a=1", "an option name is missing before ','"),
        ("=1", "invalid option name ''"),
        ("a..b=1", "invalid option name 'a..b'"),
        (".a=1", "invalid option name '.a'"),
        ("a.=1", "invalid option name 'a.'"),
        ("0=1", "invalid option name '0'"),
        ("a b=1", "invalid option name 'a b'"),
        ("a.1x=1", "invalid option name 'a.1x'"),
        ("ä=1", "invalid option name 'ä'"),
        ("a=1,a.b=2", "'a' is given both as one value and as a.…; use one of the two"),
        ("a.b=1,a=2", "'a' is given both as one value and as a.…; use one of the two"),
        ("a.b=1,a.b.c=2", "'a.b' is given both as one value and as a.b.…; use one of the two"),
        ("a.0=1,a.b=2", "'a.…' mixes list indices and names; use one of the two"),
        ("a.1=1", "'a.0' is missing: list indices count from 0 without a gap"),
        ("a.0=1,a.2=1", "'a.1' is missing: list indices count from 0 without a gap"),
        ("a.b.1=1", "'a.b.0' is missing: list indices count from 0 without a gap"),
        ("a.0=1,a.999999999=1", "'a.1' is missing: list indices count from 0 without a gap"),
        (
            "{",
            "invalid JSON: Expecting property name enclosed in double quotes:"
            " line 1 column 2 (char 1)",
        ),
        ('{"a": 1, "a": 2}', "invalid JSON: key 'a' appears twice"),
        ('{"a":' + "[" * 100_000, "invalid JSON: it is nested too deeply"),
    ],
)
def test_malformed_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse(text)
    assert str(caught.value) == message


def test_json_keeps_its_types() -> None:
    assert parse('{"a": {"b": [1, true, "x"]}}') == {"a": {"b": [1, True, "x"]}}


def test_every_second_comma_begins_the_next_pair_like_in_qemu() -> None:
    assert parse_keyval("a=1,,b=2,c=3") == {"a": "1,b=2", "c": "3"}


names = st.from_regex(r"[A-Za-z][A-Za-z0-9_-]{0,8}", fullmatch=True)
values = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
trees = st.dictionaries(
    names,
    st.recursive(
        values,
        lambda inner: st.one_of(
            st.lists(inner, min_size=1, max_size=4),
            st.dictionaries(names, inner, min_size=1, max_size=4),
        ),
        max_leaves=12,
    ),
    min_size=1,
    max_size=4,
)


def spell(value: Any, path: str) -> list[str]:
    if isinstance(value, str):
        return [f"{path}={value.replace(',', ',,')}"]
    pairs = enumerate(value) if isinstance(value, list) else value.items()
    return [pair for key, child in pairs for pair in spell(child, f"{path}.{key}")]


@given(tree=trees, data=st.data())
def test_any_tree_survives_being_written_in_any_order(tree: dict[str, Any], data: Any) -> None:
    pairs = [pair for name, value in tree.items() for pair in spell(value, name)]
    assert parse_keyval(",".join(data.draw(st.permutations(pairs)))) == tree


@given(st.text(max_size=40))
def test_any_text_gives_a_tree_or_an_option_error(text: str) -> None:
    with contextlib.suppress(OptionError):
        assert isinstance(parse(text, "driver"), dict)
