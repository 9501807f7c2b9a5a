#!/bin/sh
# A virtual machine on SCSI disks and CD-ROMs of vringd, with QEMU 9.2 or later (before:
# reconnect=1 instead of reconnect-ms=1000).
#
#   examples/qemu-scsi.sh SOCKET [MORE ARGUMENTS FOR QEMU]
#
# vringd serves the socket already, for example
#
#   vringd-scsi --socket-path=vm.sock --disk=vm.img --cdrom=installer.iso --num-queues=4 --iothreads=2
set -eu

socket=${1:?usage: $0 SOCKET [MORE ARGUMENTS FOR QEMU]}
shift
memory=${MEMORY:-1G}
cpus=${CPUS:-4}

# A comma in a value is written twice.
path=$(printf %s "$socket" | sed 's/,/,,/g')

# memory-backend: guest memory as a shared file, which vringd maps.
# num_queues: command queues, one for each vCPU; not more than the export's num-queues.
# boot_tpgt: the target to boot from (its LUN 0).
# QEMU warns that vringd has VHOST_USER_PROTOCOL_F_CONFIG and it has not: it answers the guest's
# questions about the configuration itself.
exec qemu-system-x86_64 \
    -machine q35,accel=kvm:tcg,memory-backend=mem -m "$memory" -smp "$cpus" -nographic \
    -object "memory-backend-memfd,id=mem,size=$memory,share=on" \
    -chardev "socket,id=disks,path=$path,reconnect-ms=1000" \
    -device "vhost-user-scsi-pci,chardev=disks,num_queues=$cpus,boot_tpgt=0,bootindex=0" \
    "$@"
