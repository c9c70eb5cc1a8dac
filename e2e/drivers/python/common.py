"""What both drivers are told, by the environment."""

import os
import sys
from urllib.parse import unquote, urlsplit


def of(dsn: str) -> dict:
    """What libpq is told of a database."""
    url = urlsplit(dsn)
    return {
        "host": url.hostname,
        # The name is verified, and not looked up.
        "hostaddr": os.environ["DRIVER_ADDR"].rsplit(":", 1)[0],
        "port": url.port,
        "user": unquote(url.username or ""),
        "password": unquote(url.password or ""),
        "dbname": url.path.lstrip("/"),
        "connect_timeout": 60,
    }


params = of(os.environ["DRIVER_URL"])
verified = {"sslmode": "verify-full", "sslrootcert": os.environ["DRIVER_CA"]}
modes = {
    "require": {"sslmode": "require"},
    "verify-full": verified,
    "channel_binding=require": {**verified, "channel_binding": "require"},
}


def ok(step: str) -> None:
    print("ok:", step, flush=True)


def ready(step: str) -> str:
    """Waits for what happens to the database in the middle: see the type driver in drivers_test.go."""
    print("ready:", step, flush=True)
    return sys.stdin.readline().strip()
