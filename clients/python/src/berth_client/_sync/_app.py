# Generated from _async/_app.py by `make clients`. Do not edit.
"""Apps: programs that are built from a repository, or an upload, and served at a URL."""

from __future__ import annotations

import time
from collections.abc import Iterator, Callable
from datetime import datetime
from typing import Any

from .. import models
from .. import operations as op
from .._call import Body
from .._core import backoff
from ..errors import BerthError, ConnectionFailed, DeploymentFailed, StreamBroken
from ..types import LogLine
from . import _io
from ._streams import Feed, log_feed
from ._transport import Transport

Log = Callable[[LogLine], object]
"""Called with each line of a deployment's log."""

Variables = list[models.AppVariable]


class Apps:
    """The workspace's apps."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(
        self, name: str, git_url: str | None = None, *, idempotency_key: str | None = None, **more: Any
    ) -> App:
        """Stores the settings of an app, which builds nothing: deploy it next.

        Without git_url its source is uploaded. more are the other fields of
        models.CreateApp.
        """
        if git_url is None:
            more.setdefault("source", "upload")
        body = models.CreateApp(name=name, git_url=git_url, **more)
        call = op.create_app(body, idempotency_key=idempotency_key)
        return App(self._transport, self._transport.call(call))

    def get(self, app_id: str) -> App:
        return App(self._transport, self._transport.call(op.get_app(app_id)))

    def list(self) -> Iterator[App]:
        """Iterates over all, newest first."""
        for info in self._transport.pages(op.list_apps()):
            yield App(self._transport, info)


class App:
    """A program at a stable URL, which sleeps when nobody looks."""

    def __init__(self, transport: Transport, info: models.App) -> None:
        self._transport = transport
        self.info = info
        """its last known record; see refresh"""

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def status(self) -> models.AppStatus:
        return self.info.status

    @property
    def url(self) -> str:
        return self.info.url

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.info.name!r} {self.info.status}>"

    def refresh(self) -> App:
        """Reads its record again."""
        self.info = self._transport.call(op.get_app(self.id))
        return self

    def update(self, **fields: Any) -> App:
        """Changes settings, the fields of models.PatchApp; None is the default of one."""
        self.info = self._transport.call(op.patch_app(self.id, models.PatchApp(**fields)))
        return self

    def delete(self) -> None:
        """Deletes it with its deployments, variables and uploaded sources."""
        self._transport.nothing(op.delete_app(self.id))

    def deploy(
        self,
        *,
        git_ref: str | None = None,
        source: Body | None = None,
        clear_cache: bool = False,
        wait: bool = True,
        log: Log | None = None,
        idempotency_key: str | None = None,
    ) -> Deployment:
        """Deploys it and, unless told not to, waits until it is live; DeploymentFailed if it fails.

        source is a tar.gz, which is uploaded. clear_cache builds it without the caches of
        earlier builds. log is called with each line of the log, as it is written.
        """
        source_id = None
        if source is not None:
            source_id = (self.upload(source)).source_id
        body = models.CreateDeployment(git_ref=git_ref, source_id=source_id, clear_cache=clear_cache or None)
        call = op.deploy_app(self.id, body, idempotency_key=idempotency_key)
        deployment = Deployment(self._transport, self._transport.call(call))
        return deployment.wait(log=log) if wait else deployment

    def upload(self, source: Body) -> models.SourceUpload:
        """Uploads a tar.gz of its source, to be deployed later."""
        return self._transport.call(op.put_app_source(self.id, source))

    def rollback(
        self, deployment_id: str | None = None, *, wait: bool = True, log: Log | None = None
    ) -> Deployment:
        """Serves an earlier deployment again, by default the one that was live before."""
        call = op.rollback_app(self.id, models.RollBackApp(deployment_id=deployment_id))
        deployment = Deployment(self._transport, self._transport.call(call))
        return deployment.wait(log=log) if wait else deployment

    def deployment(self, deployment_id: str) -> Deployment:
        return Deployment(self._transport, self._transport.call(op.get_deployment(self.id, deployment_id)))

    def deployments(self) -> Iterator[Deployment]:
        """Iterates over all, newest first."""
        for info in self._transport.pages(op.list_deployments(self.id)):
            yield Deployment(self._transport, info)

    def logs(self, *, tail: int | None = None) -> str:
        """Reads what it has written since it started."""
        with self._transport.stream(op.app_logs(self.id, tail=tail)) as response:
            return (response.read()).decode(errors="replace")

    def follow_logs(self, *, tail: int | None = None) -> Feed[LogLine]:
        """Iterates over existing lines and then new ones."""
        return Feed(log_feed(self._transport, op.follow_app_logs(self.id, tail=tail)))

    def env(self) -> Variables:
        """Lists its variables, with secret values masked."""
        return self._transport.call(op.list_app_env(self.id))

    def set_env(self, key: str, value: str, *, secret: bool | None = None, scope: str | None = None) -> None:
        """Sets a variable, from the next deployment on. Without secret and scope, one that
        exists keeps its own."""
        body = models.PutAppVariable(value=value, secret=secret, scope=scope)
        self._transport.call(op.put_app_env(self.id, key, body))

    def delete_env(self, key: str) -> None:
        self._transport.nothing(op.delete_app_env(self.id, key))

    def import_env(self, dotenv: str, *, secret: bool | None = None, scope: str | None = None) -> Variables:
        """Sets the variables of a .env file, and returns all."""
        body = models.ImportAppEnv(dotenv=dotenv, secret=secret, scope=scope)
        return self._transport.call(op.import_app_env(self.id, body))

    def add_domain(self, domain: str, *, idempotency_key: str | None = None) -> models.AppDomain:
        """Claims a domain of yours; its dns says what to set there."""
        body = models.CreateAppDomain(domain=domain)
        return self._transport.call(op.create_app_domain(self.id, body, idempotency_key=idempotency_key))

    def domains(self) -> Iterator[models.AppDomain]:
        """Iterates over its domains, newest first."""
        for domain in self._transport.pages(op.list_app_domains(self.id)):
            yield domain

    def domain(self, domain: str) -> models.AppDomain:
        return self._transport.call(op.get_app_domain(self.id, domain))

    def verify_domain(self, domain: str) -> models.AppDomain:
        """Looks into DNS now; a domain whose record is not there is still pending."""
        return self._transport.call(op.verify_app_domain(self.id, domain))

    def remove_domain(self, domain: str) -> None:
        self._transport.nothing(op.delete_app_domain(self.id, domain))


class Deployment:
    """One attempt to bring a version of an app into service."""

    def __init__(self, transport: Transport, info: models.Deployment) -> None:
        self._transport = transport
        self.info = info
        """its last known record; see refresh"""

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def status(self) -> models.DeploymentStatus:
        return self.info.status

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.info.status}>"

    def refresh(self) -> Deployment:
        """Reads its record again."""
        self.info = self._transport.call(op.get_deployment(self.info.app_id, self.id))
        return self

    def cancel(self) -> Deployment:
        """Ends it; it has then failed."""
        self.info = self._transport.call(op.cancel_deployment(self.info.app_id, self.id))
        return self

    def logs(self) -> Feed[LogLine]:
        """Iterates over its log from the beginning, until it ends."""
        return Feed(self._lines())

    def wait(self, timeout: float | None = None, *, log: Log | None = None) -> Deployment:
        """Waits until it is live; DeploymentFailed if it fails. log is called with each line of its log.

        The timeout holds without a log alone.
        """
        if log is not None:
            for line in self._lines():
                log(line)
        deadline = None if timeout is None else time.monotonic() + timeout
        polls = 0
        while self.info.status not in ("live", "failed"):
            if deadline is not None and time.monotonic() > deadline:
                raise BerthError(f"the deployment is {self.info.status} after {timeout} seconds")
            _io.sleep(min(backoff(polls), 2.0))
            polls += 1
            self.refresh()
        if self.info.status == "failed":
            raise DeploymentFailed(self.info.error or "the deployment failed")
        return self

    def _lines(self) -> Iterator[LogLine]:
        """A connection that breaks is replaced; every one begins with the first line."""
        # Those that were delivered. A deployment that began again on another host has
        # others, from the first that differs.
        said: list[int] = []
        failures = 0
        while True:
            at = 0
            try:
                with self._transport.stream(op.deployment_logs(self.info.app_id, self.id)) as response:
                    for message in self._transport.messages(response):
                        raw = message.json()
                        if message.event == "error":
                            raise StreamBroken(str(raw.get("error", "the stream broke off")))
                        if message.event == "end":
                            self.info = models.Deployment.from_json(raw)
                            return
                        if message.event not in ("stdout", "stderr"):
                            continue
                        digest = hash(raw["line"])
                        again = at < len(said) and said[at] == digest
                        if not again:
                            said[at:] = [digest]
                        at += 1
                        if not again:
                            failures = 0
                            ts = raw.get("ts")
                            when = None if ts is None else datetime.fromisoformat(ts)
                            yield LogLine(message.event, raw["line"], when, raw.get("partial", False))
                raise StreamBroken("the log ended before the deployment")
            except (ConnectionFailed, StreamBroken):
                failures += 1
                if failures > self._transport.config.retries:
                    raise
            _io.sleep(backoff(failures))
