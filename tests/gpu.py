"""A GPU without a GPU: what raises on one, raises here on a CPU.

`AsOnCuda` refuses operations that PyTorch documents as raising on CUDA with deterministic
algorithms. `as_on_gpu` takes the meta device, whose tensors have shapes and no values, for a GPU.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

META = torch.device("meta")
PAGE = str(torch.use_deterministic_algorithms.__doc__)
RAISING = PAGE.split("will throw a\n    :class:`RuntimeError` when ``mode=True``")[1]
LISTED = RAISING.split("In addition, several operations")[0].split("* :")[1:]
NAMES = {line.split("`")[1].split(".")[-1] for line in LISTED}  # such as AvgPool3d and put_
OTHERS = {"upsample", "logcumsumexp", "cumprod"}  # interpolate, and what sums like cumsum


def plain(name: str) -> str:
    return name.replace("_", "").lower()


# The operators behind a name begin with it, but for underscores: avg_pool3d_backward.
REFUSED = tuple(map(plain, NAMES | OTHERS))
# These read the indices on any device, or move values from one device to another.
MIXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_to_copy", "copy_"}


class AsOnCuda(TorchDispatchMode):
    """Raises RuntimeError for an operation that would raise on CUDA."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        refuse_nondeterministic(func)
        return func(*args, **(kwargs or {}))


# Of NLLLoss, the form for images (nll_loss2d) raises; that of cross_entropy on (N, V) does not.
DETERMINISTIC = {"nll_loss_forward", "nll_loss_backward"}


def refuse_nondeterministic(func: Any) -> None:
    name = func.overloadpacket.__name__
    if plain(name).startswith(REFUSED) and name not in DETERMINISTIC:
        raise RuntimeError(f"{name} has no deterministic implementation on CUDA")


class AsOnGPU(TorchDispatchMode):
    """Raises RuntimeError for an operation on the meta device that would raise on a GPU: one that
    mixes its tensors with those of the CPU, or that `AsOnCuda` refuses. A value that is read from
    it, which it does not have, is 1 or True."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        leaves = tree_leaves((args, kwargs))
        tensors = [x for x in leaves if isinstance(x, Tensor)]
        on_gpu = [x for x in tensors if x.device == META]
        if not on_gpu:
            return func(*args, **kwargs)
        with self:  # in inference mode, operations arrive whole
            parts = func.decompose(*args, **kwargs)
        if parts is not NotImplemented:
            return parts
        refuse_nondeterministic(func)
        name = func.overloadpacket.__name__
        if name == "_local_scalar_dense":  # float(x), bool(x), x.item()
            return torch.ones((), dtype=on_gpu[0].dtype).item()
        if name == "equal":
            return True
        if name == "_to_copy" and any(isinstance(x, torch.device) and x != META for x in leaves):
            return torch.ones(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        if name == "copy_" and args[0].device != META:
            return args[0].fill_(1)
        # A tensor without dimensions may stay on the CPU.
        elsewhere = [x for x in tensors if x.device != META and x.dim() > 0]
        if elsewhere and name not in MIXING:
            raise RuntimeError(f"{name} mixes tensors of the CPU and of a GPU")
        return func(*args, **kwargs)


@contextlib.contextmanager
def as_on_gpu(monkeypatch: Any) -> Iterator[None]:
    """Inside, the meta device behaves as a GPU; autocast, which does not know it, does nothing."""
    autocast = torch.autocast

    def known_device(device_type: str, *args: Any, **kwargs: Any) -> Any:
        if device_type == "meta":
            return contextlib.nullcontext()
        return autocast(device_type, *args, **kwargs)

    with monkeypatch.context() as patch, AsOnGPU():
        patch.setattr(torch, "autocast", known_device)
        yield
