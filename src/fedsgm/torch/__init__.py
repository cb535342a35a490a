"""PyTorch problems and clients: a module, its loss and constraints in torch, moved by the same algorithm."""

from importlib.util import find_spec

from fedsgm.base.errors import SettingError

if find_spec("torch") is None:
    raise SettingError("fedsgm.torch needs PyTorch; install it with: pip install 'fedsgm[torch]'")

from fedsgm.torch.problem import Problem

__all__ = ["Problem"]
