"""A pytest plugin: what workers of pytest-xdist take at once, and what they share: one process that forks ranks.

It is a test with all its cases, as most of them share a job that the first one starts. Tests whose cases have nothing in common
are taken case by case.
"""

import os

from xdist.scheduler import LoadScopeScheduling

from lab.job import PLACE, Server, has_torch

APART = ("test_block",)


class ByTest(LoadScopeScheduling):
    """Those with most cases come first, then in the order of the command line."""

    def _split_scope(self, nodeid):
        test = nodeid.split("[")[0]
        return nodeid if test.endswith(APART) else test


def pytest_xdist_setupnodes(config, specs):
    """Before the workers start, which have it from the environment."""
    if has_torch():
        server = Server()
        config.add_cleanup(server.close)
        os.environ[PLACE] = server.place


def pytest_xdist_make_scheduler(config, log):
    return ByTest(config, log)
