"""A Linux guest under QEMU that tests drive like a function: boot, run a command, look.

    with Guest([VhostUserBlk("disk", socket, num_queues=4)]) as guest:
        print(guest.output("cat /sys/block/vda/size"))

It needs no KVM. It boots from an initramfs and has no disk of its own, so the first disk
given to it is ``/dev/vda``. Booting takes about 3 s of an idle core.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from vringd.testing.guest_agent import AgentClosedError, GuestAgent, GuestResult
from vringd.testing.guest_devices import VhostUserDevice
from vringd.testing.guest_image import GuestImage, guest_image
from vringd.testing.guest_job import GuestJob
from vringd.testing.guest_machine import GuestFiles, qemu_arguments, this_machine
from vringd.testing.peer_process import PeerProcess
from vringd.testing.peers import PeerFailedError
from vringd.testing.qmp_client import QmpClient

logger = logging.getLogger("vringd.testing")

_SHOWN_LINES: Final = 30
_BOOT_ATTEMPTS: Final = 3
_ABORTED: Final = re.compile(r"^qemu-system-\S+: (?!.*(?:vhost|virtio)).*Assertion .* failed", re.M)


class GuestError(RuntimeError):
    """The guest did not do what was asked; the message says what was seen instead."""


class GuestTimeoutError(GuestError):
    """The guest did not answer in time."""


class GuestDiedError(GuestError):
    """The guest's kernel panicked, or QEMU ended."""


