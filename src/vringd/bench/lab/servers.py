"""A running server: started, waited for, watched and ended for sure."""

from __future__ import annotations

import shlex
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from vringd.bench.lab import process
from vringd.bench.lab.errors import SampleError, log_tail
from vringd.bench.lab.families import Family
from vringd.bench.lab.setup import Place, Setup

_START_SECONDS: Final = 20.0


class Server:
    """Use it in a ``with`` statement. Entering raises SampleError if it does not come up."""

    def __init__(self, family: Family, setup: Setup, place: Place) -> None:
        self.family, self.setup, self._place = family, setup, place
        self._log = place.folder / "server.log"
        self._argv = family.argv(setup, place)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Server:
        place = self._place
        self._remove_sockets()
        self._process = process.start(
            self._argv, self.setup.server_cpus, self._log, nice=place.nice
        )
        try:
            self._wait_until_ready()
        except OSError as error:
            self.__exit__()
            self.check()
            raise SampleError(f"{self.family.name} cannot be set up: {error}") from error
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        if not process.stop(self._process):
            print(f"{self.family.name}: ended by SIGKILL only", file=sys.stderr)
        self._remove_sockets()

    def check(self) -> None:
        """Raises SampleError, with the end of its log, when the server has ended."""
        assert self._process is not None
        status = self._process.poll()
        if status is not None:
            raise SampleError(
                f"{self.family.name} died ({process.describe_exit(status)}); its last words:\n"
                f"{self.last_words()}\n    command: {shlex.join(self._argv)}"
            )

    def last_words(self) -> str:
        return log_tail(self._log)

    def _wait_until_ready(self) -> None:
        place = self._place
        deadline = time.monotonic() + _START_SECONDS
        prepared = False
        while not (prepared and _is_socket(place.socket)):
            self.check()
            if time.monotonic() > deadline:
                raise SampleError(
                    f"{self.family.name} made no socket within {_START_SECONDS:g} s; its last"
                    f" words:\n{self.last_words()}"
                )
            time.sleep(0.01)
            prepared = prepared or self.family.set_up(self.setup, place)
        time.sleep(0.05)  # from bind() to listen()
        self.check()

    def _remove_sockets(self) -> None:
        for path in (self._place.socket, self._place.rpc):
            path.unlink(missing_ok=True)


def _is_socket(path: Path) -> bool:
    return path.exists() and stat.S_ISSOCK(path.stat().st_mode)
