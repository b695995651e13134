"""Settings of features, clusters and the router."""

from __future__ import annotations

from typing import Literal

from soma.config.base import Model, Positive


class Routing(Model):
    features: Positive = 50_000
    """Number of most frequent words that tf-idf keeps."""
    min_df: Positive = 5
    """Number of sampled windows in which a word must occur."""
    svd: Positive = 128
    """Dimensions that the truncated SVD keeps."""
    sample: Positive = 400_000
    """Number of windows to fit the vectoriser, the SVD and the centroids on."""
    iterations: Positive = 30
    """Maximum rounds of balanced k-means."""
    assignment: Literal["nearest", "priced"] = "nearest"
    """`nearest` centroid (the paper), or nearest after subtracting each cluster's price from the balanced fit
    (`priced`)."""
