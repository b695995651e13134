"""The page in Chromium: the command line's numbers, keyboard, width, no request, and one sentence for what is wrong."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.inference.tiny_model import SPEC, Tiny, make_experts, write

from soma.errors import SomaError
from soma.inference import Ensemble
from soma.inference.card import Card, Loss
from soma.web import demo
from soma.web.kernel import KERNEL

PROMPTS = (b"... 1 2 !?", b"\xff\xfe not \xc3 UTF-8 \xe2\x82", b"x", b"", b"The river and its cities. " * 400)

WORK = """async ([wasm, about, numbers, requests]) => {
  const source = document.querySelector("#worker").textContent;
  const worker = new Worker(URL.createObjectURL(new Blob([source])));
  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const drawn = [];
  const ask = (act, rest) => new Promise((resolve) => {
    worker.onmessage = ({ data }) => data.part ? drawn.push(...data.part) : resolve(data.result ?? data.error);
    worker.postMessage({ id: 1, act, ...rest });
  });
  await ask("start", { wasm: bytes(wasm) });
  await ask("open", { about, numbers: bytes(numbers).buffer });
  const answers = [];
  for (const { text, k, settings } of requests) {
    drawn.length = 0;
    await ask("write", { model: 0, prompt: bytes(text), k, settings, length: 50 });
    const sample = drawn.map(({ byte }) => byte);
    const { experts } = await ask("route", { model: 0, text: bytes(text), k });
    const score = await ask("score", { model: 0, text: bytes(text), k });
    const nats = score.windows ? score.windows.flatMap((window) => Array.from(window.nats)) : score;
    answers.push({ sample, experts, nats });
  }
  return answers;
}"""


LISTEN = """() => {
  window.heard = [];
  for (const live of document.querySelectorAll("[role=status], [aria-live]"))
    new MutationObserver(() => window.heard.push(live.textContent)).observe(live, { childList: true });
}"""


@pytest.fixture(scope="module")
def page_file(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    experts = make_experts(SPEC, 1, shared=False)
    write(folder / "plain </script>", experts, tiny.features.parent, k=1, features=None, router=None)
    demo.demo([str(tiny.folder), str(folder / "plain </script>")], folder / "demo.html")
    return folder / "demo.html"


@pytest.fixture
def opened(browser: Any, page_file: Path) -> Iterator[Any]:
    page = browser.new_page(viewport={"width": 390, "height": 800})
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("request", lambda request: faults.append(request.url) if request.url[:5] not in ("file:", "blob:") else 0)
    page.goto(page_file.as_uri())
    page.wait_for_selector("body[data-ready]")
    yield page
    page.close()
    assert faults == []


def test_losses_routes_and_samples_are_the_command_line_s(opened: Any, tiny: Tiny) -> None:
    about, numbers = demo.pack(tiny.folder)
    settings = {"temperature": 0.8, "topK": 50, "topP": 0.95, "repetition": 1, "seed": 5}
    requests = [{"text": base64.b64encode(text).decode(), "k": 3, "settings": settings} for text in PROMPTS]
    files = [base64.b64encode(data).decode() for data in (KERNEL.read_bytes(), numbers)]
    answers = opened.evaluate(WORK, [files[0], about, files[1], requests])
    model = Ensemble.load(tiny.folder)
    for text, given in zip(PROMPTS, answers, strict=True):
        drawn = model.sample(text, 50, temperature=0.8, top_k=50, top_p=0.95, seed=5)
        assert bytes(given["sample"]) == b"".join(drawn)
        assert tuple(given["experts"]) == model.route(text).experts
        try:
            score = model.score(text)
        except SomaError as error:
            assert given["nats"] == str(error)  # noqa: PT017 (the other texts have a score)
        else:
            assert len(given["nats"]) == score.bytes
            assert np.mean(given["nats"]) == pytest.approx(score.nats, abs=1e-5)


def test_a_person_writes_measures_and_walks_through_a_text(opened: Any, tiny: Tiny) -> None:
    model, prompt = Ensemble.load(tiny.folder), "The river"
    opened.fill("#prompt", prompt)
    opened.click(".settings summary")
    opened.fill("#length", "30")
    opened.fill("#seed", "4")
    opened.evaluate(LISTEN)
    opened.press("#seed", "Enter")
    opened.wait_for_selector("#written[aria-busy=false]")
    pane = opened.locator("#written .pane").first
    drawn = b"".join(model.sample(prompt, 60, temperature=0.7, seed=4))
    expected = (prompt.encode() + drawn[:30]).decode(errors="replace")
    assert shown(pane) == plain(expected)
    heard = opened.evaluate("window.heard")
    assert [said.split(" ")[0] for said in heard] == ["model:", "script>:"]  # once for each model, not while it writes
    assert "30 bytes written" in heard[0]
    opened.click("#continue")
    opened.wait_for_selector("#written[aria-busy=false]")
    assert shown(pane) == plain((prompt.encode() + drawn).decode(errors="replace"))

    text = " ".join(["The king of the country and his army."] * 6)
    opened.fill("#text", text)
    opened.click("#read .main")
    opened.wait_for_selector("#measured[aria-busy=false]")
    pane = opened.locator("#measured .pane").first
    assert pane.locator(".status").inner_text().startswith(f"{model.score(text).bits:.4f} bits per byte over ")
    pane.locator(".output").focus()
    at = int(pane.locator("input").input_value())
    opened.keyboard.press("ArrowRight")
    spoken = pane.locator("input").get_attribute("aria-valuetext")
    assert spoken.startswith(f"Byte {at + 2} of {len(text)}, {text[at + 1].replace(' ', 'space')}, ")
    heads = pane.locator(".chances thead th").all_inner_texts()
    chosen = model.route(text).experts
    assert heads == ["next byte", "mixture", *(f"expert {e}" for e in chosen)]
    pane.locator(".worst summary").click()
    assert pane.locator(".worst li").count() == 8
    assert opened.locator("#measured .pane").count() == 2
    assert opened.evaluate("document.documentElement.scrollWidth") == 390


def shown(pane: Any) -> str:
    return plain(pane.locator(".output").text_content())


def plain(text: str) -> str:
    """Return text without the signs for control characters and invalid bytes, of which the page shows each."""
    return "".join(c for c in text if c.isprintable() and c not in "↵·\ufffd")


def test_a_text_too_short_to_score_gets_the_command_line_s_sentence(opened: Any, tiny: Tiny) -> None:
    opened.fill("#text", "short")
    opened.click("#read .main")
    opened.wait_for_selector("#measured[aria-busy=false]")
    with pytest.raises(SomaError) as refused:
        Ensemble.load(tiny.folder).score("short")
    assert opened.locator("#measured .status").first.inner_text().lower() == str(refused.value).lower()


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_a_file_that_was_cut_off_says_so(browser: Any, page_file: Path, tmp_path: Path, share: float) -> None:
    whole = page_file.read_bytes()
    numbers = whole.index(b'class="numbers">')
    (tmp_path / "cut.html").write_bytes(whole[: numbers + int(share * (len(whole) - numbers))])
    page = browser.new_page()
    page.goto((tmp_path / "cut.html").as_uri())
    page.wait_for_selector("#fault:not([hidden])")
    assert "it was cut off on its way, so copy it again" in page.inner_text("#fault")
    page.close()


def test_a_browser_without_webassembly_says_so(browser: Any, page_file: Path) -> None:
    page = browser.new_page()
    page.add_init_script("delete window.WebAssembly")
    page.goto(page_file.as_uri())
    page.wait_for_selector("#fault:not([hidden])")
    assert page.inner_text("#fault").startswith("This browser has no WebAssembly")
    page.close()


def test_what_does_not_fit_in_a_page_is_refused(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SomaError, match="3 models are named; a page shows at most 2"):
        demo.demo([str(tiny.folder)] * 3, tmp_path / "demo.html")
    monkeypatch.setattr(demo, "MOST_BYTES", 1000)
    with pytest.raises(SomaError, match=r"[\d,]+ bytes of weights and router, and a page holds at most 1,000"):
        demo.demo([str(tiny.folder)], tmp_path / "demo.html")
    assert not (tmp_path / "demo.html").exists()


def test_the_card_s_loss_is_told(tiny: Tiny, tmp_path: Path) -> None:
    facts = Card(losses=tuple(Loss(set="test", k=k, nats=3 - k / 10, low=2.5, high=2.9) for k in (1, 3)))
    write(tmp_path / "model", make_experts(SPEC, 5, shared=False), tiny.features.parent, facts=facts)
    assert demo.pack(tmp_path / "model")[0]["loss"] == {"nats": 2.7, "interval": [2.5, 2.9]}
    (tmp_path / "model" / "README.md").write_text("---\nmodel-index: nothing\n---\n")
    assert demo.pack(tmp_path / "model")[0]["loss"] is None
