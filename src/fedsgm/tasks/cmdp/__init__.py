"""Safe reinforcement learning: constrained Markov decision processes as tasks of FedSGM.

``load()`` gives the paper's CartPole experiment; :class:`CMDP` takes an environment and a policy of your own.
"""

from fedsgm.tasks.cmdp.cartpole import CartPole, Experiment, load
from fedsgm.tasks.cmdp.environment import Environment
from fedsgm.tasks.cmdp.policies import MLP, Categorical, Custom, Distribution, Gaussian, Policy
from fedsgm.tasks.cmdp.render import render
from fedsgm.tasks.cmdp.schedules import HarmonicDecay
from fedsgm.tasks.cmdp.task import CMDP

__all__ = [
    "CMDP",
    "MLP",
    "CartPole",
    "Categorical",
    "Custom",
    "Distribution",
    "Environment",
    "Experiment",
    "Gaussian",
    "HarmonicDecay",
    "Policy",
    "load",
    "render",
]
