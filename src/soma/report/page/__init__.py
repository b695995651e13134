"""The page to read: one self-contained HTML file that tells what a campaign found, made from its finished products."""
