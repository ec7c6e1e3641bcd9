"""Settings of q_learning."""

from typing import ClassVar

from relaax_like.config import LinearValuesConfig


class Config(LinearValuesConfig):
    """Settings of q_learning: the keys of the YAML's `algorithm` section."""

    alternative: ClassVar[str] = "dqn"
