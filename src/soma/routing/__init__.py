"""From training windows to features, clusters, the router, and the shard of every expert."""
