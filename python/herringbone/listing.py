"""What ``dir()``, and so an interactive prompt, shows of a public module: its public names, and none that it only uses."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

__all__ = ["listing"]


def listing(name: str, *modules: str) -> Callable[[], list[str]]:
    """A module's ``__dir__``: the names of its ``__all__``, and those that every module has.

    A module without ``__all__`` passes names on: then all are public but its own modules, of which ``modules`` are public, too.
    """

    def __dir__() -> list[str]:
        here = vars(sys.modules[name])
        public = here.get("__all__")
        if public is None:
            passed_on = {each for each, value in here.items() if not each.startswith("_") and not isinstance(value, ModuleType)}
            public = passed_on | set(modules)
        return sorted({*public, *(each for each in here if each.startswith("__"))})

    return __dir__
