"""Checks before a campaign is started: of a cluster or of this machine, against what the jobs of the plan ask for."""
