"""Run torch's ``torchfrtrace`` on a folder of flight records, and write what it has put together as JSON.

Usage: flight_read.py FOLDER OUTPUT
"""

from __future__ import annotations

import json
import pickle
import sys
import tempfile
from pathlib import Path

from torch.distributed.flight_recorder import fr_trace


def main() -> None:
    folder, output = sys.argv[1:]
    with tempfile.NamedTemporaryFile() as database:
        fr_trace.main([folder, "-o", database.name])
        _, found = pickle.load(database)
    fields = [{"name": one.collective_name, "group": one.pg_desc, "fits": one.pass_check} for one in found.collectives]
    Path(output).write_text(json.dumps(fields))


if __name__ == "__main__":
    main()
