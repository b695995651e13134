"""A campaign of few, short runs on text about two subjects, for tests that disturb its jobs."""

from __future__ import annotations

import random
from typing import Any

from soma.config.products import Products
from tests.project import Project

OPTIONAL = [name for name, field in Products.model_fields.items() if not field.is_required() and name != "rates"]
COMPARISON = dict.fromkeys(OPTIONAL) | {"rates": {}}
"""Products of a campaign that compares arms of equal size, and has nothing else."""
BUDGET = 6.0e9
"""Operations of an arm that is to have learnt something."""


def checkout(project: Project, name: str, compute: dict[str, Any], arms: dict[str, dict[str, Any]]) -> str:
    """Write the text and the overlay of a campaign that compares `soma-n2` with `spsa-n1-p8`; return the overlay."""
    draw = random.Random(0)
    for folder, documents in (("text", 400), ("elsewhere", 40)):
        (project.folder / folder).mkdir()
        for i in range(documents):
            words = draw.choices([f"{('sea', 'law')[i % 2]}{n}" for n in range(50)], k=60)
            (project.folder / f"{folder}/{i:03d}.txt").write_text(" ".join(words))
    return project.overlay(
        {
            "campaign": name,
            "compute": compute,
            "data": {
                "train": {"source": "text", "path": "text"},
                "external": {"source": {"source": "text", "path": "elsewhere"}, "windows": 8},
                "validation": {"windows": 8},
                "test": {"windows": 8},
                "expert_validation": 0.2,
            },
            "routing": {"features": 200, "svd": 8, "sample": 1000, "min_df": 1},
            "training": {"milestones": [1.0]},
            "seed_run": {"updates": 2},
            "arms": arms,
            "products": {
                "fixed_size": {"against": ["spsa-n1-p8"], "also": []},
                "inference": {"arms": ["soma-n2", "spsa-n1-p8"], "many": "soma-n2", "few": "soma-n2"},
            },
        }
    )
