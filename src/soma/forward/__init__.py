"""Losses of many perturbed copies of a model: the directions, the engines that compute them, and their workers."""
