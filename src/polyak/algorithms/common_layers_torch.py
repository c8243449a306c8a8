"""The arithmetic of fully connected layers in PyTorch: forward, and gradients by hand.

Autograd takes a chain of layers for many small operations: it allocates what each gives, computes
gradients that nobody asked for, and copies. Here the chain is one operation. Only what is needed is
computed, ReLUs work in place, and the gradients of all weights are written side by side into one
tensor, so that Adam takes them as they are.

Shapes: P networks computed as one (an ensemble, or several runs), B batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_mask = torch.ops.aten.threshold_backward.grad_input
"""`_mask(gradient, relu, 0, grad_input=out)`: the gradient where a ReLU let its input pass."""


def cut(flat: Tensor, shapes: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    """Views of consecutive parts of a flat tensor, by name and with these shapes.

    Of a weight (..., out, in) the longer of both axes is contiguous: products with the thin first
    layer, whose inputs are few, are up to three times faster than with the other order.
    """
    parts = flat.split([math.prod(shape) for shape in shapes.values()])
    views = {}
    for part, (name, shape) in zip(parts, shapes.items(), strict=True):
        if len(shape) >= 2 and name.endswith("weight") and shape[-1] < shape[-2]:
            views[name] = part.view((*shape[:-2], shape[-1], shape[-2])).transpose(-1, -2)
        else:
            views[name] = part.view(tuple(shape))
    return views


class Layers(torch.autograd.Function):
    """Fully connected layers with ReLU between them, as one operation.

    `apply(flat, parameters, gradients, *inputs)` gives (B, out) from inputs (B, in_i) that stand
    side by side, or (P, B, out) from inputs of P networks or from the same ones for all.
    `parameters` are weight (out, in) and bias (out,) of each layer in turn, or stacks of P, views
    of `flat`, which is what autograd knows. `gradients()` gives a new tensor like `flat` for the
    gradient, and its views in the same order.
    """

    @staticmethod
    def forward(
        ctx: Any,
        flat: Tensor,
        parameters: Sequence[Tensor],
        gradients: Callable[[], tuple[Tensor, Sequence[Tensor]]],
        *inputs: Tensor,
    ) -> Tensor:
        """Keeps what goes into each layer for `backward`."""
        *activations, output = evaluate(parameters, inputs)
        ctx.save_for_backward(*activations)
        # Not saved, so not checked for changes: a loss is differentiated before Adam takes a step.
        ctx.parameters, ctx.gradients = parameters, gradients
        ctx.widths = [x.shape[-1] for x in inputs]
        ctx.shared = inputs[0].dim() < output.dim()
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of `flat` and of each input, as far as they are wanted."""
        of_flat, _, _, *of_inputs = ctx.needs_input_grad
        activations, parameters = ctx.saved_tensors, ctx.parameters
        flat, views = ctx.gradients() if of_flat else (None, ())
        for layer in reversed(range(len(activations))):
            x, weight = activations[layer], parameters[2 * layer]
            if of_flat:
                _product(gradient.mT, x, views[2 * layer])
                torch.sum(gradient, -2, out=views[2 * layer + 1])
            if layer:
                gradient = gradient @ weight
                _mask(gradient, x, 0, grad_input=gradient)
        columns = parameters[0].split(ctx.widths, dim=-1)
        found = [
            gradient @ part if wanted else None
            for part, wanted in zip(columns, of_inputs, strict=True)
        ]
        if ctx.shared:
            found = [None if x is None else x.sum(0) for x in found]
        return flat, None, None, *found


def evaluate(parameters: Sequence[Tensor], inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """What goes into each layer, and what comes out of the last; shapes as in `Layers`."""
    x = torch.cat(inputs, dim=-1)
    if parameters[0].dim() > x.dim():
        x = x.expand(len(parameters[0]), *x.shape)
    values = [x]
    for weight, bias in zip(parameters[::2], parameters[1::2], strict=True):
        if len(values) > 1:
            x.relu_()
        if x.dim() == 2:
            x = torch.addmm(bias, x, weight.mT)
        else:
            x = torch.baddbmm(bias.unsqueeze(-2), x, weight.mT)
        values.append(x)
    return values


def _product(a: Tensor, b: Tensor, out: Tensor) -> None:
    """out = a b, also into matrices that are stored with their axes swapped."""
    if not out.is_contiguous():
        a, b, out = b.mT, a.mT, out.mT
    (torch.mm if out.dim() == 2 else torch.bmm)(a, b, out=out)
