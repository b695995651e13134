"""Counts of the work and memory of torch inside a block."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Watch(TorchDispatchMode):
    """Sees every tensor operation of a `with` block, those of autograd included."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0
        """Operations of matrix products; a multiply-add counts as two."""
        self.largest = 0
        """Numbers in the largest tensor that an operation returned, as far as memory holds them."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing here is compiled; to be ready for that, torch would import its compiler, which takes seconds."""
        return False

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        out = function(*arguments, **(options or {}))
        aten = torch.ops.aten
        if function.overloadpacket in (aten.mm, aten.addmm_, aten.bmm, aten.baddbmm, aten.baddbmm_):
            left, right = arguments[-2:]
            self.operations += 2 * left.numel() * right.shape[-1]
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                self.largest = max(self.largest, tensor.untyped_storage().nbytes() // tensor.element_size())
        return out
