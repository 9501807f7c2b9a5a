from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from vringd.cli.logs import set_up_logging


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    logger = logging.getLogger("vringd")
    before = (logger.handlers[:], logger.level, logger.propagate)
    yield
    logger.handlers[:], logger.level, logger.propagate = before


def test_lines_say_who_speaks_and_how_grave_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("vringd-blk", "warning")
    logger = logging.getLogger("vringd.control.anything")
    logger.info("not heard")
    logger.warning("queue %d is broken", 3)
    assert capsys.readouterr().err == "vringd-blk: warning: queue 3 is broken\n"


def test_setting_up_twice_does_not_say_everything_twice(
    capsys: pytest.CaptureFixture[str],
) -> None:
    set_up_logging("vringd", "info")
    set_up_logging("vringd", "info")
    logging.getLogger("vringd").info("once")
    assert capsys.readouterr().err == "vringd: info: once\n"


def test_an_exception_is_shown_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("vringd", "error")
    try:
        raise RuntimeError("why")
    except RuntimeError:
        logging.getLogger("vringd").exception("it failed")
    text = capsys.readouterr().err
    assert text.startswith("vringd: error: it failed\nTraceback ")
    assert text.endswith("RuntimeError: why\n")
