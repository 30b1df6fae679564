"""Hosts on this machine, for tests and measurements: those with which ``herringbone compare`` limits links."""

from herringbone.compare.namespaces import Namespaces, NoNamespaces, Uplinks, entered

__all__ = ["Namespaces", "NoNamespaces", "Uplinks", "entered"]
