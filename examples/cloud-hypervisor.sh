#!/bin/sh
# A virtual machine on a disk of vringd, with Cloud Hypervisor.
#
#   examples/cloud-hypervisor.sh SOCKET KERNEL [MORE ARGUMENTS]
#
# KERNEL is an uncompressed kernel with the virtio drivers built in, or Cloud Hypervisor's
# firmware. vringd's own tests do not run Cloud Hypervisor.
#
# crosvm has an option of the same kind; its guest memory is shared anyway:
#
#   crosvm run --vhost-user block,socket=SOCKET … KERNEL
set -eu

socket=${1:?usage: $0 SOCKET KERNEL [MORE ARGUMENTS]}
kernel=${2:?usage: $0 SOCKET KERNEL [MORE ARGUMENTS]}
shift 2

# shared=on: vringd maps the guest's memory.
# num_queues, queue_size: not more than the export's num-queues and queue-size.
exec cloud-hypervisor \
    --kernel "$kernel" --cmdline "console=ttyS0 root=/dev/vda1 rw" \
    --cpus boot=4 --memory size=1G,shared=on \
    --disk "vhost_user=true,socket=$socket,num_queues=4,queue_size=256" \
    --serial tty --console off \
    "$@"
