"""Combining: each gradient is applied, compensated, held back for others, or dropped."""

from relaax_like.parameter_server.combining.combiner import Combiner
from relaax_like.parameter_server.combining.strategy import CombiningStrategy, PushPlan

__all__ = ["Combiner", "CombiningStrategy", "PushPlan"]
