"""Processes for tests to kill: forked from one that has imported all that they need, so they start in no time."""

import multiprocessing
import os
import sys

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [
        "fedsgm.__main__",
        "fedsgm.engines.simulate",
        "fedsgm.paper.studies",
        "fedsgm.tasks.neyman_pearson",
        "matplotlib.backends.backend_agg",
        "matplotlib.backends.backend_svg",
        "pyarrow.parquet",
        "scipy.stats",
    ]
)


def start(function, *arguments, log):
    """A running process that calls the function; what it prints goes to a file."""
    process = _context.Process(target=_call, args=(function, arguments, str(log)))
    process.start()
    return process


def _call(function, arguments, log):
    with open(log, "ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    function(*arguments)


def command(arguments):
    """``fedsgm`` with these arguments, as a function to start."""
    from fedsgm.__main__ import main

    sys.argv = ["fedsgm", *arguments]
    main()
