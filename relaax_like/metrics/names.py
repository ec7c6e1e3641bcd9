"""Names of the curves that say how well a training goes."""

# Of these curves the first one that a run has shows how well it does. The parameter server records
# the mean over the newest episodes, some agents each episode.
MEAN_RETURN = "Train/Return"
EPISODE_LENGTH = "Train/Episode Length"
EPISODES = "Train/Episodes"
EPISODE_REWARD = "episode reward"
