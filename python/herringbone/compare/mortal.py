"""A process that imports this module ends when its parent does. The forking server of workers needs this, because it only takes
modules.

Run as a program it is the ``herringbone`` command, which then also ends with its parent. Its first word is the parent's number.
"""

from __future__ import annotations

import os
import sys

from .namespaces import end_with_parent

end_with_parent()

if __name__ == "__main__":
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the process that started this one has ended")
    from .._herringbone import main

    sys.exit(main(sys.argv[2:]))
