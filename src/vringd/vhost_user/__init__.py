"""The control plane of vhost-user: what a front-end asks for, without any data path.

    server.py           the listening socket; one front-end after the other
    session.py          one connection: order, acknowledgements, the end
    messages.py         what each message does
    rings.py            which rings run, and with what
    connection.py       messages and descriptors on a stream socket
    backend_channel.py  messages to the front-end
    host.py             what a session needs of the device that it serves

Specification: "Vhost-user Protocol" (docs/interop/vhost-user.rst of QEMU).
"""
