"""Optional dependencies of the package: numpy and torch."""

from __future__ import annotations

import importlib

__all__ = ["needs"]


def needs(part: str, module: str) -> None:
    """Import ``module``, which this ``part`` of the package needs.

    Raises:
        ModuleNotFoundError: it is not installed; the text says how to install it.
    """
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        text = f"{part} needs {module}, which is not installed: pip install 'herringbone[{module}]'"
        raise ModuleNotFoundError(text, name=module) from None
