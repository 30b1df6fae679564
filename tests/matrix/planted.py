"""Features that end as they should not, for `test_matrix.py`."""

import os
import time

import checks
from checks import feature

feature("ok")(checks.rank)


@feature("failed")
def wrong() -> None:
    checks.same(checks.mine(), checks.mine(of=0))


@feature("not in torch")
def gap() -> None:
    checks.needed(checks.dist, "no_such_call")


@feature("refused")
def refusal() -> None:
    raise NotImplementedError("not now\nnor ever")


@feature("not here")
def lack() -> None:
    raise checks.NotHere("no compiler")


@feature("an end", backend=None)
def end() -> None:
    os._exit(3)


@feature("hung", backend=None)
def hang() -> None:
    time.sleep(1000)
