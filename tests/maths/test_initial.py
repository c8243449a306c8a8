"""Initial weights: their distribution, and what shares them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from polyak.algorithms import initial, load_backend
from tests.maths.cases import OBS, Case


def test_uniform_in_one_over_the_root_of_the_inputs() -> None:
    weights = initial.mlp(np.random.default_rng(0), (25, 400, 100, 3), ensemble=2)
    for layer, inputs in enumerate((25, 400, 100)):
        for kind in ("weight", "bias"):
            array = weights[f"{layer}.{kind}"]
            assert array.dtype == np.float32
            bound = 1.0 / np.sqrt(inputs)
            assert np.abs(array).max() <= bound * (1.0 + 1e-6)
            fitted = stats.kstest(array.ravel(), stats.uniform(-bound, 2.0 * bound).cdf)
            assert fitted.pvalue > 0.01, f"{layer}.{kind}"


def test_shapes_are_those_of_the_layers() -> None:
    weights = initial.mlp(np.random.default_rng(0), (5, 7, 7, 2))
    shapes = {name: array.shape for name, array in weights.items()}
    assert shapes == {
        "0.weight": (7, 5), "0.bias": (7,),
        "1.weight": (7, 7), "1.bias": (7,),
        "2.weight": (2, 7), "2.bias": (2,),
    }  # fmt: skip
    assert initial.shapes((5, 7, 7, 2)) == shapes
    stacked = initial.mlp(np.random.default_rng(0), (5, 7, 7, 1), ensemble=3)
    assert stacked["1.weight"].shape == (3, 7, 7)


def test_stacked_networks_are_independent() -> None:
    weights = initial.mlp(np.random.default_rng(0), (5, 7, 7, 1), ensemble=2)
    for array in weights.values():
        assert (array[0] != array[1]).all()


def test_a_seed_means_the_same_networks_in_every_backend(case: Case) -> None:
    config = case.config(hidden_dim=9)
    found = load_backend(case.backend).export(case.init(config, action_dim=3, seed=4))
    rng = np.random.default_rng(4)
    actor = initial.mlp(rng, (OBS, 9, 9, 3 * config.actor_outputs))
    critic = initial.mlp(rng, (OBS + 3, 9, 9, 1), ensemble=case.critics)
    expected = {f"actor.{name}": array for name, array in actor.items()}
    expected |= {f"critic.{name}": array for name, array in critic.items()}
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


def test_another_seed_means_other_networks(case: Case) -> None:
    one, two = (case.read(case.init(case.config(), seed=seed)) for seed in (1, 2))
    one.pop("log_alpha.", None)
    assert all((one[name] != two[name]).any() for name in one)


def test_targets_begin_as_copies_and_not_as_the_networks_themselves(case: Case) -> None:
    state = case.init(case.config())
    names = ["critic"] if case.algorithm == "sac" else ["critic", "actor"]
    for name in names:
        network = case.adapter.read(getattr(state, name))
        target = case.adapter.read(getattr(state, f"target_{name}"))
        for key, array in network.items():
            np.testing.assert_array_equal(target[key], array)
    for name in names:
        zeros = {k: 0.0 * v for k, v in case.adapter.read(getattr(state, name)).items()}
        state = case.adapter.write(state, name, zeros)
        target = case.adapter.read(getattr(state, f"target_{name}"))
        assert all(array.any() for array in target.values())


@pytest.mark.parametrize("hidden", [1, 8])
def test_networks_have_two_hidden_layers_of_the_given_width(case: Case, hidden: int) -> None:
    weights = case.read(case.init(case.config(hidden_dim=hidden), obs_dim=3, action_dim=2))
    outputs = 2 * case.config().actor_outputs
    assert [weights[f"actor.{i}.weight"].shape for i in range(3)] == [
        (hidden, 3), (hidden, hidden), (outputs, hidden)
    ]  # fmt: skip
    assert [weights[f"critic.{i}.weight"].shape for i in range(3)] == [
        (case.critics, hidden, 5), (case.critics, hidden, hidden), (case.critics, 1, hidden)
    ]  # fmt: skip
