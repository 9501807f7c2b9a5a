"""Where log lines go: to stderr, one line each, as `vringd: LEVEL: MESSAGE`."""

from __future__ import annotations

import logging


class _LineFormatter(logging.Formatter):
    def __init__(self, program: str) -> None:
        super().__init__()
        self._program = program

    def format(self, record: logging.LogRecord) -> str:
        line = f"{self._program}: {record.levelname.lower()}: {record.getMessage()}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def set_up_logging(program: str, level: str) -> None:
    """Sends the log of everything in `vringd` to stderr, from `level` (a LOG_LEVELS) up."""
    handler = logging.StreamHandler()
    handler.setFormatter(_LineFormatter(program))
    logger = logging.getLogger("vringd")
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(level.upper())
