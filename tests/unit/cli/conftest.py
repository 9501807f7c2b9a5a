"""A daemon that serves nothing, in place of the real one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from vringd.control.errors import ResourceError
from vringd.control.schema import ServeOptions


@dataclass
class FakeDaemon:
    """Notes what is done with it; `inspect` is called while it would be serving."""

    fails: bool = False
    inspect: Callable[[], None] = lambda: None
    options: ServeOptions | None = None
    calls: list[str] = field(default_factory=list)

    def __call__(self, options: ServeOptions) -> FakeDaemon:
        self.options = options
        return self

    async def start(self) -> None:
        self.calls.append("start")
        if self.fails:
            raise ResourceError("--export id=e0: the socket is taken")

    async def run_until_signal(self) -> None:
        self.calls.append("run")
        self.inspect()

    async def stop(self) -> None:
        self.calls.append("stop")


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> FakeDaemon:
    """Takes the real daemon's place in every command."""
    fake = FakeDaemon()
    monkeypatch.setattr("vringd.cli.running.make_daemon", fake)
    monkeypatch.setattr("vringd.cli.serve.set_up_logging", lambda *_: None)
    monkeypatch.setattr("vringd.cli.programs.set_up_logging", lambda *_: None)
    return fake
