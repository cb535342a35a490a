"""Waiting for what other processes do."""

import time

LONG = 600.0  # seconds after which something never happens


def until(happened, what):
    """Wait for something, and give it."""
    deadline = time.monotonic() + LONG
    while not (found := happened()):
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.05)
    return found
