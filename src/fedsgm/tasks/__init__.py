"""The paper's experiments, ready to run."""
