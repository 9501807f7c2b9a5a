"""The servers that can be measured: how each is told to serve a `Setup`."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from vringd.bench.lab import spdk
from vringd.bench.lab.errors import UsageError
from vringd.bench.lab.setup import Place, Setup, cpu_list
from vringd.testing import peers

QSD: Final = "qemu-storage-daemon"
PLACEHOLDERS: Final = "{socket} {queues} {threads} {cpus} {size} {file}"


class Family(Protocol):
    """A kind of server."""

    @property
    def name(self) -> str:
        """How results name it."""

    def why_not(self, setup: Setup) -> str | None:
        """The reason why this server cannot serve that, or None."""

    def argv(self, setup: Setup, place: Place) -> list[str]:
        """The command line that serves the setup on `place.socket`."""

    def set_up(self, setup: Setup, place: Place) -> bool:
        """What has to be done once it runs; False: it does not answer yet. Raises SampleError."""


@dataclass(frozen=True)
class Vringd:
    """vringd; `iothread` and `export` are more options of its objects."""

    name: str = "vringd"
    prefix: tuple[str, ...] = (sys.executable, "-m", "vringd")
    iothread: tuple[str, ...] = ()
    export: tuple[str, ...] = ()

    def why_not(self, setup: Setup) -> str | None:
        return None

    def argv(self, setup: Setup, place: Place) -> list[str]:
        words = [*self.prefix, "serve"]
        for index in range(setup.threads):
            options = [f"iothread,id=t{index}", *self.iothread]
            if setup.thread_cpus:
                affinity = cpu_list(setup.thread_cpus[index]).replace(",", ",,")
                options.append(f"cpu-affinity={affinity}")
            words += ["--object", ",".join(options)]
        mapping = [f"iothread-vq-mapping.{i}.iothread=t{i}" for i in range(setup.threads)]
        if setup.threads == 1:
            mapping = ["iothread=t0"]
        return [*words, *_disk_and_export(setup, place, [*mapping, *self.export])]

    def set_up(self, setup: Setup, place: Place) -> bool:
        return True


@dataclass(frozen=True)
class QemuStorageDaemon:
    """qemu-storage-daemon; `iothread` and `export` are more options of its objects. Without a
    prefix it is the one that `make peers` has installed."""

    name: str = QSD
    prefix: tuple[str, ...] = (QSD,)
    iothread: tuple[str, ...] = ()
    export: tuple[str, ...] = ()

    def why_not(self, setup: Setup) -> str | None:
        if setup.kind == "scsi":
            return "it has no virtio-scsi"
        if setup.disk.own_options:
            return f"it has no {', '.join(setup.disk.own_options)}"
        if setup.threads > 1:
            return "it serves a device from one IOThread"
        return None

    def argv(self, setup: Setup, place: Place) -> list[str]:
        words = [
            *("--object", ",".join(["iothread,id=t0", *self.iothread])),
            *_disk_and_export(setup, place, ["iothread=t0", *self.export]),
        ]
        if self.prefix:
            return [*self.prefix, *words]
        folders = [place.folder]
        if setup.disk.filename is not None:
            folders.append(Path(setup.disk.filename).parent.resolve())
        return peers.peer_command(QSD, *words, share=folders)

    def set_up(self, setup: Setup, place: Place) -> bool:
        return True


@dataclass(frozen=True)
class Spdk:
    """SPDK's vhost target: it polls with a core for each CPU that it may run on."""

    name: str = "spdk"
    prefix: tuple[str, ...] = ("vhost",)

    def why_not(self, setup: Setup) -> str | None:
        if setup.disk.own_options:
            return f"it has no {', '.join(setup.disk.own_options)}"
        if not setup.disk.is_null and not setup.disk.direct:
            return "it opens files with O_DIRECT, not through the page cache"
        if setup.threads > 1:
            return "it serves a device from one thread"
        return None

    def argv(self, setup: Setup, place: Place) -> list[str]:
        memory = () if "-s" in self.prefix else ("-s", "256")
        mask = sum(1 << cpu for cpu in setup.server_cpus) or 1
        return [
            *(*self.prefix, "--no-pci", *memory, "-m", hex(mask)),
            *("-r", str(place.rpc), "-S", str(place.folder)),
        ]

    def set_up(self, setup: Setup, place: Place) -> bool:
        if not spdk.answers(place.rpc):
            return False
        size = setup.disk.size if setup.disk.is_null else 0
        spdk.attach_disk(place.rpc, setup.kind, place.socket.name, setup.disk.filename, size)
        return True


