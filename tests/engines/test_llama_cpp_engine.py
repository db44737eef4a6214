"""The adapter of llama.cpp's server, before a scripted one that speaks as that does.

What the server itself is convicted of, where there is one, is in `test_whole_engines`.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvassay.harness.contract import GenerationRequest, TokenEvent
from kvassay.harness.engines.random_llama import Sizes, write_model
from kvassay.impls.engines.llama_cpp_engine import PROGRAM, LlamaCppEngine

SCRIPT = """#!{python}
import json, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
port = int(sys.argv[sys.argv.index("--port") + 1])
if "--refuse" in sys.argv: sys.exit("there is no such model")
class Server(BaseHTTPRequestHandler):
    def log_message(self, *_): pass
    def answer(self, status, told):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(told)
    def do_GET(self): self.answer(200, b"")
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not asked["prompt"]:
            return self.answer(400, json.dumps({{"error": {{"message": "no prompt"}}}}).encode())
        self.answer(200, b"")
        for token in asked["prompt"][: asked["n_predict"]]:
            time.sleep(0.01)
            if token == 9:
                return self.tell({{"error": {{"message": "too long"}}}})
            if token == 8:
                return
            self.tell({{"tokens": [token], "stop": False,
                       "completion_probabilities": [{{"logprob": -token}}]}})
        self.tell({{"tokens": [], "stop": True, "stop_type": "limit", "timings": {{"cache_n": 2}}}})
    def tell(self, told):
        try: self.wfile.write(b"data: " + json.dumps(told).encode() + b"\\n\\n")
        except OSError:
            open({log!r}, "a").write("left ")
            raise
ThreadingHTTPServer(("127.0.0.1", port), Server).serve_forever()
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("gguf")
    return write_model(tmp_path_factory.mktemp("model"), Sizes(vocab_size=300, hidden_size=64))


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the scripted server, which is now the program, leaves behind."""
    log, script = tmp_path / "log", tmp_path / "server"
    script.write_text(SCRIPT.format(python=sys.executable, log=str(log)), encoding="utf-8")
    script.chmod(0o755)
    monkeypatch.setenv(PROGRAM.variable, str(script))
    return log


@pytest.fixture
def engine(model: Path, log: Path) -> Iterator[LlamaCppEngine]:
    engine = LlamaCppEngine(model=model)
    yield engine
    engine.close()


def ask(engine: LlamaCppEngine, prompt: list[int], leave: int | None = None) -> list[TokenEvent]:
    async def reading() -> list[TokenEvent]:
        events, stream = [], engine.stream(GenerationRequest("a", prompt, len(prompt)))
        async for event in stream:
            events.append(event)
            if len(events) == leave:
                await stream.aclose()  # type: ignore[attr-defined]
        return events

    return asyncio.run(reading())


def test_tells_every_token_and_what_it_knows_of_it(engine: LlamaCppEngine) -> None:
    *told, last = ask(engine, [3, 4])
    assert [(event.tokens, event.logprobs) for event in told] == [((3,), (-3,)), ((4,), (-4,))]
    assert (last.tokens, last.finish_reason, last.cached_tokens) == ((), "length", 2)


def test_what_is_refused_is_no_failure(engine: LlamaCppEngine) -> None:
    with pytest.raises(ValueError, match="400: no prompt"):
        ask(engine, [])
    with pytest.raises(RuntimeError, match="too long"):
        ask(engine, [1, 9])
    with pytest.raises(RuntimeError, match="before the answer's end"):
        ask(engine, [1, 8])
    assert len(ask(engine, [1])) == 2


def test_who_leaves_tells_the_server(engine: LlamaCppEngine, log: Path) -> None:
    assert len(ask(engine, [1] * 200, leave=2)) == 2
    deadline = time.monotonic() + 10
    while not log.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert log.read_text() == "left "


def test_the_server_ends_with_the_adapter(engine: LlamaCppEngine) -> None:
    engine.close()
    with pytest.raises(OSError, match="refused"):
        ask(engine, [1])


@pytest.mark.usefixtures("log")
def test_one_that_does_not_start_says_why(model: Path) -> None:
    with pytest.raises(RuntimeError, match="no such model"):
        LlamaCppEngine(model=model, arguments=["--refuse"])
