"""Marks that the tests of these folders have."""


def pytest_configure(config):
    config.addinivalue_line("markers", "full: starts jobs that `make test` has no time for; `make full` and .ci/run run it")
