"""The ``herringbone`` command: the same program as the Rust binary, and ``horovodrun`` and ``compare``."""

from __future__ import annotations

import signal
import sys

from ._herringbone import main as run


def main() -> None:
    """Run the command line of this process and exit with its status."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["horovodrun"]:
        # It is in Python: the programs that it starts need one anyway.
        from .horovod.horovodrun import main as horovodrun

        sys.exit(horovodrun(arguments[1:]))
    if arguments[:1] == ["compare"]:
        # It trains with the torch of this Python.
        from .compare.__main__ import main as compare

        sys.exit(compare(arguments[1:]))
    if arguments[:1] == ["doctor"] and not any(word.startswith("--python") for word in arguments):
        # It looks at the torch of the Python that runs it.
        arguments += ["--python", sys.executable]
    # Python turns Ctrl-C into an exception that only Python code would notice.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(run(arguments))


if __name__ == "__main__":
    main()
