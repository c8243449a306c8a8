"""Layers with gradients by hand against the same layers left to autograd."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear, relu

from polyak.algorithms import common_torch
from polyak.algorithms.common_layers_torch import cut
from polyak.algorithms.common_torch import MLP

ROWS, OBS, ACTIONS, HIDDEN = 5, 4, 3, 8
LEADS = {"one": (), "ensemble": (2,), "runs": (3, 1), "runs of ensembles": (3, 2)}

every_stack = pytest.mark.parametrize("lead", LEADS.values(), ids=LEADS)


def network(lead: tuple[int, ...], outputs: int, dtype: type = np.float64) -> MLP:
    rng = np.random.default_rng(0)
    sizes = (OBS + ACTIONS, HIDDEN, HIDDEN, outputs)
    weights = {}
    for layer in range(3):
        weights[f"{layer}.weight"] = rng.normal(size=(*lead, sizes[layer + 1], sizes[layer]))
        weights[f"{layer}.bias"] = rng.normal(size=(*lead, sizes[layer + 1]))
    return MLP({name: w.astype(dtype) for name, w in weights.items()}, torch.device("cpu"))


def inputs(lead: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Of each run; what an ensemble sees, its networks see together."""
    rng = np.random.default_rng(1)
    obs, action = (torch.from_numpy(rng.normal(size=(*lead, ROWS, n))) for n in (OBS, ACTIONS))
    return obs, action.requires_grad_()


def plainly(parameters: Mapping[str, Tensor], x: Tensor, shared: bool) -> Tensor:
    """The layers as PyTorch's users write them, one network after another."""
    weight = parameters["0.weight"]
    if weight.dim() > 2:
        parts = [
            plainly(
                {name: p[i] for name, p in parameters.items()},
                x if shared and weight.dim() == 3 else x[i],
                shared,
            )
            for i in range(len(weight))
        ]
        return torch.stack(parts)
    for layer in range(2):
        x = relu(linear(x, parameters[f"{layer}.weight"], parameters[f"{layer}.bias"]))
    return linear(x, parameters["2.weight"], parameters["2.bias"])


@every_stack
@pytest.mark.parametrize("outputs", [1, 3])
def test_values_and_all_gradients(lead: tuple[int, ...], outputs: int) -> None:
    net = network(lead, outputs)
    obs, action = inputs(lead[:-1])
    weighting = torch.randn(*lead, ROWS, outputs, dtype=torch.float64)

    found = net.layers(obs, action)
    flat, of_action = torch.autograd.grad((found * weighting).sum(), [net.flat, action])

    leaves = {name: p.clone().requires_grad_() for name, p in net.parameters.items()}
    expected = plainly(leaves, torch.cat([obs, action], dim=-1), shared=True)
    *gradients, by_action = torch.autograd.grad(
        (expected * weighting).sum(), [*leaves.values(), action]
    )
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(of_action, by_action)
    for (name, view), gradient in zip(cut(flat, net.shapes).items(), gradients, strict=True):
        torch.testing.assert_close(view, gradient, msg=name)
    with torch.no_grad():
        assert torch.equal(net.layers(obs, action), found)


@pytest.mark.parametrize("lead", [(2,), (3, 2)], ids=["ensemble", "runs of ensembles"])
def test_one_of_an_ensemble_is_as_if_it_stood_alone(lead: tuple[int, ...]) -> None:
    net = network(lead, 1)
    obs, action = inputs(lead[:-1])
    found = net.layers(obs, action, only=1)
    flat, of_action = torch.autograd.grad(found.square().sum(), [net.flat, action])

    alone = {
        name: p.select(len(lead) - 1, 1).clone().requires_grad_()
        for name, p in net.parameters.items()
    }
    expected = plainly(alone, torch.cat([obs, action], dim=-1), shared=False)
    *gradients, by_action = torch.autograd.grad(expected.square().sum(), [*alone.values(), action])
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(of_action, by_action)
    for view, gradient in zip(cut(flat, net.shapes).values(), gradients, strict=True):
        torch.testing.assert_close(view.select(len(lead) - 1, 1), gradient)
        assert not view.select(len(lead) - 1, 0).any()


def test_two_uses_of_a_network_add_up() -> None:
    net = network((2,), 1)
    obs, action = inputs(())
    (twice,) = torch.autograd.grad(
        net.layers(obs, action).sum() + 2.0 * net.layers(obs, 3.0 * action).sum(), [net.flat]
    )
    (first,) = torch.autograd.grad(net.layers(obs, action).sum(), [net.flat])
    (second,) = torch.autograd.grad(net.layers(obs, 3.0 * action).sum(), [net.flat])
    torch.testing.assert_close(twice, first + 2.0 * second)


def test_no_gradient_of_a_frozen_network_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    net = network((2,), 1)
    obs, action = inputs(())
    (expected,) = torch.autograd.grad(net.layers(obs, action).sum(), [action])

    def never(*_: object) -> None:
        raise AssertionError("weights' gradients were asked for")

    monkeypatch.setattr(MLP, "_gradients", never)
    (found,) = torch.autograd.grad(net.frozen().layers(obs, action).sum(), [action])
    assert torch.equal(found, expected)
    with pytest.raises(AssertionError):
        torch.autograd.grad(net.layers(obs, action).sum(), [action])


def test_a_frozen_network_follows_the_one_it_was_made_of() -> None:
    net = network((), 1)
    obs, action = inputs(())
    frozen = net.frozen()
    before = frozen.layers(obs, action)
    common_torch.Adam(net, 0.1).minimize(net.layers(obs, action).square().mean())
    assert not torch.equal(frozen.layers(obs, action), before)
    assert torch.equal(frozen.layers(obs, action), net.layers(obs, action))
