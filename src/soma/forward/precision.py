"""Emulation of coarser matrix products in float32, to study their effect on finite differences.

A GPU's tensor cores round the operands of a product to TF32 (10 mantissa bits) or bfloat16 (7) and accumulate in
float32. `rounded_products` does the same to every matrix product inside it, on any device, without changing the model's
code. `tf32x3` and `bf16x3` split each operand into a rounded part and a rounded remainder and keep three of the four
products.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

Precision = Literal["fp32", "tf32", "bf16", "tf32x3", "bf16x3"]
PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32x3", "bf16x3", "tf32", "bf16")
_MANTISSA_BITS = {"tf32": 10, "bf16": 7}


def round_mantissa(x: Tensor, bits: int) -> Tensor:
    """Round float32 to `bits` mantissa bits, to nearest with ties to even."""
    dropped = 23 - bits
    word = x.contiguous().view(torch.int32)
    word = word + ((1 << (dropped - 1)) - 1) + ((word >> dropped) & 1)
    return (word & ~((1 << dropped) - 1)).view(torch.float32)


class rounded_products(TorchFunctionMode):
    """Context in which float32 matrix products round their operands according to `precision`."""

    def __init__(self, precision: Precision) -> None:
        super().__init__()
        self.precision = precision

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.precision == "fp32":
            return func(*args, **kwargs)
        if func in (Tensor.matmul, Tensor.__matmul__, torch.matmul):
            return self._product(func, *args)
        if func is torch.baddbmm:
            return args[0] + self._product(torch.bmm, *args[1:])
        if func is torch.einsum:
            return self._product(lambda a, b: func(args[0], a, b), *args[1:])
        return func(*args, **kwargs)

    def _product(self, product: Callable[[Tensor, Tensor], Tensor], a: Tensor, b: Tensor) -> Tensor:
        bits = _MANTISSA_BITS[self.precision.removesuffix("x3")]
        with torch._C.DisableTorchFunction():
            (a_high, a_low), (b_high, b_low) = (self._split(x, bits) for x in (a, b))
            out = product(a_high, b_high)
            if self.precision.endswith("x3"):
                out = out + (product(a_high, b_low) + product(a_low, b_high))
            return out

    @staticmethod
    def _split(x: Tensor, bits: int) -> tuple[Tensor, Tensor]:
        high = round_mantissa(x, bits)
        return high, round_mantissa(x - high, bits)
