"""Hosts that are far from each other: namespaces whose packets wait in the router, by a program that holds each for as long.

Many kernels have no netem. The router sends what comes from a host into a tunnel device, from which this program takes the packets
and gives them back later, in their order. It is one process in Python and keeps up with some 500 Mbit/s.
"""

import collections
import contextlib
import fcntl
import os
import pathlib
import select
import struct
import subprocess
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))

from lab.hosts import Namespaces, NoNamespaces, entered

DEVICE, TABLE = "hb-far", "100"
SET_INTERFACE, TUN, WITHOUT_INFO = 0x400454CA, 0x0001, 0x1000
"""TUNSETIFF, IFF_TUN and IFF_NO_PI of <linux/if_tun.h>."""
PACKET_BYTES, LARGEST_FRAME = 1 << 16, 9000
AT_ONCE = 64


class DistantHosts(Namespaces):
    """Namespaces with so many milliseconds from each host to each other one, beside what their links take."""

    def __init__(self, hosts, rate=None, milliseconds=0.0):
        super().__init__(hosts, rate)
        self.milliseconds = milliseconds

    def __enter__(self):
        super().__enter__()
        if not self.milliseconds:
            return self
        with contextlib.ExitStack() as undone:
            undone.callback(self.stack.close)
            self._delay()
            undone.pop_all()
        return self

    def _delay(self):
        if self.user:
            raise NoNamespaces("hosts that are far from each other need root, for a tunnel device")
        words = [*entered(self.router), sys.executable, __file__, str(self.milliseconds)]
        relay = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
        self.stack.callback(relay.communicate)
        if relay.stdout.readline() != "ready\n":
            raise NoNamespaces("there is no tunnel device for hosts that are far from each other")
        commands = [f"ip link set {DEVICE} mtu {LARGEST_FRAME} up", f"ip route add default dev {DEVICE} table {TABLE}"]
        commands += [f"ip rule add iif link{host} lookup {TABLE}" for host in range(self.count)]
        for command in commands:
            self._run(self.router, *command.split())


def relay(delay):
    """Holds each packet for `delay` seconds, until the standard input ends."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, SET_INTERFACE, struct.pack("16sH22x", DEVICE.encode(), TUN | WITHOUT_INFO))
    print("ready", flush=True)
    held = collections.deque()
    poll = select.poll()
    poll.register(device, select.POLLIN)
    poll.register(sys.stdin, select.POLLIN)
    while True:
        left = held[0][0] - time.monotonic() if held else 3600.0
        for descriptor, _ in poll.poll(max(0.0, left * 1000)):
            if descriptor == sys.stdin.fileno():
                return
            # A full queue of the link is a lost packet there, as in a switch.
            with contextlib.suppress(BlockingIOError):
                for _ in range(AT_ONCE):
                    packet = os.read(device, PACKET_BYTES)
                    held.append((time.monotonic() + delay, packet))
        now = time.monotonic()
        while held and held[0][0] <= now:
            os.write(device, held.popleft()[1])


if __name__ == "__main__":
    relay(float(sys.argv[1]) / 1000)
