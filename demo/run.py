"""The demo: Herringbone compared with Gloo, inside this host and over links of limited rate, in speed and in bits.

Starts the workers of demo/train.py, once on this host and once each on its own host (network namespaces, where the
machine allows them) with additional reducers. Prints a table and draws it. No process and no namespace stays behind, even
after a failure. Exit code 0: Herringbone's results have the same bits everywhere and agree with Gloo; 1: they do not, or a
process failed.
"""

import argparse
import os
import pathlib
import secrets
import signal
import sys
import tempfile
import textwrap
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "bench"))

from machine import machine
from picture import picture
from processes import Here, JobFailed, Namespaces, NoNamespaces, Processes
from results import Setting, facts, table

START_SECONDS, STEP_SECONDS = 25, 2.2
"""On two cores: all imports of torch, and a step of all trainings."""
BUCKET_MEBIBYTES = {"inside": 8, "links": 25}
"""They differ, because Gloo's order of additions and so its bits depend on them; 25 is DDP's default."""


def environment(place):
    """What all workers and reducers have: torch's settings, one token, and no setting of Herringbone from elsewhere."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HERRINGBONE_")}
    # The hosts have no name service, about which torch warns.
    return kept | place | {"HERRINGBONE_TOKEN": secrets.token_hex(16), "TORCH_CPP_LOG_LEVEL": "ERROR"}


def train(hosts, setting, options, words):
    """Runs the workers on hosts, and reducers where the setting has them."""
    setting.folder.mkdir()
    with Processes(hosts) as processes:
        shared = environment(processes.place(options.workers))
        reducers = [processes.reducer(shared, options.workers + index) for index in range(setting.reducers)]
        if reducers:
            words += ["--reducers", ",".join(reducer.address for reducer in reducers)]
        words += ["--title", setting.title, "--trainings", ",".join(setting.trainings), "--out", setting.folder]
        words += ["--rounds", options.rounds, "--steps", options.steps]
        say(f"{setting.words}: {options.workers} workers import torch and meet")
        processes.run([sys.executable, HERE / "train.py", *words], shared, range(options.workers))
    setting.read(options.workers)
    return setting


def inside(options, folder):
    """All workers on this host, which Gloo and Herringbone share."""
    setting = Setting("inside host", "inside this host", folder / "inside", ["gloo", "herringbone"])
    return train(Here(), setting, options, ["--bucket", BUCKET_MEBIBYTES["inside"]])


def over_links(options, folder):
    """A host for each worker and each reducer, and a link of limited rate to each."""
    words = f"{options.workers} hosts with {options.rate} Mbit/s links"
    trainings = ["gloo", "herringbone", "reducers"]
    setting = Setting("over links", words, folder / "links", trainings, options.reducers)
    with Namespaces(options.workers + options.reducers, options.rate) as hosts:
        words = ["--interface", hosts.interface, "--bucket", BUCKET_MEBIBYTES["links"]]
        return train(hosts, setting, options, words)


def both(options, folder):
    """The settings that this machine allows, and why not the other one."""
    settings, left_out = [inside(options, folder)], None
    try:
        settings.append(over_links(options, folder))
    except NoNamespaces as reason:
        left_out = f"The part over links is left out, because {reason}."
        say(left_out)
    return settings, left_out


def say(text):
    """Prints the present step."""
    print(text, file=sys.stderr, flush=True)


def announce(options):
    """Prints what comes and how long it takes; returns facts about this machine."""
    host = machine()
    seconds = START_SECONDS + STEP_SECONDS * (options.rounds * options.steps + 2)
    say(f"{options.workers} workers train a network through Gloo and Herringbone, in turns: inside this host, then")
    say(f"over {options.rate} Mbit/s links, also with {options.reducers} reducers. About {seconds:.0f} s on two free cores.")
    say(f"This machine: {host['CPU']}; {host['cores']} cores, load {host['load before']}.")
    if float(host["load before"]) > 1.5 * len(os.sched_getaffinity(0)):
        say("Other programs use it: steps will take longer, and the comparison will be less certain.")
    return host


def stop(number, _):
    """Ends the demo; a second signal does not disturb its cleaning up."""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt(signal.Signals(number).name)


def parsed():
    arguments = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    option = arguments.add_argument
    option("--workers", type=int, default=4, help="processes that train")
    option("--reducers", type=int, default=4, help="reducers: processes that add up for the workers, over links")
    option("--rounds", type=int, default=6, help="turns of each training")
    option("--steps", type=int, default=5, help="steps of a turn")
    option("--rate", type=int, default=500, help="Mbit/s of each link, both ways")
    option("--report", type=pathlib.Path, default=pathlib.Path("demo-report.svg"), help="the picture to write")
    options = arguments.parse_args()
    if min(options.workers, options.reducers, options.rounds, options.steps, options.rate) < 1:
        arguments.error("at least one worker, one reducer, one round, one step and 1 Mbit/s")
    return options


def main():
    options = parsed()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    began, host = time.monotonic(), announce(options)
    try:
        with tempfile.TemporaryDirectory(prefix="herringbone-demo-") as folder:
            settings, left_out = both(options, pathlib.Path(folder))
            found, agree = facts(settings)
    except JobFailed as failure:
        sys.exit(f"demo: {failure}")
    except KeyboardInterrupt:
        sys.exit("demo: interrupted; all processes that it started have ended")
    print("", *table(settings), "", sep="\n")
    print(*(textwrap.fill(fact, 80) for fact in [*found, *([left_out] if left_out else [])]), sep="\n")
    options.report.write_text(picture(settings, found, left_out, host))
    print(f"After {time.monotonic() - began:.0f} s drawn: {options.report}")
    sys.exit(None if agree else "demo: the trainings do not agree")


if __name__ == "__main__":
    main()