class Guest:
    """One virtual machine; a context manager that boots it and ends it.

    `devices` are plugged in in this order. `memory_mib` is shared memory (memfd), as
    vhost-user needs. `hotplug_ports` is how many devices can be added later with
    :meth:`plug`. `extra_arguments` go to QEMU as they are; folders they name belong in
    `share`. With `incoming` the guest does not boot but waits for :meth:`migrate_to`.
    `progress` is called with a sentence at each step of booting. All times are in seconds.

    Use it from the thread that starts it: QEMU is killed when that thread ends.
    """

    def __init__(
        self,
        devices: Sequence[VhostUserDevice] = (),
        *,
        cpus: int = 4,
        memory_mib: int = 512,
        image: GuestImage | None = None,
        hotplug_ports: int = 0,
        incoming: bool = False,
        extra_arguments: Sequence[str] = (),
        share: Sequence[Path] = (),
        boot_timeout: float = 120.0,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self._devices = tuple(devices)
        self._cpus = cpus
        self._memory_mib = memory_mib
        self._image = image
        self._hotplug_ports = hotplug_ports
        self._incoming = incoming
        self._extra_arguments = tuple(extra_arguments)
        self._share = tuple(share)
        self._boot_timeout = boot_timeout
        self._progress = progress or (lambda _: None)
        self._plugged: dict[str, int] = {}
        self._jobs = 0
        self._console_start = 0
        self._files: GuestFiles | None = None
        self._process: PeerProcess | None = None
        self._agent: GuestAgent | None = None
        self._qmp: QmpClient | None = None

    # Starting and ending

    def start(self) -> None:
        """Starts QEMU and waits for the guest's shell (unless the guest is `incoming`).

        Raises `GuestError`, or `PeerMissingError` when QEMU or the guest's parts are not
        installed.
        """
        started = time.monotonic()
        self._progress("preparing the guest's image")
        image = self._image or guest_image()
        self._files = GuestFiles(Path(tempfile.mkdtemp(dir=_common_folder())))
        try:
            if self._incoming:
                self._progress("starting QEMU")
                self._start_qemu(image, self._files)
            else:
                self._boot(image, self._files)
                self._progress(f"the guest is up after {time.monotonic() - started:.1f} s")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends the guest at once and removes its files; harmless when it has ended."""
        self._end_qemu()
        if self._files is not None:
            shutil.rmtree(self._files.folder, ignore_errors=True)
            self._files = None

    def _end_qemu(self) -> None:
        if self._qmp is not None:
            self._qmp.close()
            self._qmp = None
        if self._agent is not None:
            self._agent.close()
            self._agent = None
        if self._process is not None:
            self._process.stop()
            self._process = None

    def power_off(self, timeout: float = 30.0) -> None:
        """Powers the guest off from inside and waits for QEMU's end."""
        process = self._running()
        self.start_command("sleep 0.1; poweroff -f")
        try:
            process.wait(timeout)
        except PeerFailedError:
            raise self._error(GuestTimeoutError, f"no power-off after {timeout} s") from None

    def reset(self) -> None:
        """Presses the reset button and waits until the guest has booted again."""
        self._console_start = len(self.console())
        self.qmp.command("system_reset")
        self._wait_ready("the guest did not boot again")

    def migrate_to(self, destination: Guest, timeout: float = 60.0) -> None:
        """Moves the running guest to `destination`, a started guest with `incoming`.

        Its devices must have the same names and properties; their sockets differ. This
        guest is stopped afterwards. Raises `GuestError` with QEMU's reason when it fails.
        """
        if destination._files is None:
            raise GuestError("the destination has not been started")
        uri = f"unix:{destination._files.folder / 'migration'}"
        destination.qmp.command("migrate-incoming", uri=uri)
        self.qmp.command("migrate", uri=uri)
        deadline = time.monotonic() + timeout
        while (state := self.qmp.command("query-migrate")).get("status") != "completed":
            if state.get("status") in ("failed", "cancelled"):
                raise self._error(GuestError, f"migration {state}")
            if time.monotonic() > deadline:
                raise self._error(GuestTimeoutError, f"migration not done: {state}")
            time.sleep(0.02)
        while not destination.qmp.command("query-status")["running"]:
            destination._check_alive()
            if time.monotonic() > deadline:
                raise destination._error(GuestTimeoutError, "the moved guest does not run")
            time.sleep(0.02)
        destination._jobs = self._jobs

    # Running commands

    def run(self, command: str, timeout: float = 60.0) -> GuestResult:
        """Runs a shell command as root and returns its status and output.

        Each command has a shell, the working folder ``/`` and no input of its own. Raises
        `GuestTimeoutError` and `GuestDiedError`.
        """
        if self._agent is None:
            raise GuestError("the guest has not been started")
        try:
            return self._agent.run(command, timeout)
        except TimeoutError:
            message = f"not finished after {timeout} s: {command}"
            raise self._error(GuestTimeoutError, message) from None
        except AgentClosedError as error:
            raise self._error(GuestDiedError, f"{error} during: {command}") from error

    def output(self, command: str, timeout: float = 60.0) -> str:
        """What a command printed, without white space at the ends.

        As :meth:`run`, but raises `GuestError` when the status is not 0.
        """
        result = self.run(command, timeout)
        if result.status != 0:
            raise GuestError(f"status {result.status} from: {command}\n{result.output}")
        return result.output.strip()

    def wait_for(self, command: str, timeout: float = 30.0) -> str:
        """Repeats a command until its status is 0; returns its output, stripped."""
        deadline = time.monotonic() + timeout
        while True:
            result = self.run(command, max(1.0, deadline - time.monotonic()))
            if result.status == 0:
                return result.output.strip()
            if time.monotonic() > deadline:
                message = f"still status {result.status} after {timeout} s: {command}"
                raise GuestTimeoutError(f"{message}\n{result.output}")
            time.sleep(0.1)

    def start_command(self, command: str) -> GuestJob:
        """Starts a shell command in the background."""
        self._jobs += 1
        job = GuestJob(self, self._jobs)
        job.start(command)
        return job

    # Looking at it

    @property
    def qmp(self) -> QmpClient:
        """QEMU's control connection."""
        if self._qmp is None:
            raise GuestError("the guest has not been started")
        return self._qmp

    @property
    def pid(self) -> int:
        """QEMU's process id."""
        return self._running().pid

    def console(self) -> str:
        """What the guest printed on its serial console since QEMU was started."""
        if self._files is None or not self._files.console.exists():
            return ""
        return self._files.console.read_text(errors="replace")

    # Changing it

    def plug(self, device: VhostUserDevice) -> None:
        """Hot-plugs a device into a free port; `GuestError` when there is none.

        The guest finds it a moment later (see :meth:`wait_for`).
        """
        used = self._plugged.values()
        port = next((n for n in range(self._hotplug_ports) if n not in used), None)
        if port is None:
            raise GuestError("no free port: start the guest with more hotplug_ports")
        self.qmp.command_raw("chardev-add", device.chardev_backend())
        self.qmp.command_raw("device_add", {**device.properties(), "bus": f"port{port}"})
        self._plugged[device.name] = port

    def unplug(self, device: VhostUserDevice, timeout: float = 30.0) -> None:
        """Asks the guest to give up a hot-plugged device and waits until it is gone."""
        self.qmp.command("device_del", id=device.name)
        deadline = time.monotonic() + timeout
        name = None
        while name != device.name:
            try:
                event = self.qmp.wait_event("DEVICE_DELETED", deadline - time.monotonic())
            except TimeoutError:
                message = f"{device.name} not given up after {timeout} s"
                raise self._error(GuestTimeoutError, message) from None
            name = event["data"].get("device")
        self.qmp.command("chardev-remove", id=device.chardev_name)
        del self._plugged[device.name]

    # Inner parts

    def _boot(self, image: GuestImage, files: GuestFiles) -> None:
        """Starts QEMU and waits for the guest's shell, again if QEMU aborts.

        Emulated processors that write to a device while another one maps memory make QEMU
        10 abort now and then: it looks at a translation entry after it waited for its lock
        (accel/tcg/cputlb.c), and the write reaches another device's registers. Any other end
        of QEMU is raised at once, and so is one that names virtio or vhost.
        """
        for attempt in range(_BOOT_ATTEMPTS):
            self._progress("starting QEMU")
            try:
                self._start_qemu(image, files)
                self._progress("booting Linux")
                self._wait_ready("the guest did not boot")
                return
            except GuestDiedError as error:
                last = attempt == _BOOT_ATTEMPTS - 1
                if last or not _ABORTED.search(self._process.output() if self._process else ""):
                    raise
                logger.warning("QEMU aborted, the guest is started again: %s", error)
                self._end_qemu()
                for path in (files.agent, files.qmp, files.console, files.qemu_log):
                    path.unlink(missing_ok=True)

    def _start_qemu(self, image: GuestImage, files: GuestFiles) -> None:
        machine = this_machine()
        arguments = qemu_arguments(
            machine,
            image,
            files,
            self._devices,
            cpus=self._cpus,
            memory_mib=self._memory_mib,
            hotplug_ports=self._hotplug_ports,
        )
        if self._incoming:
            arguments += ["-incoming", "defer"]
        # The common folder: a guest that moves away must see its destination's socket.
        visible = [image.kernel.parent, image.initramfs.parent, files.folder.parent]
        visible += self._share
        visible += [device.socket.parent for device in self._devices]
        self._process = PeerProcess(
            machine.program,
            *arguments,
            *self._extra_arguments,
            share=visible,
            log=files.qemu_log,
        )
        try:
            self._process.wait_for_socket(files.qmp)
            self._process.wait_for_socket(files.agent)
            self._agent = GuestAgent(files.agent, self._check_alive)
            self._qmp = QmpClient(files.qmp)
        except PeerFailedError as error:
            raise GuestDiedError(f"QEMU did not start: {error}") from None
        except OSError as error:  # it refused an option after its sockets were there
            self._process.wait(5)
            raise self._error(GuestDiedError, "QEMU did not start") from error

    def _wait_ready(self, complaint: str) -> None:
        assert self._agent is not None  # start() has connected it
        try:
            self._agent.wait_ready(self._boot_timeout)
        except TimeoutError:
            message = f"{complaint} in {self._boot_timeout} s"
            raise self._error(GuestTimeoutError, message) from None
        except AgentClosedError as error:
            raise self._error(GuestDiedError, f"{complaint}: {error}") from error

    def _running(self) -> PeerProcess:
        if self._process is None:
            raise GuestError("the guest has not been started")
        return self._process

    def _check_alive(self) -> None:
        process = self._running()
        if process.status is not None:
            raise self._error(GuestDiedError, f"QEMU ended with status {process.status}")
        if "Kernel panic" in self.console()[self._console_start :]:
            raise self._error(GuestDiedError, "the guest's kernel panicked")

    def _error(self, kind: type[GuestError], message: str) -> GuestError:
        parts = [message]
        if self._process is not None and (printed := self._process.output().strip()):
            parts.append(f"QEMU printed:\n{_last_lines(printed)}")
        if shown := self.console().strip():
            parts.append(f"the guest's console:\n{_last_lines(_until_call_trace(shown))}")
        return kind("\n".join(parts))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _common_folder() -> Path:
    """Where every guest of this user has its files."""
    folder = Path(tempfile.gettempdir()) / f"vringd-guests-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _last_lines(text: str) -> str:
    return "\n".join(text.splitlines()[-_SHOWN_LINES:])


def _until_call_trace(console: str) -> str:
    """Keeps a panic's reason in view: what follows it is a long call trace."""
    lines = console.splitlines()
    panic = next((n for n, line in enumerate(lines) if "Kernel panic" in line), len(lines))
    return "\n".join(lines[: panic + _SHOWN_LINES // 2])
