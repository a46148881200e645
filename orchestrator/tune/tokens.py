"""The hub's token on its way from the driver to the machines that have none of their own.

    driver    HF_TOKEN, or the file that `hf auth login` wrote  -->  TokenKeeper, an actor beside the driver, in memory alone
    worker    asks it when a model must be fetched, keeps the token in its environment meanwhile

Ray shows the environment that a driver gives its workers (`runtime_env`) in its dashboard, its state API and its logs, and Tune
pickles what a trial is given into the sweep's folder. So the token goes neither way: it is an argument of a task or of an
actor's method, which Ray passes from process to process and does not keep.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

NAME = "craft-hub-token"
VARIABLE = "HF_TOKEN"
ASK_SECONDS = 30.0


class TokenKeeper:
    """Holds the token of the driver's user for the workers of the same driver."""

    def __init__(self) -> None:
        self._token: str | None = None

    def keep(self, token: str) -> None:
        self._token = token

    def token(self) -> str | None:
        return self._token


def own_token() -> str | None:
    """The token of this machine's user: from `HF_TOKEN`, or the file that `HF_TOKEN_PATH` or `HF_HOME` names."""
    from huggingface_hub import get_token

    return get_token()


@contextmanager
def keeping_token() -> Iterator[None]:
    """Inside, workers of this driver can ask for its token. Call it where a cluster is joined."""
    token = own_token()
    if token is None:
        yield
        return
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    keeper: Any = ray.remote(num_cpus=0)(TokenKeeper).options(name=NAME, scheduling_strategy=here).remote()
    keeper.keep.remote(token)
    try:
        yield
    finally:
        if ray.is_initialized():
            ray.kill(keeper)


@contextmanager
def shared_token() -> Iterator[None]:
    """Inside, this worker has the token that its driver keeps, unless it has its own."""
    token: str | None = None
    if own_token() is None:
        try:
            keeper: Any = ray.get_actor(NAME)
            token = ray.get(keeper.token.remote(), timeout=ASK_SECONDS)
        except (ValueError, ray.exceptions.RayError):  # the driver has none, or is gone
            token = None
    with with_token(token):
        yield


@contextmanager
def with_token(token: str | None) -> Iterator[None]:
    """Inside, libraries of this process find `token`, unless the machine has its own."""
    if token is None or own_token() is not None:
        yield
        return
    os.environ[VARIABLE] = token
    try:
        yield
    finally:
        os.environ.pop(VARIABLE, None)
