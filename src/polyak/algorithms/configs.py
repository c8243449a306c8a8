"""What can be set of each algorithm. Every default is that of the field; sources in `docs/`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

DDPG_PAPER = "Lillicrap et al. 2016"
TD3_PAPER = "Fujimoto et al. 2018"
TD3_CODE = "the TD3 authors' code"  # which left the paper's settings after publication
SAC_PAPER = "Haarnoja et al. 2018"


def setting(default: Any, text: str, *, source: str = "", aliases: tuple[str, ...] = ()) -> Any:
    """A dataclass field with its help text (unit included), its source and old spellings."""
    metadata = {"help": text, "source": source, "aliases": aliases}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Config:
    """What all three algorithms have."""

    actor_lr: float = setting(
        3e-4, "Adam step size of the actor", source=TD3_CODE, aliases=("--policy-lr",)
    )
    critic_lr: float = setting(
        3e-4, "Adam step size of the critic", source=TD3_CODE, aliases=("--q-lr",)
    )
    buffer_size: int = setting(1_000_000, "transitions kept for replay", source=DDPG_PAPER)
    batch_size: int = setting(256, "transitions per update", source=TD3_CODE)
    learning_starts: int = setting(
        25_000,
        "environment steps with uniform random actions before the first update",
        source=TD3_CODE,
        aliases=("--start-steps",),
    )
    gamma: float = setting(0.99, "discount per environment step", source=DDPG_PAPER)
    tau: float = setting(0.005, "share of the network in its target per update", source=TD3_PAPER)
    hidden_dim: int = setting(256, "units in each of the two hidden layers", source=TD3_CODE)
    policy_frequency: int = setting(
        2, "updates of the critic per update of the actor and the targets", source=TD3_PAPER
    )

    @property
    def actor_outputs(self) -> int:
        """Outputs of the actor's network per action dimension."""
        return 1

    @property
    def noises_per_update(self) -> int:
        """Standard normal draws (B, A) that one update needs."""
        return 0

    @property
    def delays(self) -> tuple[int, ...]:
        """After how many updates each delayed part of one is due."""
        return (self.policy_frequency,)


@dataclass(frozen=True, kw_only=True)
class DDPGConfig(Config):
    """Deep deterministic policy gradient, with TD3's network and step sizes."""

    exploration_noise: float = setting(
        0.1, "standard deviation of the action noise, of the half range", source=TD3_PAPER
    )


@dataclass(frozen=True, kw_only=True)
class TD3Config(DDPGConfig):
    """Twin delayed DDPG: DDPG's settings and the target policy's noise."""

    policy_noise: float = setting(
        0.2, "standard deviation of the target action's noise, of the half range", source=TD3_PAPER
    )
    noise_clip: float = setting(
        0.5, "bound of the target action's noise, of the half range", source=TD3_PAPER
    )

    @property
    def noises_per_update(self) -> int:
        """One for the target action."""
        return 1


@dataclass(frozen=True, kw_only=True)
class SACConfig(Config):
    """Soft actor-critic with a learned or fixed entropy coefficient."""

    critic_lr: float = setting(
        1e-3,
        "Adam step size of the critics and of the entropy coefficient",
        source="CleanRL",
        aliases=("--q-lr",),
    )
    learning_starts: int = setting(
        5_000,
        "environment steps with uniform random actions before the first update",
        source="CleanRL",
        aliases=("--start-steps",),
    )
    policy_frequency: int = setting(
        2, "updates of the critics between as many updates of the actor at once", source="CleanRL"
    )
    target_network_frequency: int = setting(
        1, "updates of the critics per update of the targets", source=SAC_PAPER
    )
    autotune: bool = setting(
        True, "learn the entropy coefficient (target entropy -dim A)", source=SAC_PAPER
    )
    alpha: float = setting(
        0.2, "entropy coefficient when it is fixed: --no-autotune", source="CleanRL"
    )

    @property
    def actor_outputs(self) -> int:
        """Mean and spread."""
        return 2

    @property
    def noises_per_update(self) -> int:
        """One for the next action, and one for each update of the actor that may follow."""
        return 1 + self.policy_frequency

    @property
    def delays(self) -> tuple[int, ...]:
        """Those of the actor and of the targets."""
        return (self.policy_frequency, self.target_network_frequency)


CONFIGS: dict[str, type[Config]] = {"ddpg": DDPGConfig, "td3": TD3Config, "sac": SACConfig}
