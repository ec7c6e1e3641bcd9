"""Agents: an `Agent` answers one environment's three verbs, a `BatchAgent` acts for k slots."""

from relaax_like.agent.agent import Agent, State
from relaax_like.agent.batch_agent import BatchAgent, SimpleRLAgent

__all__ = [
    "Agent",
    "BatchAgent",
    "SimpleRLAgent",
    "State",
]
