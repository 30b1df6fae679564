"""What the package needs for some of its parts and does not install: numpy and torch."""

from __future__ import annotations

import importlib

__all__ = ["needs"]


def needs(part: str, module: str) -> None:
    """Import ``module``, which this ``part`` of the package works with.

    Raises:
        ModuleNotFoundError: it is not installed; the text says how it is.
    """
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        text = f"{part} needs {module}, which is not installed: pip install 'herringbone[{module}]'"
        raise ModuleNotFoundError(text, name=module) from None
