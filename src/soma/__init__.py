"""SOMA-repro: zeroth-order pretraining through model sharding, from raw text to every table and figure."""
