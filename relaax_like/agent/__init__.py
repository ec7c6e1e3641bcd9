"""Agents: what answers an environment's three verbs."""

from relaax_like.agent.agent import Agent

__all__ = ["Agent"]
