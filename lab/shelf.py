"""What the server has imported, and a rank has not: each rank imports it by name, and gets it in a moment.

A rank begins without torch, as every process does. ``import torch`` then takes torch from the shelf, with all that comes
with it, and does what torch does at the end of its import: it loads the backends of other packages, ours among them, which
are never on the shelf. So a program that forgets an import fails here, too.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

STAGES = ("numpy", "torch", "torch._dynamo")
"""In this order: importing one imports those before it. DistributedDataParallel imports the last, which takes as long as all
of torch."""
AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"


class _Asked(type(os.environ)):  # type: ignore[misc]
    """An environment that notes which variables somebody has asked for."""

    names: set[str] = set()

    def __getitem__(self, name: str) -> str:
        self.names.add(name)
        return super().__getitem__(name)  # type: ignore[no-any-return]


class Shelf:
    """A finder of what is on it, for `sys.meta_path`."""

    def __init__(self) -> None:
        self.stages: list[dict[str, ModuleType]] = []
        self.modules: dict[str, ModuleType] = {}
        self.variables: list[dict[str, str]] = []
        """Those that a stage's import sets."""
        self.filters: list[list[Any]] = []
        """Of warnings, that it adds."""
        self.asked: set[str] = set()

    def fill(self) -> None:
        """Import all, in a process that has imported nothing else of it."""
        own = os.environ.__class__
        os.environ[AUTOLOAD] = "0"
        os.environ.__class__ = _Asked
        try:
            for stage in STAGES:
                before, variables, filters = set(sys.modules), dict(os.environ), list(warnings.filters)
                importlib.import_module(stage)
                new = {name: module for name, module in sys.modules.items() if name not in before}
                self.stages.append({name: module for name, module in new.items() if not _is_pythons(name)})
                self.variables.append(dict(os.environ.items() - variables.items()))
                self.filters.append([each for each in warnings.filters if each not in filters])
        finally:
            os.environ.__class__ = own
            self.asked = set(_Asked.names) - {AUTOLOAD}
        self.modules = {name: module for stage in self.stages for name, module in stage.items()}

    def open(self) -> None:
        """From here on the modules of the shelf are there for whoever imports them."""
        for stage in self.stages:
            for name in stage:
                del sys.modules[name]
        added = [each for stage in self.filters for each in stage]
        change_filters([each for each in warnings.filters if each not in added])
        sys.meta_path.insert(0, self)

    def leave(self) -> None:
        """At the end of a process: the modules live as long as it does, because to end them takes a second of a core."""
        for name, module in self.modules.items():
            sys.modules.pop(name, None)
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(module))
        sys.modules["sys"].__dict__["last to go"] = _Last()

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Of a module that is on the shelf."""
        for number, stage in enumerate(self.stages):
            if name in stage:
                loader = _Taken(self, number, name, stage[name])
                return ModuleSpec(name, loader, is_package=hasattr(stage[name], "__path__"))
        return None

    def take(self, number: int, name: str) -> None:
        """Take a module, and all that comes with it, off the shelf."""
        package = name.partition(".")[0]
        is_whole = package == STAGES[number].partition(".")[0]
        taken: dict[str, ModuleType] = {}
        for stage in range(number + 1) if is_whole else [number]:
            wanted = [each for each in self.stages[stage] if is_whole or each.partition(".")[0] == package]
            taken |= {each: self.stages[stage].pop(each) for each in wanted}
            if is_whole:
                os.environ.update(self.variables[stage])
                change_filters(self.filters[stage] + [each for each in warnings.filters if each not in self.filters[stage]])
                self.variables[stage], self.filters[stage] = {}, []
        sys.modules.update(taken)
        if not any(self.stages):
            sys.meta_path.remove(self)
        if "torch" in taken and taken["torch"]._is_device_backend_autoload_enabled():
            taken["torch"]._import_device_backends()


class _Last:
    """Its end is behind that of the program's objects.

    Then what they have printed goes out: a module that lives on may have the stream, which would do so at its own end. And
    the C library's errors go nowhere from there on: libraries write there which objects are left, which is on purpose.
    """

    def __init__(self) -> None:
        libc = ctypes.CDLL(None)
        libc.fopen.restype = ctypes.c_void_p
        self.nowhere = libc.fopen(os.devnull.encode(), b"w")
        self.streams = (sys.stdout, sys.stderr)
        self.errors = ctypes.c_void_p.in_dll(libc, "stderr")

    def __del__(self) -> None:
        for stream in self.streams:
            try:
                stream.flush()
            except Exception:
                pass  # it is closed, or nobody reads it
        self.errors.value = self.nowhere


class _Taken(Loader):
    """The loader of a module that is loaded already."""

    def __init__(self, shelf: Shelf, stage: int, name: str, module: ModuleType) -> None:
        self.shelf, self.stage, self.name, self.module = shelf, stage, name, module
        self.spec = module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        # The machinery of imports has put its spec here. What is imported on the way sees that the module is being imported.
        module.__spec__ = self.spec
        self.spec._initializing = True  # type: ignore[union-attr]
        try:
            self.shelf.take(self.stage, self.name)
        finally:
            self.spec._initializing = False  # type: ignore[union-attr]


def change_filters(wanted: list[Any]) -> None:
    """The filters of warnings from now on; Python forgets which warnings it has shown, as after every change of them."""
    warnings.simplefilter("default", BytesWarning)
    warnings.filters[:] = wanted  # type: ignore[index]


def _is_pythons(name: str) -> bool:
    """Whether a module belongs to Python itself: those stay where they are, because more modules than these share them."""
    return name.partition(".")[0] in sys.stdlib_module_names
