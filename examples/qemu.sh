#!/bin/sh
# A virtual machine on a disk of vringd, with QEMU 9.2 or later (before: reconnect=1 instead of
# reconnect-ms=1000).
#
#   examples/qemu.sh SOCKET [MORE ARGUMENTS FOR QEMU]
#
# vringd serves the socket already, for example
#
#   vringd serve --object iothread,id=t0 --object iothread,id=t1 \
#     --blockdev driver=file,node-name=disk,filename=vm.img,discard=unmap \
#     --export type=vhost-user-blk,id=e0,node-name=disk,writable=on,num-queues=4,addr.type=unix,addr.path=vm.sock,iothread.0=t0,iothread.1=t1
set -eu

socket=${1:?usage: $0 SOCKET [MORE ARGUMENTS FOR QEMU]}
shift
memory=${MEMORY:-1G}
cpus=${CPUS:-4}

# A comma in a value is written twice.
path=$(printf %s "$socket" | sed 's/,/,,/g')

# memory-backend: guest memory as a shared file, which vringd maps.
# num-queues: one for each vCPU; not more than the export's num-queues, or QEMU refuses to start.
# packed=on: add it to the device for packed rings.
exec qemu-system-x86_64 \
    -machine q35,accel=kvm:tcg,memory-backend=mem -m "$memory" -smp "$cpus" -nographic \
    -object "memory-backend-memfd,id=mem,size=$memory,share=on" \
    -chardev "socket,id=disk,path=$path,reconnect-ms=1000" \
    -device "vhost-user-blk-pci,chardev=disk,num-queues=$cpus,bootindex=0" \
    "$@"
