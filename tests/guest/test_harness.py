"""The guest harness itself, against QEMU's own vhost-user server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from vringd.testing.guest import Guest, GuestDiedError, GuestError, GuestTimeoutError
from vringd.testing.guest_devices import VhostUserBlk, VhostUserFs
from vringd.testing.peer_process import PeerProcess
from vringd.testing.storage_daemon import StorageDaemon

MIB = 1 << 20
DISK_SIZE = 64 * MIB
NUM_QUEUES = 4

BootGuest = Callable[..., Guest]


@pytest.fixture(scope="module")
def plain_guest() -> Iterator[Guest]:
    with Guest() as guest:
        yield guest


@pytest.fixture
def disk(folder: Path) -> Path:
    path = folder / "disk.img"
    with path.open("wb") as file:
        file.truncate(DISK_SIZE)
    return path


@pytest.fixture
def server(folder: Path, disk: Path) -> Iterator[StorageDaemon]:
    with StorageDaemon(folder, image=disk, num_queues=NUM_QUEUES) as daemon:
        yield daemon


@pytest.fixture
def guest(server: StorageDaemon, boot_guest: BootGuest) -> Guest:
    return boot_guest(VhostUserBlk("disk", server.socket, num_queues=NUM_QUEUES), hotplug_ports=1)


def test_run_gives_status_and_output(plain_guest: Guest) -> None:
    result = plain_guest.run("printf 'out '; echo err >&2; exit 3")
    assert (result.status, result.output) == (3, "out err\n")
    with pytest.raises(GuestError, match="status 3"):
        plain_guest.output("exit 3")


def test_commands_do_not_share_state(plain_guest: Guest) -> None:
    plain_guest.output("cd /tmp; value=1")
    assert plain_guest.output("pwd; echo $value") == "/"


def test_shell_is_usable_after_a_timeout(plain_guest: Guest) -> None:
    with pytest.raises(GuestTimeoutError, match="sleep 2"):
        plain_guest.run("echo late; sleep 2", timeout=0.5)
    assert plain_guest.output("echo next") == "next"


def test_background_job(plain_guest: Guest) -> None:
    job = plain_guest.start_command(
        "echo begun; while ! test -e /tmp/go; do sleep 0.1; done; exit 5"
    )
    assert job.is_running()
    plain_guest.output("touch /tmp/go")
    result = job.wait(timeout=10)
    assert (result.status, result.output) == (5, "begun\n")


def test_wait_for_gives_up(plain_guest: Guest) -> None:
    with pytest.raises(GuestTimeoutError, match="nowhere"):
        plain_guest.wait_for("ls /nowhere", timeout=0.3)


def test_large_output_is_complete(plain_guest: Guest) -> None:
    assert plain_guest.output("seq 20000").split() == [str(n) for n in range(1, 20001)]


def test_kernel_panic_is_reported_and_reset_cures_it(boot_guest: BootGuest) -> None:
    guest = boot_guest(cpus=1)
    with pytest.raises(GuestDiedError, match="sysrq triggered crash"):
        guest.run("echo c >/proc/sysrq-trigger")
    guest.reset()
    assert guest.output("echo alive") == "alive"


def test_refused_option_is_reported() -> None:
    with (
        pytest.raises(GuestDiedError, match="nosuchdevice"),
        Guest(extra_arguments=["-device", "nosuchdevice"]),
    ):
        pytest.fail("the guest started")


def test_guest_sees_every_queue(guest: Guest) -> None:
    assert guest.output("ls /sys/block/vda/mq").split() == ["0", "1", "2", "3"]
    assert int(guest.output("cat /sys/block/vda/size")) * 512 == DISK_SIZE


def test_fio_verifies_on_all_queues(guest: Guest) -> None:
    guest.output(
        "fio --name=verify --filename=/dev/vda --rw=randwrite --bs=4k --size=8m --direct=1"
        " --ioengine=libaio --iodepth=16 --numjobs=4 --offset_increment=8m"
        " --cpus_allowed=0-3 --cpus_allowed_policy=split --verify=crc32c --do_verify=1"
        " --group_reporting",
        timeout=120,
    )
    for queue in range(NUM_QUEUES):
        line = guest.output(f"grep -E 'virtio[0-9]+-req.{queue}' /proc/interrupts")
        assert sum(int(word) for word in line.split()[1:5]) > 0


def test_file_system_survives_unmounting(guest: Guest, disk: Path) -> None:
    guest.output("mkfs.ext4 -q /dev/vda && mount /dev/vda /mnt")
    written = guest.output(
        "head -c 4194304 /dev/urandom >/mnt/file; umount /mnt; mount /dev/vda /mnt;"
        " sha256sum /mnt/file"
    )
    guest.output("umount /mnt && e2fsck -fn /dev/vda")
    assert len(written.split()[0]) == 64
    assert disk.read_bytes()[1024 + 56 : 1024 + 58] == b"\x53\xef"  # ext4's magic number


def test_resize_reaches_the_guest(guest: Guest, server: StorageDaemon) -> None:
    server.resize(DISK_SIZE + 16 * MIB)
    sectors = (DISK_SIZE + 16 * MIB) // 512
    assert guest.wait_for(f"test $(cat /sys/block/vda/size) = {sectors} && echo yes") == "yes"


def test_hot_plug_and_unplug(guest: Guest, folder: Path) -> None:
    second = folder / "second"
    second.mkdir()
    with StorageDaemon(second, num_queues=2) as daemon:
        device = VhostUserBlk("second", daemon.socket, num_queues=2)
        guest.plug(device)
        assert guest.wait_for("test -e /dev/vdb && ls /sys/block/vdb/mq").split() == ["0", "1"]
        with pytest.raises(GuestError, match="no free port"):
            guest.plug(VhostUserBlk("third", daemon.socket))
        guest.unplug(device)
        assert guest.output("ls /dev/vd*") == "/dev/vda"


def test_power_off_ends_qemu(guest: Guest, server: StorageDaemon) -> None:
    guest.power_off()
    server.process.check_running()
    with pytest.raises(GuestDiedError):
        guest.run("true")


def test_reset_starts_the_disk_again(guest: Guest) -> None:
    guest.output("echo before | dd of=/dev/vda bs=512 conv=sync,fsync 2>&1")
    guest.reset()
    assert guest.output("head -n 1 /dev/vda") == "before"


def test_live_migration_keeps_the_file_system_and_jobs(
    folder: Path, disk: Path, boot_guest: BootGuest
) -> None:
    for name in ("from", "to"):
        (folder / name).mkdir()
    with (
        StorageDaemon(folder / "from", image=disk, num_queues=2, locking=False) as old,
        StorageDaemon(folder / "to", image=disk, num_queues=2, locking=False) as new,
    ):
        source = boot_guest(VhostUserBlk("disk", old.socket, num_queues=2))
        target = boot_guest(VhostUserBlk("disk", new.socket, num_queues=2), incoming=True)
        source.output("mkfs.ext4 -q /dev/vda && mount /dev/vda /mnt")
        job = source.start_command(
            "for number in $(seq 100); do echo $number >>/mnt/log; sync; sleep 0.05; done"
        )
        source.wait_for("test -s /mnt/log")
        source.migrate_to(target)
        assert job.moved_to(target).wait(60).status == 0
        assert target.output("cat /mnt/log").split() == [str(n) for n in range(1, 101)]
        target.output("umount /mnt && e2fsck -fn /dev/vda")


def test_virtiofs_device(folder: Path, boot_guest: BootGuest) -> None:
    shared = folder / "shared"
    shared.mkdir()
    (shared / "there").write_text("from the host")
    socket = folder / "fs.sock"
    with PeerProcess(
        *("virtiofsd", f"--socket-path={socket}", f"--shared-dir={shared}", "--sandbox=none"),
        share=[folder],
        log=folder / "virtiofsd.log",
    ) as daemon:
        daemon.wait_for_socket(socket)
        guest = boot_guest(VhostUserFs("fs", socket, tag="shared"))
        guest.output("mount -t virtiofs shared /mnt && echo from the guest >/mnt/new")
        assert guest.output("cat /mnt/there") == "from the host"
        assert (shared / "new").read_text() == "from the guest\n"


def test_guest_is_started_again_when_qemu_aborts(
    boot_guest: BootGuest, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wait_ready = Guest._wait_ready
    attempts: list[int] = []

    def abort_once(guest: Guest, complaint: str) -> None:
        attempts.append(guest.pid)
        if len(attempts) == 1:
            assert guest._files is not None
            with guest._files.qemu_log.open("a") as log:
                log.write("qemu-system-x86_64: hw/x.c:1: f: Assertion `a' failed.\n")
            raise GuestDiedError("QEMU closed the agent's channel")
        wait_ready(guest, complaint)

    monkeypatch.setattr(Guest, "_wait_ready", abort_once)
    assert boot_guest(cpus=1).output("echo up") == "up"
    assert len(set(attempts)) == 2
    assert "started again" in caplog.text


def test_other_deaths_of_qemu_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[int] = []

    def die(guest: Guest, complaint: str) -> None:
        attempts.append(guest.pid)
        assert guest._files is not None
        with guest._files.qemu_log.open("a") as log:
            log.write("qemu-system-x86_64: hw/virtio/vhost.c:1: f: Assertion `a' failed.\n")
        raise GuestDiedError("QEMU closed the agent's channel")

    monkeypatch.setattr(Guest, "_wait_ready", die)
    with pytest.raises(GuestDiedError), Guest(cpus=1):
        pytest.fail("the guest started")
    assert len(attempts) == 1
