"""Runs on one machine, and what every engine keeps of a run."""
