"""Serves a predictor of images over HTTP: the body of a request is an image file, the answer its likeliest classes.

    pip install 'netbuilder-nn[data,serve]'
    netbuilder-train --demo                      # writes the predictor out/digits
    python examples/serve.py out/digits --port 8000
    curl --data-binary @photo.png 'http://127.0.0.1:8000/classify?top=3'

Requests run at the same time: a predictor serves threads, each with activations of its own over shared weights.
http://127.0.0.1:8000/docs describes the requests.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Annotated

from netbuilder import Predictor
from netbuilder.proto import NetError, ParseError
from netbuilder.proto.extras import how_to_install
from netbuilder.tools.predict import load
from netbuilder.tools.reporting import EXPECTED, text_of

try:
    import uvicorn
    from fastapi import FastAPI, HTTPException, Query, Request
    from fastapi.concurrency import run_in_threadpool
    from pydantic import BaseModel
except ImportError as error:
    raise SystemExit(f"serve.py: {error}; {how_to_install('data', 'serve')}") from None

LARGEST = 20 << 20  # bytes of a request


class Class(BaseModel):
    """A class of an image."""

    number: int
    name: str
    score: float


def app_of(predictor: Predictor) -> FastAPI:
    """Return an application: /classify takes an image, /health says that the predictor works, / lists the paths."""
    app = FastAPI(title="netbuilder", description=repr(predictor))

    @app.get("/")
    def paths() -> dict[str, str]:
        return {
            "POST /classify": "an image file as the body; the answer is its likeliest classes",
            "GET /health": "the predictor",
            "GET /docs": "the description of the requests",
        }

    @app.get("/health")
    def health() -> dict[str, str]:
        return {"predictor": repr(predictor)}

    @app.post("/classify")
    async def classify(request: Request, top: Annotated[int, Query(ge=1, le=1000)] = 5) -> list[Class]:
        """Return the likeliest classes of the image file in the body."""
        if request.headers.get("content-type", "").startswith("multipart/"):
            raise HTTPException(415, "the body must be the bare image file: curl --data-binary @photo.png, not -F")
        data = await _body(request)
        try:
            (found,) = await run_in_threadpool(predictor.classify, data, top)
        except ParseError as error:
            raise HTTPException(422, f"the body is no image: {error}") from None
        except NetError as error:
            raise HTTPException(400, str(error)) from None
        return [Class(number=each.number, name=each.name, score=each.score) for each in found]

    return app


async def _body(request: Request) -> bytes:
    """Return the body of a request, of which no more than ``LARGEST`` bytes are read."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > LARGEST:
            raise HTTPException(413, f"the body is larger than {LARGEST} bytes")
        parts.append(part)
    return b"".join(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until Ctrl-C or SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("predictor", help="a folder with init_net.pb and predict_net.pb, or an .onnx file")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 accepts other machines' requests"
    )
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--threads", type=int, help="requests that compute at the same time (default: one per core)")
    options = parser.parse_args(arguments)
    try:
        predictor = load(options.predictor, threads=options.threads)
    except EXPECTED as error:
        raise SystemExit(f"serve.py: {text_of(error)}") from None
    address = f"http://{options.host}:{options.port}"
    print(f"{predictor!r} at {address}; {address}/docs describes the requests; Ctrl-C ends it", flush=True)
    uvicorn.run(app_of(predictor), host=options.host, port=options.port, log_level="warning")
    return 0


if __name__ == "__main__":
    sys.exit(main())
