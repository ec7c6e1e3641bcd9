"""Settings of sarsa."""

from typing import ClassVar

from relaax_like.config import LinearValuesConfig


class Config(LinearValuesConfig):
    """Settings of sarsa: the keys of the YAML's `algorithm` section."""

    needs_next_action: ClassVar[bool] = True
    alternative: ClassVar[str] = "dqn"
