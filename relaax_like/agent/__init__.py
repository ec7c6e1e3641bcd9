"""Agents: they answer an environment's three verbs."""

from relaax_like.agent.agent import Agent, State
from relaax_like.agent.batch_agent import BatchAgent, SimpleRLAgent

__all__ = [
    "Agent",
    "BatchAgent",
    "SimpleRLAgent",
    "State",
]
