"""REINFORCE on a linear policy for CartPole, in NumPy alone: a user's own algorithm folder."""
