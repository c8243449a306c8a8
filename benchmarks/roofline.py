"""The limit that matrix products set to updates: how many there are, and how fast this machine is.

    python benchmarks/roofline.py {ddpg,td3,sac} --obs O --act A --threads N

Counted is the least that an update needs: no gradient by inputs that nobody uses, none by the
weights of a critic through which only the actor is trained, one evaluation of what two losses
share. Activations, Adam, moving averages, sampling, metrics and acting are not counted, though
every implementation has to do them.

Two limits follow. All products at the best rate that any of them reaches is what a perfect program
could come near, and what is called the roofline. Each product at the rate that it reaches alone is
what a program gets that calls a library of products for each layer: thin ones (observations,
actions, single values) are slow.

As a program it takes turns with others (`pacing.py`) and measures the products with PyTorch.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pacing
import targets

BATCH, HIDDEN = 256, 256
SECONDS = 0.01
"""How long one product is repeated in a block, about."""


class Product(NamedTuple):
    """(M, K) times (K, N). `form` says how each factor lies in memory: N as written, or T."""

    form: str
    m: int
    k: int
    n: int

    @property
    def flop(self) -> int:
        """Multiplications and additions."""
        return 2 * self.m * self.k * self.n


SQUARES = [Product(form, BATCH, HIDDEN, HIDDEN) for form in ("NN", "NT", "TN")]
"""The largest of each kind: forward, gradient by the input, gradient by the weights."""


class Sizes(NamedTuple):
    """Lengths of observation and action."""

    obs: int
    act: int


def forward(inputs: int, outputs: int) -> list[Product]:
    """Products of a network with two hidden layers."""
    return [
        Product("NN", BATCH, inputs, HIDDEN),
        Product("NN", BATCH, HIDDEN, HIDDEN),
        Product("NN", BATCH, HIDDEN, outputs),
    ]


def backward(inputs: int, outputs: int, *, weights: bool = True, by: int = 0) -> list[Product]:
    """Products of its gradient: by its weights, and by `by` of its inputs."""
    products = [Product("NT", BATCH, outputs, HIDDEN), Product("NT", BATCH, HIDDEN, HIDDEN)]
    if weights:
        products += [
            Product("TN", HIDDEN, BATCH, outputs),
            Product("TN", HIDDEN, BATCH, HIDDEN),
            Product("TN", inputs, BATCH, HIDDEN),
        ]
    if by:
        products.append(Product("NT", BATCH, HIDDEN, by))
    return products


def critic_step(sizes: Sizes, critics: int, outputs: int) -> list[Product]:
    """Next action, its values, values, and the gradient of the critics."""
    inputs = sizes.obs + sizes.act
    values = forward(inputs, 1) * critics
    return forward(sizes.obs, outputs) + values + values + backward(inputs, 1) * critics


def actor_step(sizes: Sizes, critics: int, outputs: int) -> list[Product]:
    """Action, its values, and the gradient of the actor through them."""
    inputs = sizes.obs + sizes.act
    through = backward(inputs, 1, weights=False, by=sizes.act)
    there = forward(sizes.obs, outputs) + forward(inputs, 1) * critics
    return there + through * critics + backward(sizes.obs, outputs)


def update(algorithm: str, sizes: Sizes) -> list[tuple[float, Product]]:
    """Products of an update, each with how often it occurs, on average over updates.

    With the default settings: DDPG and TD3 update the actor every second time and TD3's actor sees
    one critic; SAC updates it twice every second time, and has means and deviations of actions.
    """
    if algorithm == "sac":
        outputs = 2 * sizes.act
        critic, actor, often = critic_step(sizes, 2, outputs), actor_step(sizes, 2, outputs), 1.0
    else:
        critics = 2 if algorithm == "td3" else 1
        critic, often = critic_step(sizes, critics, sizes.act), 0.5
        actor = actor_step(sizes, 1, sizes.act)
    return [(1.0, product) for product in critic] + [(often, product) for product in actor]


def flop(algorithm: str, sizes: Sizes) -> float:
    """Floating-point operations of the products of an update."""
    return sum(often * product.flop for often, product in update(algorithm, sizes))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("algorithm", choices=targets.ALGORITHMS)
    parser.add_argument("--obs", type=int, required=True, help="length of an observation")
    parser.add_argument("--act", type=int, required=True, help="length of an action")
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    import torch

    torch.set_num_threads(options.threads)

    def prepared(product: Product) -> Callable[[], Any]:
        shapes = ((product.m, product.k), (product.k, product.n))
        left, right = (
            torch.randn(shape[::-1]).t() if form == "T" else torch.randn(shape)
            for form, shape in zip(product.form, shapes, strict=True)
        )
        out = torch.empty(product.m, product.n)
        return lambda: torch.mm(left, right, out=out)

    def seconds(work: Callable[[], Any], operations: int) -> float:
        repeat = max(3, int(SECONDS * 1e11 / operations))
        repeat = min(repeat, 400)  # of thin products, whose rate is far from 1e11
        work()
        began = time.perf_counter()
        for _ in range(repeat):
            work()
        return (time.perf_counter() - began) / repeat

    needed = update(options.algorithm, Sizes(options.obs, options.act))
    programs = {product: prepared(product) for product in [*SQUARES, *(p for _, p in needed)]}
    pair = torch.randn(2, BATCH, HIDDEN), torch.randn(2, HIDDEN, HIDDEN)  # two critics at once
    out = torch.empty(2, BATCH, HIDDEN)
    pacing.report(0.0)
    while pacing.asked() is not None:
        began = time.perf_counter()
        times = {product: seconds(work, product.flop) for product, work in programs.items()}
        stacked = 2 * SQUARES[0].flop
        rates = [product.flop / times[product] for product in times]
        rates.append(stacked / seconds(lambda: torch.bmm(*pair, out=out), stacked))
        pacing.report(
            time.perf_counter() - began,
            best_rate=max(rates),
            own_seconds=sum(often * times[product] for often, product in needed),
        )


if __name__ == "__main__":
    main()
