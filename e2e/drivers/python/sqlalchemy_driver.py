"""What an application does, by SQLAlchemy with psycopg 3."""

import threading

from sqlalchemy import ForeignKey, String, create_engine, func, inspect, select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

from common import modes, of, ok, params, ready, verified


def engine(mode: dict[str, str], params: dict = params):
    return create_engine("postgresql+psycopg://", connect_args={**params, **mode}, pool_pre_ping=True)


for name, mode in modes.items():
    once = engine(mode)
    with once.connect() as conn:
        assert conn.execute(text("SELECT 6 * 7")).scalar_one() == 42
    once.dispose()
    ok("connect " + name)


class Base(DeclarativeBase):
    pass


class Author(Base):
    __tablename__ = "sqlalchemy_author"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(100), unique=True)
    books: Mapped[list["Book"]] = relationship(back_populates="author")


class Book(Base):
    __tablename__ = "sqlalchemy_book"
    id: Mapped[int] = mapped_column(primary_key=True)
    author_id: Mapped[int] = mapped_column(ForeignKey("sqlalchemy_author.id"))
    author: Mapped[Author] = relationship(back_populates="books")


db = engine(verified)
Base.metadata.drop_all(db)
Base.metadata.create_all(db)
assert inspect(db).has_table("sqlalchemy_book")
with Session(db) as session:
    session.add(Author(name="a", books=[Book(), Book()]))
    session.commit()
    assert session.scalar(select(func.count()).select_from(Book).join(Author).where(Author.name == "a")) == 2
ok("schema and objects")

with db.connect() as conn:
    conn.connection.driver_connection.prepare_threshold = 0
    for i in range(3):
        assert conn.execute(text("SELECT CAST(:i AS int) + 1"), {"i": i}).scalar_one() == i + 1
    ok("prepared statements")
    with conn.connection.cursor().copy("COPY sqlalchemy_book (author_id) FROM STDIN") as copy:
        for _ in range(10_000):
            copy.write_row((1,))
    assert conn.execute(select(func.count()).select_from(Book)).scalar_one() == 10_002
    conn.commit()
    ok("copy")

with db.execution_options(isolation_level="AUTOCOMMIT").connect() as conn:
    conn.execute(text("LISTEN sqlalchemy_channel"))
    with db.begin() as other:
        other.execute(text("NOTIFY sqlalchemy_channel, 'hello'"))
    driver = conn.connection.driver_connection
    assert [n.payload for n in driver.notifies(timeout=60, stop_after=1)] == ["hello"]
    ok("listen, notify")

    ended = threading.Event()

    def cancel() -> None:
        while not ended.wait(0.2):  # until the statement has begun
            driver.cancel_safe()

    canceller = threading.Thread(target=cancel)
    canceller.start()
    try:
        conn.execute(text("SELECT pg_sleep(120)"))
        raise AssertionError("it was not cancelled")
    except OperationalError as e:
        assert e.orig.sqlstate == "57014", e
    finally:
        ended.set()
        canceller.join()
    assert conn.execute(text("SELECT 1")).scalar_one() == 1
    ok("cancel")

Base.metadata.drop_all(db)
db.dispose()

ready("sleep")
with db.connect() as held:
    assert held.execute(text("SELECT 6 * 7")).scalar_one() == 42
    ok("wake")
    fresh = ready("rotation")
    try:
        held.execute(text("SELECT 1"))
        raise AssertionError("a session of before the rotation goes on")
    except OperationalError as e:
        assert e.orig.sqlstate == "57P01" and e.connection_invalidated, e
try:
    db.connect()
    raise AssertionError("the password of before the rotation is good")
except OperationalError as e:
    assert "password authentication failed" in str(e), e
with engine(verified, of(fresh)).connect() as conn:
    assert conn.execute(text("SELECT 6 * 7")).scalar_one() == 42
ok("rotation")
