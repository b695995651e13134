"""The path from raw text to training windows and evaluation sets: download, encode, screen, choose."""
