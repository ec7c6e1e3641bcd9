"""Phase: which variable groups are updated together, and how often."""


class Phase:
    """One optimizer step of some variable groups within each update.

        phases = (Phase("critic"), Phase("actor", "temperature", every=2))

    Phases run in order. `learn` is called once per phase, with the values that the previous phases
    computed.

    Attributes:
      groups: variable groups that are updated; the positional arguments, at least one.
      every: n, 1 or more; the phase runs in every n-th update.

    Raises:
      ValueError: there is no group, a group is named twice, or `every` is below 1.
    """

    def __init__(self, *groups: str, every: int = 1):
        if not groups:
            raise ValueError("Phase: no variable group; name the groups that it updates")
        if len(set(groups)) < len(groups):
            twice = max(groups, key=groups.count)
            raise ValueError(f"Phase: variable group {twice!r} is named twice; name it once")
        if every < 1:
            raise ValueError(f"Phase {', '.join(groups)}: every is {every}, expected 1 or more")
        self.groups = groups
        self.every = every
