"""Flower: the transport, an app of it, and a federation of processes on this machine."""
