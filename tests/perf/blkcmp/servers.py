"""The servers under test: how each is started for a cell, watched and ended."""

from __future__ import annotations

import shlex
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from blkcmp import process, spdk
from blkcmp.cells import Cell
from blkcmp.errors import SampleError, UsageError, log_tail

_START_SECONDS: Final = 20.0
_SOCKET: Final = "vhost-blk.sock"
_SUN_PATH: Final = 107


@dataclass(frozen=True)
class Place:
    """Where servers and clients meet: a folder, the raw file, the null disk's size, cores.

    `nice` is the priority of both.
    """

    folder: Path
    file: Path
    null_size: int
    server_cpu: int
    client_cpu: int
    nice: int = 0

    @property
    def socket(self) -> Path:
        return self.folder / _SOCKET

    @property
    def rpc(self) -> Path:
        return self.folder / "rpc.sock"

    def check(self) -> None:
        """Raises `UsageError` when a socket's path would be too long for the kernel."""
        if len(str(self.socket)) > _SUN_PATH:
            raise UsageError(f"--dir: {self.folder} is too long for a Unix socket's path")


@dataclass(frozen=True)
class Spec:
    """A server by name.

    `family` is ``vringd``, ``qsd``, ``spdk`` or ``custom``. `prefix` is the argument list
    that starts the program; for ``custom`` it is the whole template. `iothread` holds more
    ``key=value`` options of the IOThreads (vringd and qsd).
    """

    name: str
    family: str
    prefix: tuple[str, ...]
    iothread: tuple[str, ...] = field(default=())

    def why_not(self, cell: Cell) -> str | None:
        """The reason why this server has no such cell, or None."""
        if cell.kind == "scale" and self.family != "vringd":
            return "only vringd's null back-end burns a set CPU time per request"
        if self.family == "spdk" and cell.backend == "file":
            return "SPDK opens files with O_DIRECT, not through the page cache"
        if self.family == "custom":
            takes_file = any("{file}" in word for word in self.prefix)
            if takes_file == (cell.backend == "null"):
                wanted = "no {file}" if takes_file else "a {file}"
                return f"its template would have to have {wanted}"
        return None

    def argv(self, cell: Cell, place: Place) -> list[str]:
        """The command line that serves `cell` on ``place.socket``."""
        if self.family == "custom":
            return [self._fill(word, cell, place) for word in self.prefix]
        if self.family == "spdk":
            memory = () if "-s" in self.prefix else ("-s", "256")
            return [
                *(*self.prefix, "--no-pci", *memory, "-m", hex(1 << place.server_cpu)),
                *("-r", str(place.rpc), "-S", str(place.folder)),
            ]
        return [
            *self.prefix,
            *(["serve"] if self.family == "vringd" else []),
            *self._iothreads(cell, place),
            *("--blockdev", self._blockdev(cell, place)),
            *("--export", self._export(cell, place)),
        ]

    def _iothreads(self, cell: Cell, place: Place) -> list[str]:
        words = []
        cores = (place.server_cpu, place.client_cpu)
        for index in range(cell.threads):
            options = [f"iothread,id=t{index}"]
            if self.family == "vringd":
                options.append(f"cpu-affinity={cores[index]}")
            words += ["--object", ",".join([*options, *self.iothread])]
        return words

    def _blockdev(self, cell: Cell, place: Place) -> str:
        if cell.backend == "null":
            options = f"driver=null-co,node-name=d,size={place.null_size},read-zeroes=off"
            return options + (f",cpu-ns={cell.cpu_ns}" if cell.cpu_ns else "")
        direct = "on" if cell.backend == "direct" else "off"
        return f"driver=file,node-name=d,filename={place.file},cache.direct={direct},aio=io_uring"

    def _export(self, cell: Cell, place: Place) -> str:
        options = (
            f"type=vhost-user-blk,id=e,node-name=d,num-queues={cell.jobs},writable=on,"
            f"addr.type=unix,addr.path={place.socket}"
        )
        if cell.threads == 1:
            return f"{options},iothread=t0"
        mapping = (f"iothread-vq-mapping.{i}.iothread=t{i}" for i in range(cell.threads))
        return ",".join([options, *mapping])

    def _fill(self, word: str, cell: Cell, place: Place) -> str:
        values = {
            "socket": place.socket,
            "queues": cell.jobs,
            "file": place.file,
            "direct": "on" if cell.backend == "direct" else "off",
            "size": place.null_size,
            "cpu": place.server_cpu,
        }
        for name, value in values.items():
            word = word.replace(f"{{{name}}}", str(value))
        return word


