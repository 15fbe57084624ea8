"""ASGI application: routes, option parsing, and JSON for every error."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from tutti.errors import TuttiError
from tutti_connect.http import limits
from tutti_connect.http.handlers import Service
from tutti_connect.http.interface.operations import OPERATIONS, Operation
from tutti_connect.http.interface.problems import Problem, problem_of
from tutti_connect.http.interface.requests import Query, query_of
from tutti_connect.http.produce.bodies import JSON

LOG = logging.getLogger("tutti.http")
Handler = Callable[[Request, Query], Awaitable[Response]]
Endpoint = Callable[[Request], Awaitable[Response]]


def application(service: Service) -> ASGIApp:
    """Return the ASGI application of a service."""

    async def on_http_error(request: Request, error: Exception) -> Response:
        problem = _of_starlette(request, error)
        service.metrics.answered("none", problem.status)
        return _answer(problem)

    routes = [Route(one.path, _endpoint(service, one), methods=[one.method]) for one in OPERATIONS]
    app = Starlette(routes=routes, exception_handlers={HTTPException: on_http_error})
    app.router.redirect_slashes = False
    return app


def _endpoint(service: Service, operation: Operation) -> Endpoint:
    handler: Handler = getattr(service, operation.handler)
    options = [one.name for one in operation.parameters if one.where == "query"]

    async def answer(request: Request) -> Response:
        try:
            _check_head(request)
            response = await handler(request, query_of(request.query_params.multi_items(), options))
        except Problem as problem:
            response = _answer(problem)
        except TuttiError as error:
            response = _answer(problem_of(error))
        except ClientDisconnect:
            response = Response(status_code=400)  # the caller has disconnected
        except Exception:  # a defect in one handler must not end other requests, so answer 500 and count it
            LOG.exception("%s %s failed", request.method, operation.path)
            response = _answer(Problem(500, "a defect in the connector: see its log"))
        service.metrics.answered(operation.handler, response.status_code)
        return response

    return answer


def _check_head(request: Request) -> None:
    """Reject a request head above the size limit. The parser's own limit misses a head that arrives in one read.

    Raises:
        Problem: 431.
    """
    scope = request.scope
    size = len(scope["raw_path"]) + len(scope["query_string"]) + sum(len(name) + len(value) + 4 for name, value in scope["headers"])
    if size > limits.HEADER_BYTES_MAX:
        raise Problem(431, f"the head of the request has {size} bytes: at most {limits.HEADER_BYTES_MAX} are allowed", close=True)


def _answer(problem: Problem) -> Response:
    return Response(problem.body(), problem.status, problem.headers(), JSON)


def _of_starlette(request: Request, error: Exception) -> Problem:
    status = error.status_code if isinstance(error, HTTPException) else 500
    if status == 404:
        return Problem(404, f"there is no {request.scope['path'][:80]}; see /docs for the operations")
    if status == 405:
        allowed = (error.headers or {}).get("Allow", "") if isinstance(error, HTTPException) else ""
        return Problem(405, f"{request.method[:20]} is not allowed here; allowed: {allowed}")
    return Problem(status, str(error))
