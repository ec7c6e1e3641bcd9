"""Settings that all algorithms with a replay table share."""

import dataclasses
from typing import Self

from pydantic import Field, model_validator

from relaax_like.config import hyper
from relaax_like.config.encoder import EncoderConfig
from relaax_like.config.hindsight import HindsightConfig
from relaax_like.config.plan import Overload, Replay
from relaax_like.config.sources import Sources


class ReplayConfig(EncoderConfig):
    """Base of the `Config` of replay algorithms: keys of the YAML's `algorithm` section."""

    capacity: int = Field(default=1_000_000, ge=2)
    """Number of steps that the replay table holds, the last observation of an episode counting as
    one more; the oldest ones make room for new ones."""
    batch_size: int = Field(default=64, ge=1)
    """Steps of one update."""
    updates_per_step: float = Field(default=1.0, gt=0)
    """Updates per environment step of all slots together."""
    warm_up_steps: int = Field(default=1_000, ge=0)
    """Number of steps in the replay table before the first update."""
    updates_at_once: int = Field(default=1, ge=1)
    """Number of updates that are made together, in one call, once that many are due; agents get the
    new values after it. More is faster."""
    rollout_steps: int = Field(default=1, ge=1)
    """Steps of every slot that an agent sends at once; more are faster over the network."""
    gamma: hyper.Gamma = 0.99
    """Discount factor per step."""
    n_step: int = Field(default=1, ge=1)
    """Number of rewards that are summed; the value of the observation after them estimates the
    rest."""
    sequence_steps: int | None = Field(default=None, ge=1)
    """Learn from sequences of this many consecutive steps, which networks with a memory need (lstm,
    gru); batch_size is then a number of sequences. null: from single steps."""
    burn_in_steps: int = Field(default=0, ge=0)
    """With sequence_steps: number of first steps of each sequence that only fill the memory, which
    is empty before them."""
    priority_exponent: float | None = Field(default=None, ge=0, le=1)
    """Prefer steps with large errors, in proportion to the error to this power; null: all steps are
    equally likely."""
    weight_exponent: float = Field(default=0.4, ge=0, le=1)
    """With priority_exponent: how far weights correct that preference at the start; it rises to 1
    by 0.001 per update."""
    on_overload: Overload = "slip"
    """What happens to steps of clients with max_wait_ms while the learner is behind, and other
    clients wait. slip: they are learned from, and updates_per_step is kept only as far as the
    learner catches up; drop: they are counted, and not learned from."""
    hindsight: HindsightConfig | None = None
    """Learn from goals that were achieved by chance, where a goal is a part of the observation: see
    config/hindsight.py; null: only from the goals that were desired."""
    prior: Sources | None = None
    """Recordings from which a part of each minibatch is drawn, from the first update on: a folder
    of trajectory files, as `relaax record` writes them, relative to the working directory;
    `minari:ID` or `minari:FOLDER`, a local Minari data set; or a list of several. null: minibatches
    have only steps of the run."""
    prior_fraction: float = Field(default=0.5, gt=0, lt=1)
    """With prior: the part of each minibatch that is recorded, to the nearest whole step."""
    prior_overridden: bool = False
    """Draw that part also from the run's own steps that a human or a controller has decided
    (`overridden` of the protocol)."""
    adam_epsilon: float = Field(default=1e-8, gt=0)
    """Epsilon of Adam."""

    @model_validator(mode="after")
    def _validate_sizes(self) -> Self:
        if self.network.is_recurrent and self.sequence_steps is None:
            raise ValueError(
                "network: recurrent layers learn from sequences; remove lstm and gru, or, if the "
                "algorithm learns from sequences, set sequence_steps, such as 20 (and "
                "burn_in_steps)"
            )
        if self.batch_size > self.capacity:
            raise ValueError(
                f"batch_size: {self.batch_size} is larger than capacity ({self.capacity}); lower "
                "batch_size, or raise capacity"
            )
        if self.warm_up_steps > self.capacity:
            raise ValueError(
                f"warm_up_steps: {self.warm_up_steps} is larger than capacity ({self.capacity}); "
                "lower warm_up_steps, or raise capacity"
            )
        if self.hindsight is not None and (self.n_step > 1 or self.observation_history > 1):
            raise ValueError(
                f"hindsight: works with n_step: 1 and observation_history: 1, got {self.n_step} "
                f"and {self.observation_history}, because the rewards of other steps and earlier "
                "observations have the old goal; set both to 1, or remove hindsight"
            )
        try:
            self._make_plan()
        except ValueError as error:
            raise ValueError(str(error).removeprefix("Replay: ")) from None
        return self

    @property
    def plan(self) -> Replay:
        """Minibatches from a table of past steps."""
        return self._make_plan()

    def _make_plan(self) -> Replay:
        names = {field.name for field in dataclasses.fields(Replay)}
        keys = names - {"discount", "balance_rewards", "reward_discount"}
        return Replay(discount=self.gamma, **{key: getattr(self, key) for key in keys})
