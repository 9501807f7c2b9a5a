"""The manual and the built-in help list every option there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from vringd.control.option_help import SECTIONS, Row, rows, show_kind

MANUAL = Path(__file__).parents[3] / "docs" / "options.md"


def table_row(row: Row) -> str:
    default = row.default if row.default in ("", "required") else f"`{row.default}`"
    return f"| `{row.name}` | {default} | {row.help} |"


@pytest.mark.parametrize("kind", SECTIONS)
def test_the_manual_lists_every_option_with_its_default(kind: str) -> None:
    manual = MANUAL.read_text().splitlines()
    expected = [
        table_row(row)
        for name, sections in SECTIONS.items()
        if name == kind
        for record in sections.values()
        for row in rows(record)
    ]
    assert [row for row in expected if row not in manual] == []


def test_nested_options_have_their_whole_names() -> None:
    assert {row.name for row in rows(SECTIONS["export"]["type=vhost-user-blk"])} >= {
        "addr.type",
        "addr.path",
        "addr.str",
        "iothread-vq-mapping.N.iothread",
        "iothread-vq-mapping.N.vqs",
    }


def test_help_is_text_of_at_most_100_columns() -> None:
    text = show_kind("export")
    assert "  num-queues=1 " in text
    assert "  id=… (required) " in text
    assert max(map(len, text.splitlines())) <= 100
