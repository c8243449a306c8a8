"""What can be set of each algorithm. Every default is that of the field; sources in `docs/`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

DDPG_PAPER = "Lillicrap et al. 2016"
TD3_PAPER = "Fujimoto et al. 2018"
SAC_PAPER = "Haarnoja et al. 2018"


def setting(default: Any, text: str, *, source: str = "", aliases: tuple[str, ...] = ()) -> Any:
    """A dataclass field that carries its help text (unit included), its source and old spellings."""
    metadata = {"help": text, "source": source, "aliases": aliases}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class DDPGConfig:
    """Deep deterministic policy gradient (Lillicrap et al. 2016), with TD3's network and step sizes."""

    actor_lr: float = setting(
        3e-4, "Adam step size of the actor", source=TD3_PAPER, aliases=("--policy-lr",)
    )
    critic_lr: float = setting(
        3e-4, "Adam step size of the critic", source=TD3_PAPER, aliases=("--q-lr",)
    )
    buffer_size: int = setting(1_000_000, "transitions kept for replay", source=DDPG_PAPER)
    batch_size: int = setting(256, "transitions per update", source=TD3_PAPER)
    learning_starts: int = setting(
        25_000,
        "environment steps with uniform random actions before the first update",
        source="Fujimoto's TD3 code",
        aliases=("--start-steps",),
    )
    gamma: float = setting(0.99, "discount per environment step", source=DDPG_PAPER)
    tau: float = setting(0.005, "share of the network in its target per update", source=TD3_PAPER)
    hidden_dim: int = setting(256, "units in each of the two hidden layers", source=TD3_PAPER)
    policy_frequency: int = setting(
        2, "updates of the critic per update of the actor and the targets", source="CleanRL"
    )
    exploration_noise: float = setting(
        0.1, "standard deviation of the action noise, of the half range", source=TD3_PAPER
    )

    @property
    def actor_outputs(self) -> int:
        """Outputs of the actor's network per action dimension."""
        return 1

    @property
    def noises_per_update(self) -> int:
        """Standard normal draws (B, A) that one update needs."""
        return 0


CONFIGS: dict[str, type[DDPGConfig]] = {"ddpg": DDPGConfig}
