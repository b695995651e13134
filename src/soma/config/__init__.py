"""The configuration of a campaign: typed, checked before anything runs, and documented."""