@dataclass(frozen=True)
class Command:
    """Any server, by a command line with placeholders."""

    name: str
    template: tuple[str, ...]

    def why_not(self, setup: Setup) -> str | None:
        takes_file = any("{file}" in word for word in self.template)
        if takes_file == setup.disk.is_null:
            return f"its command would have to have {'no ' if takes_file else 'a '}{{file}}"
        if setup.disk.own_options:
            return f"only vringd is known to have {', '.join(setup.disk.own_options)}"
        if setup.threads > 1 and not any("{threads}" in word for word in self.template):
            return "its command has no {threads}"
        return None

    def argv(self, setup: Setup, place: Place) -> list[str]:
        known = {
            "socket": str(place.socket),
            "queues": str(setup.queues),
            "threads": str(setup.threads),
            "cpus": cpu_list(setup.server_cpus),
            "size": str(setup.disk.size) if setup.disk.is_null else "",
            "file": setup.disk.filename or "",
        }
        words = []
        for template in self.template:
            word = template
            for name, value in known.items():
                word = word.replace(f"{{{name}}}", value)
            words.append(word)
        return words

    def set_up(self, setup: Setup, place: Place) -> bool:
        return True


def _disk_and_export(setup: Setup, place: Place, more: Sequence[str]) -> list[str]:
    text = setup.disk.text
    if setup.disk.is_null:  # QEMU's null drivers take their size in bytes only
        text = re.sub(r"(^|,)size=[^,]*", rf"\1size={setup.disk.size}", text)
    blockdev = text if text.startswith("driver=") else f"driver={text}"
    shown = "type=vhost-user-blk,node-name=d,writable=on"
    if setup.kind == "scsi":
        shown = "type=vhost-user-scsi,devices.0.node-name=d,devices.0.writable=on"
    export = [
        f"{shown},id=e,addr.type=unix",
        f"num-queues={setup.queues},addr.path={place.socket}",
    ]
    return [
        *("--blockdev", f"{blockdev},node-name=d"),
        *("--export", ",".join([*export, *more])),
    ]


_KNOWN: Final = ("vringd", QSD, "spdk")


def parse_server(option: str, text: str, programs: dict[str, str]) -> Family:
    """A server as a person names it: ``vringd``, ``qemu-storage-daemon``, ``spdk``;
    ``NAME:OPTION=VALUE,…`` with options of its IOThread, or of its export as
    ``export.OPTION=VALUE``; or ``NAME=COMMAND`` with placeholders.

    programs: argument lists that start the known ones, where they are not on PATH.
    Raises UsageError.
    """
    colon, equals = text.find(":"), text.find("=")
    if equals >= 0 and (colon < 0 or equals < colon):
        return _command(option, text[:equals], text[equals + 1 :])
    name, _, words = text.partition(":")
    if name not in _KNOWN:
        raise UsageError(
            f"{option} {text}: not one of {', '.join(_KNOWN)}, and no NAME=COMMAND with {{socket}}"
        )
    options = [word for word in words.split(",") if word]
    export = tuple(w.removeprefix("export.") for w in options if w.startswith("export."))
    iothread = tuple(w for w in options if not w.startswith("export."))
    default = (sys.executable, "-m", "vringd") if name == "vringd" else (name,)
    if name == QSD and name not in programs and not shutil.which(name) and peers.find(name):
        prefix: tuple[str, ...] = ()
    else:
        prefix = _program(option, programs.get(name, ""), default)
    if name == "spdk":
        if options:
            raise UsageError(f"{option} {text}: SPDK has no such options here")
        return Spdk(text, prefix)
    family = Vringd if name == "vringd" else QemuStorageDaemon
    return family(text, prefix, iothread, export)


def _program(option: str, text: str, default: tuple[str, ...]) -> tuple[str, ...]:
    argv = tuple(shlex.split(text)) or default
    if shutil.which(argv[0]) is None:
        raise UsageError(
            f"{option} {argv[0]}: there is no such program; say where with --program {argv[0]}=PATH"
        )
    return argv


def _command(option: str, name: str, command: str) -> Command:
    words = tuple(shlex.split(command))
    if not name or "/" in name or " " in name:
        raise UsageError(f"{option} {name}={command}: a server's name has no blank and no slash")
    if not any("{socket}" in word for word in words):
        raise UsageError(
            f"{option} {name}: its command needs {{socket}}, and may have"
            f" {PLACEHOLDERS.partition(' ')[2]}"
        )
    return Command(name, words)
