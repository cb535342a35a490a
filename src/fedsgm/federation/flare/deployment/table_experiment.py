"""What the federation fits. It is the same file at the server and at every client."""

from fedsgm.cli.federate_fit import experiment


def make():
    """The settings are the flags of ``fedsgm federate fit``, with underscores; ``--help`` has them all."""
    return experiment(
        target="approved",
        constraint=["demographic_parity(sex) <= 0.05"],
        rounds=500,
        min_participants=1,  # a round that fewer clients answer is repeated
        timeout=60.0,  # seconds that a client has for an answer
    )
