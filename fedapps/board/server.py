"""The HTTP server of the board: one page, its state as server-sent events, and the reports of the runs. Read-only."""

from __future__ import annotations

import json
import secrets
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedapps.base.report.sections import render

from .status import Board

#: Seconds between two looks at the folder. A look at large files takes longer, and then the pause is longer, too.
_PAUSE = 1.0
#: Seconds between two looks at whether the server ends.
_STEP = 0.25
_SHARE_OF_TIME = 0.1
_COOKIE = "fedapps-board"
TEMPLATES = Path(__file__).with_name("templates")
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
# A report has scripts and styles of its own. In a sandbox they cannot reach the board.
_REPORT_POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
)


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine reach a server at this address or name."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def serve(folder: Path, host: str, port: int) -> None:
    """Serve the board of a folder until the process is interrupted, and print its address.

    Parameters
    ----------
    folder : Path
        Contains run folders.
    host : str
        Address to listen on. If other machines reach it, the printed address contains a new token, without which the
        board answers nothing.
    port : int
        The port; 0 chooses a free one.

    Raises
    ------
    ValueError
        The folder does not exist, or the address cannot be used.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder; give the folder that contains the run folders (output-dir)")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise ValueError(
            f"--host {host} --port {port}: {error}; choose another one, or --port 0 for one that is free"
        ) from error
    token = "" if is_loopback(host) else secrets.token_urlsafe(24)
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{listener.getsockname()[1]}/{'?token=' + token if token else ''}"
    print(f"board of {folder}: {address}\nstop it with Ctrl-C", flush=True)
    with listener:
        app = board_app(folder, token, stopping=lambda: server.should_exit)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        with suppress(KeyboardInterrupt):  # uvicorn raises it again after it has ended
            server.run([listener])


def board_app(folder: Path, token: str = "", stopping: Callable[[], bool] = lambda: False) -> Starlette:
    """The ASGI app of the board.

    Parameters
    ----------
    folder : Path
        Contains run folders.
    token : str
        If not empty, a browser must first open ``/?token=TOKEN``, which leaves a cookie. If empty, requests that name
        another host than the loopback are refused: a page of the internet could otherwise read the board by a name
        that it lets point to this machine.
    stopping : callable
        Whether the server wants to end; streams of events then end, too.
    """
    board = Board(folder)

    async def events(request: Request) -> Response:
        return StreamingResponse(_changes(board, request, stopping), media_type="text/event-stream")

    async def report(request: Request) -> Response:
        path = await anyio.to_thread.run_sync(board.report, request.path_params["run"])
        if path is None:
            return PlainTextResponse("There is no such report.", 404)
        return FileResponse(path, media_type="text/html", headers={"Content-Security-Policy": _REPORT_POLICY})

    def text(template: str, kind: str) -> Callable[[Request], Awaitable[Response]]:
        content = render(TEMPLATES, template)

        async def answer(request: Request) -> Response:
            return Response(content, media_type=kind)

        return answer

    return Starlette(
        routes=[
            Route("/", text("board.html.md", "text/html")),
            Route("/board.js", text("board.js.md", "text/javascript")),
            Route("/board.css", text("board.css.md", "text/css")),
            Route("/events", events),
            Route("/reports/{run:path}", report),
        ],
        middleware=[Middleware(_Guard, token=token)],
    )


async def _changes(board: Board, request: Request, stopping: Callable[[], bool]) -> AsyncIterator[str]:
    """An event with the state of all runs, now and after every change; comments in between show who has left."""
    before, wait = dict[str, object](), 0.0
    while not stopping() and not await request.is_disconnected():
        if wait <= 0:
            begun, now = time.monotonic(), before
            with suppress(OSError):  # a run folder that was removed while it was read
                now = await anyio.to_thread.run_sync(board.values)
            # The time is that of the machine with the runs: the page shows how long ago something was.
            sent = json.dumps({**now, "now": time.time()}, allow_nan=False) if now != before else ""
            yield f"data: {sent}\n\n" if sent else ": no change\n\n"
            before, wait = now, max(_PAUSE, (time.monotonic() - begun) / _SHARE_OF_TIME)
        await anyio.sleep(_STEP)
        wait -= _STEP


class _Guard:
    """Middleware: answers only who may read the board, and adds the headers of every answer."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._app
        if scope["type"] == "http":
            answer = self._refusal(Request(scope)) or answer

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name for name, _ in message["headers"]}
                new = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
                message["headers"] = [*message["headers"], *(pair for pair in new if pair[0] not in own)]
            await send(message)

        await answer(scope, receive, with_headers)

    def _refusal(self, request: Request) -> Response | None:
        if not self._token:
            if is_loopback(request.url.hostname or ""):
                return None
            return PlainTextResponse("This board answers only requests to localhost.", 421)
        token = request.query_params.get("token")
        if token is not None and self._is_token(token):
            response = RedirectResponse("/", 303)
            response.set_cookie(_COOKIE, self._token, httponly=True, samesite="strict")
            return response
        if self._is_token(request.cookies.get(_COOKIE, "")):
            return None
        return PlainTextResponse("Open the address that `fedapps board` has printed, with its token.", 401)

    def _is_token(self, token: str) -> bool:
        return secrets.compare_digest(token.encode(), self._token.encode())
