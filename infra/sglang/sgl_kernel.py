"""In the place of SGLang's kernels, of which no registry has a build for CPUs.

Every name can be imported, and raises when it is called.  No operator is registered, so SGLang sees a
CPU without AMX and computes with plain torch.
"""

from typing import Any

__version__ = "0.0.0+none"


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_: object, **__: object) -> None:
        raise NotImplementedError(f"sgl_kernel.{name}: there are no kernels for CPUs here")

    missing.__name__ = name
    return missing
