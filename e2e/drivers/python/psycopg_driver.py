"""What a client does, by psycopg 3."""

import threading
import time

import psycopg

from common import modes, of, ok, params, ready, verified

for name, mode in modes.items():
    with psycopg.connect(**params, **mode) as conn:
        assert conn.execute("SELECT 6 * 7").fetchone() == (42,)
    ok("connect " + name)

with psycopg.connect(**params, **verified, autocommit=True) as conn:
    for i in range(3):
        assert conn.execute("SELECT %s::int + 1", (i,), prepare=True).fetchone() == (i + 1,)
    ok("prepared statements")

    conn.execute("CREATE TEMP TABLE psycopg_rows (n int PRIMARY KEY, t text)")
    with conn.cursor().copy("COPY psycopg_rows FROM STDIN") as copy:
        for i in range(10_000):
            copy.write_row((i, f"row {i}"))
    with conn.cursor().copy("COPY psycopg_rows TO STDOUT") as copy:
        assert sum(1 for _ in copy.rows()) == 10_000
    ok("copy")

    conn.execute("LISTEN psycopg_channel")
    with psycopg.connect(**params, **verified, autocommit=True) as other:
        other.execute("SELECT pg_notify('psycopg_channel', 'hello')")
    assert [n.payload for n in conn.notifies(timeout=60, stop_after=1)] == ["hello"]
    ok("listen, notify")

    ended = threading.Event()

    def cancel() -> None:
        while not ended.wait(0.2):  # until the statement has begun
            conn.cancel_safe()

    canceller = threading.Thread(target=cancel)
    canceller.start()
    began = time.monotonic()
    try:
        conn.execute("SELECT pg_sleep(120)")
        raise AssertionError("it was not cancelled")
    except psycopg.errors.QueryCanceled:
        assert time.monotonic() - began < 60
    finally:
        ended.set()
        canceller.join()
    assert conn.execute("SELECT 1").fetchone() == (1,)
    ok("cancel")

ready("sleep")
with psycopg.connect(**params, **verified, autocommit=True) as held:
    assert held.execute("SELECT 6 * 7").fetchone() == (42,)
    ok("wake")
    fresh = ready("rotation")
    try:
        held.execute("SELECT 1")
        raise AssertionError("a session of before the rotation goes on")
    except psycopg.errors.AdminShutdown:
        assert held.closed
try:
    psycopg.connect(**params, **verified)
    raise AssertionError("the password of before the rotation is good")
except psycopg.OperationalError as e:
    assert "password authentication failed" in str(e), e
with psycopg.connect(**of(fresh), **verified) as conn:
    assert conn.execute("SELECT 6 * 7").fetchone() == (42,)
ok("rotation")
