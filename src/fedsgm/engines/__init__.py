"""Runs without a federation, and what every engine keeps of a run."""
