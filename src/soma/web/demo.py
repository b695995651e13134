"""A model in one HTML file: weights, router, the inference kernel and the page, without a request to anywhere.

The page's source are the modules beside this one. A page opened from disk can import no module, so they are written one
after another into one script, without their imports. What differs from page to page stands at the end of the file: a
file that was cut off still opens, and says so.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from huggingface_hub import ModelCard
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from numpy.typing import NDArray

from soma.errors import SomaError
from soma.files.atomic import write_bytes
from soma.inference import folder
from soma.inference.manifest import Manifest
from soma.models.experts import Experts
from soma.routing.router import Router
from soma.web.kernel import HERE, KERNEL

WORKER = ("kernel.mjs", "router.mjs", "model.mjs", "sampling.mjs", "worker.mjs")
"""Modules of the page's worker, each after those that it imports."""
MOST_MODELS = 2
MOST_BYTES = 256 << 20
"""Bytes of numbers in a page, at most: in base64, browsers take no text of twice that."""

_LINKS = re.compile(r"^import .*;\n|^export (?=class|function|const)", re.MULTILINE)


def demo(models: Sequence[str], output: Path) -> None:
    """Write the page of one or two models' folders.

    Raises:
        SomaError: if a folder cannot be read, or the numbers are too many for a page.
    """
    if len(models) > MOST_MODELS:
        raise SomaError(f"{len(models)} models are named; a page shows at most {MOST_MODELS}, side by side.")
    packed = [pack(Path(model)) for model in models]
    size = sum(len(numbers) for _, numbers in packed)
    if size > MOST_BYTES:
        raise SomaError(
            f"the models have {size:,} bytes of weights and router, and a page holds at most {MOST_BYTES:,}; "
            "use `soma sample` and `soma score` for them."
        )
    environment = Environment(loader=FileSystemLoader(HERE), undefined=StrictUndefined, autoescape=True)
    page = environment.get_template("page.html.jinja2").render(
        models=[(_json(about), base64.b64encode(numbers).decode()) for about, numbers in packed],
        names=[about["name"] for about, _ in packed],
        kernel=base64.b64encode(KERNEL.read_bytes()).decode(),
        worker=script(WORKER),
        page=script(("page.mjs",)),
        style=(HERE / "page.css").read_text(encoding="utf-8"),
    )
    write_bytes(output, page.encode())


def pack(path: Path) -> tuple[dict[str, Any], bytes]:
    """Return what a page needs to know of a model's folder, and its numbers, one float32 array after another.

    Features stay float32: half precision changes routes.
    """
    experts, router, about = folder.read(path)
    arrays = _arrays(experts, router)
    places, start = {}, 0
    for name, array in arrays.items():
        places[name] = (start, array.size)
        start += array.nbytes
    known: dict[str, Any] = {
        "name": path.resolve().name,
        "run": about.run,
        "update": about.update,
        **{key: getattr(about, key) for key in ("width", "depth", "embedding", "experts", "k", "prefix", "window")},
        "parameters": about.parameters,
        "loss": _loss(path, about),
        "routing": None,
        "arrays": places,
        "bytes": start,
    }
    if router is not None:
        known["routing"] = {
            "words": router.features.words,
            "dims": router.features.dims,
            "assignment": router.assignment,
            "arrays": [name for name in arrays if name not in ("bodies", "heads")],
        }
    return known, b"".join(array.tobytes() for array in arrays.values())


def _arrays(experts: Experts, router: Router | None) -> dict[str, NDArray[np.float32]]:
    """Return the arrays of a page, in the shapes that kernel.mjs and router.mjs read."""
    arrays: dict[str, NDArray[Any]] = {"bodies": experts.theta.numpy(), "heads": experts.distinct_heads.numpy()}
    if router is not None:
        features = router.features
        arrays |= {"idf": features.idf_V, "components": features.components_DV.T, "mean": features.mean_D}
        arrays |= {"centroids": router.centroids_KD, "prices": router.prices_K}
    return {name: np.ascontiguousarray(array, np.float32) for name, array in arrays.items()}


def _loss(path: Path, about: Manifest) -> dict[str, Any] | None:
    """Return the test loss that the folder's card gives for the experts averaged by default, None if it gives none."""
    file = path / "README.md"
    if not file.is_file():
        return None
    try:
        data: Any = ModelCard(file.read_text(encoding="utf-8")).data
        results = data.eval_results or ()
    except (ValueError, TypeError, KeyError, AttributeError):  # people may edit a card
        return None
    for result in results:
        if (result.dataset_type, result.dataset_args) == ("test", {"experts_averaged": about.k}):
            interval = (result.metric_args or {}).get("interval_95")
            return {"nats": float(result.metric_value), "interval": interval}
    return None


def script(names: Sequence[str]) -> str:
    """Return modules as one script."""
    return "\n".join(_LINKS.sub("", (HERE / name).read_text(encoding="utf-8")) for name in names)


def _json(value: Any) -> str:
    """Return JSON that can stand in a script element."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
