"""Features, clusters and the router."""

from __future__ import annotations

from typing import Literal

from soma.settings.base import Model, Positive


class Routing(Model):
    features: Positive = 50_000
    """Most frequent words kept by tf-idf."""
    min_df: Positive = 5
    """A word must occur in this many windows of the sample."""
    svd: Positive = 128
    """Dimensions kept by the truncated SVD."""
    sample: Positive = 400_000
    """Windows that the vectoriser, the SVD and the centroids are fitted on."""
    iterations: Positive = 30
    """Rounds of balanced k-means at most."""
    assignment: Literal["nearest", "priced"] = "nearest"
    """`nearest` centroid (the paper), or nearest after subtracting the balanced fit's price of each cluster."""
