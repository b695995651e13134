"""From training windows to features, clusters and the router."""
