"""One rank of a feature's job. Usage: rank.py FOLDER MODULE TITLE; FOLDER is the job's own, and MODULE lists the feature."""

import importlib
import os
import pathlib
import sys
import traceback
from datetime import timedelta

import checks
import torch.distributed as dist
from checks import FEATURES, FOLDER, SIZE, Feature, NotHere, NotInTorch

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2]))

from lab.events import say


def outcome_of(feature: Feature) -> tuple[str, str]:
    """Runs the feature in this rank: the outcome, and why."""
    try:
        if feature.backend is not None:
            where = {"rank": int(os.environ["RANK"]), "world_size": SIZE, "timeout": timedelta(seconds=60)}
            dist.init_process_group(feature.backend, init_method=checks.meeting("world"), **where)
        feature.run()
        if dist.is_initialized():
            dist.barrier()
            dist.destroy_process_group()
    except NotInTorch as error:
        return "not in torch", str(error)
    except NotHere as error:
        return "not here", str(error)
    except NotImplementedError as error:
        return "refused", str(error).splitlines()[0]
    except BaseException as error:
        traceback.print_exc()
        return "failed", f"{type(error).__name__}: {(str(error) or repr(error)).splitlines()[0]}"
    return "ok", ""


if __name__ == "__main__":
    os.environ[FOLDER], module, title = sys.argv[1:]
    importlib.import_module(module)
    outcome, why = outcome_of(FEATURES[title])
    say("outcome", outcome=outcome, why=why)
    # Not all of torch's own threads end by themselves.
    sys.stderr.flush()
    os._exit(0)