def parse_template(text: str) -> Spec:
    """``NAME=COMMAND``; raises `UsageError` when it has no name or no ``{socket}``."""
    name, equals, command = text.partition("=")
    if not equals or not name or "/" in name or " " in name:
        raise UsageError(f"--server: {text!r} is not NAME=COMMAND")
    words = tuple(shlex.split(command))
    if not any("{socket}" in word for word in words):
        raise UsageError(f"--server: the command of {name!r} must contain {{socket}}")
    return Spec(name, "custom", words)


def parse_variant(text: str, programs: dict[str, tuple[str, ...]]) -> Spec:
    """A built-in server or a variant of one, such as ``vringd-nopoll``.

    The family is what stands before the first ``-``; ``-nopoll`` sets ``poll-max-ns=0``;
    any other variant says its IOThread options: ``qsd-p8:poll-max-ns=8000``. `programs`
    gives the argument list that starts each family. Raises `UsageError` for a name that is
    unknown or whose program was not given.
    """
    name, colon, options = text.partition(":")
    family, dash, suffix = name.partition("-")
    if family not in programs:
        raise UsageError(f"{name!r}: {family!r} is not one of {', '.join(programs)}")
    if not programs[family]:
        option = {"spdk": "--spdk-vhost"}.get(family, f"--{family}")
        raise UsageError(f"{name!r}: say with {option} where its program is")
    words = tuple(options.split(",")) if colon else ()
    if dash and suffix == "nopoll" and not colon:
        words = ("poll-max-ns=0",)
    elif dash and not colon:
        raise UsageError(f"{name!r}: give the variant's options, as in {name}:poll-max-ns=8000")
    if words and family == "spdk":
        raise UsageError(f"{name!r}: SPDK has no IOThreads to give options to")
    return Spec(name, family, programs[family], words)


class Server:
    """A running server; use it in a ``with`` statement."""

    def __init__(self, spec: Spec, cell: Cell, place: Place) -> None:
        self.spec = spec
        self._cell = cell
        self._place = place
        self._log = place.folder / f"{spec.name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.cpus = frozenset(
            {place.server_cpu} if cell.threads == 1 else {place.server_cpu, place.client_cpu}
        )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Server:
        place = self._place
        self._remove_sockets()
        self._process = process.start(
            self.spec.argv(self._cell, place), self.cpus, self._log, nice=place.nice
        )
        try:
            deadline = time.monotonic() + _START_SECONDS
            if self.spec.family == "spdk":
                self._wait(lambda: spdk.answers(place.rpc), "answer on its RPC socket", deadline)
                file = None if self._cell.backend == "null" else place.file
                spdk.attach_disk(place.rpc, _SOCKET, file, place.null_size)
            self._wait(lambda: _is_socket(place.socket), "create its socket", deadline)
            time.sleep(0.05)  # from bind() to listen()
            self.check()
        except OSError as error:
            self.__exit__()
            self.check()
            raise SampleError(f"{self.spec.name} cannot be set up: {error}") from error
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        if not process.stop(self._process):
            print(f"{self.spec.name}: ended by SIGKILL only", file=sys.stderr)
        self._remove_sockets()

    def check(self) -> None:
        """Raises `SampleError`, with the end of its log, when the server has ended."""
        assert self._process is not None
        status = self._process.poll()
        if status is not None:
            raise SampleError(
                f"{self.spec.name} died ({process.describe_exit(status)}); its last words:\n"
                f"{log_tail(self._log)}\n    command: {shlex.join(self._command())}"
            )

    def last_words(self) -> str:
        return log_tail(self._log)

    def _command(self) -> Sequence[str]:
        return self.spec.argv(self._cell, self._place)

    def _wait(self, ready: Callable[[], bool], what: str, deadline: float) -> None:
        while not ready():
            self.check()
            if time.monotonic() > deadline:
                raise SampleError(
                    f"{self.spec.name} did not {what} in {_START_SECONDS:g} s; its last words:\n"
                    f"{log_tail(self._log)}"
                )
            time.sleep(0.01)

    def _remove_sockets(self) -> None:
        for path in (self._place.socket, self._place.rpc):
            path.unlink(missing_ok=True)


def _is_socket(path: Path) -> bool:
    return path.exists() and stat.S_ISSOCK(path.stat().st_mode)
