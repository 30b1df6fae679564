"""Hosts with a cable of their own for each pair, as GPUs have NVLinks: namespaces without a router between them."""

from processes import Namespaces

QUEUE = 4_000_000
"""Bytes that wait before a cable."""


class Mesh(Namespaces):
    """`rates[i][j]` Mbit/s go from host i to host j. Each host has one address, and each other host a cable and a route."""

    interface = "lo"

    def __init__(self, rates):
        super().__init__(len(rates), rate=True)
        self.rates = rates

    def address(self, host):
        """The address of a host, which no cable has."""
        return f"10.79.0.{host + 1}"

    def _connect(self, host):
        """Gives a host its cables to the hosts before it."""
        own = self.hosts[host]
        self._run(own, "ip", "link", "set", "lo", "up")
        self._run(own, *f"ip addr add {self.address(host)}/32 dev lo".split())
        for other, process in enumerate(self.hosts[:host]):
            self._run(own, *f"ip link add to{other} type veth peer name to{host} netns {process}".split())
            for end, here, there in ((own, host, other), (process, other, host)):
                self._run(end, *f"ip link set to{there} up".split())
                way = f"{self.address(there)}/32 dev to{there} src {self.address(here)}"
                self._run(end, *f"ip route add {way}".split())
                self._limit(end, f"to{there}", self.rates[here][there], QUEUE)
