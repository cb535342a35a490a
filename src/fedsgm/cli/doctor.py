"""``fedsgm doctor``: what a run would stand on here."""

from __future__ import annotations

# Packages that come with an extra, by its name.
EXTRAS = {"nvflare": "nvflare", "flower": "flwr", "torch": "torch", "cmdp": "gymnasium", "privacy": "dp-accounting"}
EXTRAS |= {"tensorboard": "tensorboard", "mlflow": "mlflow-skinny", "trackio": "trackio"}


def doctor() -> None:
    """Print versions, devices, which Top-K is in use, where compiled programs are kept, and the extras, a line each."""
    for name, said in _found().items():
        print(f"{name}: {said}")


def _found() -> dict[str, str]:
    import platform

    import jax

    from fedsgm.core import topk

    devices = ", ".join(str(device) for device in jax.devices())
    found = {name: _version(name) or "not installed" for name in ("fedsgm", "jax", "jaxlib", "numpy")}
    found |= {"python": platform.python_version(), "devices": devices}
    found |= {"top-k": topk.in_use(), "compiled programs": _cache()}
    return found | {f"extra {extra}": _extra(extra, package) for extra, package in EXTRAS.items()}


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cache() -> str:
    import jax

    from fedsgm.base.cache import use_compilation_cache

    use_compilation_cache()
    return jax.config.jax_compilation_cache_dir or "not kept, as FEDSGM_CACHE is empty"  # type: ignore[attr-defined]


def _extra(extra: str, package: str) -> str:
    version = _version(package)
    return f"{package} {version}" if version else f"not installed; pip install 'fedsgm[{extra}]' adds {package}"
