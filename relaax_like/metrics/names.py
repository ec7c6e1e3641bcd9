"""Names of the curves of a run's training episodes.

The performance of a run is `MEAN_RETURN` or, if it lacks that curve, `EPISODE_REWARD`.
"""

# Recorded by the parameter server: means over the newest episodes of each slot, the number of
# episodes in these means, and the number of all.
MEAN_RETURN = "Train/Return"
RETURN_EPISODES = "Train/Return Episodes"
EPISODE_LENGTH = "Train/Episode Length"
EPISODES = "Train/Episodes"
# Recorded by some agents: the return of each episode.
EPISODE_REWARD = "episode reward"
