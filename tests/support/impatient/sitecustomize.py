"""Flower's processes wait and import less where this folder is on PYTHONPATH, as in the tests that run them.

A node looks for messages and answers every 0.4 s instead of every 3 and 0.5, the process of a message imports nothing
of the node's own, and a node that is gone is missed after 20 s instead of 60, by the least interval that Flower takes.
"""

import sys
import time
import types
from pathlib import Path

LOOK_EVERY = 0.4  # seconds
command = Path(sys.orig_argv[1]).name if len(sys.orig_argv) > 1 else ""

if command == "flwr-clientapp":
    unused = types.ModuleType("flwr.supernode.cli.flower_supernode")
    unused.flower_supernode = None
    sys.modules[unused.__name__] = unused
elif command == "flower-supernode":
    from flwr.common.constant import HEARTBEAT_MIN_INTERVAL
    from flwr.supercore import heartbeat
    from flwr.supernode import fleet_http_connection

    heartbeat.HEARTBEAT_DEFAULT_INTERVAL = fleet_http_connection.HEARTBEAT_DEFAULT_INTERVAL = HEARTBEAT_MIN_INTERVAL
    sleep = time.sleep
    time.sleep = lambda seconds: sleep(min(seconds, LOOK_EVERY))
