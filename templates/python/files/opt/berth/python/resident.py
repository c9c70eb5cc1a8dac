"""The resident interpreter behind /usr/local/bin/python (client.c).

It has imported the modules below once, before the guest is stored, and forks for
each command. The child takes over what its caller gave (directory, environment,
umask, limits, niceness, ignored signals, control group, standard streams), and runs the
command as python3 does. What it cannot run exactly so, it hands to python3.

Usage: resident.py SOCKET [CGROUP_ROOT]
"""
import array
import atexit
import gc
import io
import os
import resource
import select
import signal
import site
import socket
import struct
import sys
import time
import types

# docs/templates.md lists them.
import argparse, asyncio, base64, collections, contextlib, csv, dataclasses  # noqa: E401
import datetime, enum, functools, glob, hashlib, http.client, inspect, itertools  # noqa: E401
import json, logging, math, pathlib, random, re, runpy, shutil, ssl, string  # noqa: E401
import subprocess, tempfile, textwrap, threading, traceback, typing, uuid  # noqa: E401
import urllib.parse, urllib.request  # noqa: E401

# As client.c's struct header.
HEADER = struct.Struct("=IIIi256s")
LIMITS = 16
MOST = 400  # commands at once; a further one is run by python3
PYTHON = sys.executable
# All whose handling an interpreter takes from its caller.
OTHERS_SIGNALS = set(range(1, 32)) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ}

resident = sys.modules["__main__"]  # kept: its names are those of the functions here


class Exact(Exception):
    """To be run by python3."""


def site_state():
    """Changes when packages are installed, or another user's directory counts."""
    home = os.environ.get("HOME", "")
    user = f"{home}/.local/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    state = [home]
    for directory in (*SITE_DIRS, user):
        try:
            state.append(os.stat(directory).st_mtime_ns)
        except OSError:
            state.append(None)
    return state


def find_sites():
    """The module path again, as a new interpreter finds it."""
    sys.path[:] = PLAIN_PATH
    site.USER_BASE = site.USER_SITE = site.ENABLE_USER_SITE = None
    site.main()


def receive(conn):
    """The caller's request: header, its three streams, and the strings."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=conn)
    try:
        data, control, _, _ = sock.recvmsg(1 << 16, socket.CMSG_SPACE(12))
        fds = array.array("i", control[0][2][:12])
        size, umask, ignored, nice, limits = HEADER.unpack_from(data)
        parts = [data]
        while size > (have := sum(map(len, parts))):
            if not (more := sock.recv(size - have)):
                raise EOFError
            parts.append(more)
    finally:
        sock.detach()
    cwd, rest = b"".join(parts)[HEADER.size:].split(b"\0", 1)
    # Each list ends with an empty string, so its end is two zeros; an empty one is but one.
    args, rest = ([], rest[1:]) if rest[:1] == b"\0" else rest.split(b"\0\0", 1)
    args = [os.fsdecode(a) for a in args.split(b"\0")] if args else []
    env = [e.partition(b"=") for e in rest.rstrip(b"\0").split(b"\0")]
    return fds, umask, ignored, nice, limits, cwd, args, env


def join_group_of(pid, root):
    """Into the caller's control group: its limits and its end are the child's."""
    with open(f"/proc/{pid}/cgroup") as f:
        path = next(line[3:].rstrip("\n") for line in f if line.startswith("0::"))
    with open(f"{root}{path}/cgroup.procs", "w") as f:
        f.write("0")


def take_over(conn, root):
    """Makes this process the caller's; returns the command's arguments."""
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=conn)
    pid = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    peer.detach()
    fds, umask, ignored, nice, limits, cwd, args, env = receive(conn)
    if root:
        join_group_of(pid, root)
    os.setsid()
    if limits != own_limits():
        for n in range(LIMITS):
            resource.setrlimit(n, [v if v < 1 << 63 else -1 for v in struct.unpack_from("=QQ", limits, n * 16)])
    if nice != os.getpriority(os.PRIO_PROCESS, 0):
        os.setpriority(os.PRIO_PROCESS, 0, nice)
    os.umask(umask)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update((os.fsdecode(k), os.fsdecode(v)) for k, _, v in env)
    for n in range(1, 32):
        if ignored >> n & 1 and n in OTHERS_SIGNALS:
            signal.signal(n, signal.SIG_IGN)
    for n, fd in enumerate(fds):
        os.dup2(fd, n)
    os.write(conn, struct.pack("=i", os.getpid()))
    os.closerange(3, 1 << 30)
    time.tzset()
    if site_state() != SITE_STATE:
        find_sites()
    return args


def own_limits():
    return b"".join(struct.pack("=QQ", *(v & (1 << 64) - 1 for v in resource.getrlimit(n))) for n in range(LIMITS))


def open_streams():
    """sys.stdin and so on, as an interpreter makes them for what are no terminals."""
    for fd, mode, name in ((0, "r", "stdin"), (1, "w", "stdout"), (2, "w", "stderr")):
        buffer = open(fd, mode + "b", -1, closefd=False)
        buffer.raw.name = f"<{name}>"
        stream = io.TextIOWrapper(buffer, "utf-8", "backslashreplace" if fd == 2 else "surrogateescape", "\n", fd == 2)
        stream.mode = mode
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def shadows(directory):
    """Whether a file there would be imported in the place of a module that is imported already."""
    try:
        return any(name.partition(".")[0] in LOADED for name in os.listdir(directory))
    except OSError:
        return False


def program(args):
    """The function that runs the command, and sys.argv, sys.path[0], __main__ for it."""
    import builtins
    main = types.ModuleType("__main__")
    main.__builtins__ = builtins
    main.__annotations__ = {}
    names = main.__dict__
    how = args[0] if args else ""
    if how == "-m":
        sys.argv, first = ["-m", *args[2:]], os.getcwd()
        run = lambda: runpy._run_module_as_main(args[1])  # noqa: E731
    elif how == "-c":
        sys.argv, first = ["-c", *args[2:]], ""
        main.__loader__ = sys.modules["_frozen_importlib"].BuiltinImporter
        run = lambda: exec(compile(args[1], "<string>", "exec", dont_inherit=True), names)  # noqa: E731
    elif how in ("", "-"):
        sys.argv, first = args or [""], ""
        main.__file__, main.__cached__ = "<stdin>", None
        main.__loader__ = sys.modules["_frozen_importlib"].BuiltinImporter

        def run():
            with open(0, "rb", closefd=False) as f:
                source = f.read()
            exec(compile(source, "<stdin>", "exec", dont_inherit=True), names)
    else:
        path = os.path.join(os.getcwd(), how)
        try:
            with open(path, "rb") as f:
                source = f.read()
        except OSError as e:
            raise Exact from e  # which has its own words for it; a directory may be a program
        if b"\0" in source:
            raise Exact  # compiled, or an archive
        sys.argv, first = args, os.path.dirname(os.path.realpath(how))
        main.__file__, main.__cached__ = path, None
        main.__loader__ = sys.modules["_frozen_importlib_external"].SourceFileLoader("__main__", path)
        run = lambda: exec(compile(source, path, "exec", dont_inherit=True), names)  # noqa: E731
    if shadows(first or "."):
        raise Exact
    sys.path.insert(0, first)
    sys.orig_argv = ["python", *args]
    sys.modules["__main__"] = main
    return run


def clear_up():
    """Finalizes what the command made, as the end of an interpreter does.

    All else is left as it is: to take it apart would copy most of the memory that
    this process shares with the resident. False if the interpreter must end itself.
    """
    try:
        threading._shutdown()
        atexit._run_exitfuncs()
        made = [module for name, module in sys.modules.items() if name not in MODULES or name == "__main__"]
        for module in reversed(made):
            names = getattr(module, "__dict__", {})
            for first in True, False:
                for name in [n for n in names if n[:1] == "_" or not first]:
                    if name != "__builtins__":
                        names[name] = None
        gc.collect()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        return False  # a full disk, a closed pipe: it has words and an exit code for that
    return True


def leave(code):
    """Ends this process as SystemExit(code) does, code being None or a number."""
    if clear_up():
        os._exit((code or 0) & 0xFF)
    raise SystemExit(code)


def run_command(args):
    """Runs it, and ends this process as python3 would end."""
    try:
        run = program(args)
        open_streams()
    except (Exact, OSError):
        os.execv(PYTHON, [PYTHON, *args])
    try:
        run()
    except SystemExit as e:
        if e.code is not None and not isinstance(e.code, int):
            raise
        code = e.code
    except BaseException as e:
        # Without the frames of this file: run_command and the function of program().
        trace = e.__traceback__.tb_next.tb_next
        e.__traceback__ = trace
        code = 1
        interrupted = isinstance(e, KeyboardInterrupt)
        sys.last_type, sys.last_value, sys.last_traceback = type(e), e, trace
        sys.excepthook(type(e), e, trace)
        if interrupted:
            clear_up()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
    else:
        code = None
    leave(code)


def serve(path, root):
    """Forks for each command until this process is the child of one; returns its arguments."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    old = os.umask(0o177)
    listener.bind(path)
    os.umask(old)
    listener.listen(64)
    listener.setblocking(False)
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    children = {}  # connection → (pid, pidfd)
    ends = {}  # pidfd → connection
    while True:
        for fd, _ in poll.poll():
            if fd in ends:
                # Told, but not reaped: until the caller has gone, the number is its child's.
                conn = ends.pop(fd)
                poll.unregister(fd)
                how = os.waitid(os.P_PIDFD, fd, os.WEXITED | os.WNOWAIT)
                try:
                    os.write(conn, struct.pack("=ii", how.si_code, how.si_status))
                except OSError:
                    pass
            elif fd in children:
                pid, pidfd = children.pop(fd)
                poll.unregister(fd)
                if ends.pop(pidfd, None) is not None:
                    poll.unregister(pidfd)
                    for kill in (os.killpg, os.kill):  # before setsid there is no group
                        try:
                            kill(pid, signal.SIGKILL)
                        except OSError:
                            pass
                os.waitpid(pid, 0)
                os.close(pidfd)
                os.close(fd)
            elif fd == listener.fileno():
                try:
                    conn = listener.accept()[0].detach()
                except OSError:
                    continue
                pid = None
                if len(children) < MOST:
                    try:
                        pid = os.fork()
                    except OSError:
                        pass
                if pid == 0:
                    listener.detach()
                    try:
                        return take_over(conn, root)
                    except BaseException:
                        os._exit(1)  # before "mine": the caller runs python3
                if pid is None:
                    os.close(conn)
                    continue
                pidfd = os.pidfd_open(pid)
                children[conn], ends[pidfd] = (pid, pidfd), conn
                poll.register(conn, 0)  # its end
                poll.register(pidfd, select.POLLIN)


SITE_DIRS = site.getsitepackages()
PLAIN_PATH = [p for p in sys.path[1:] if "-packages" not in p]
SITE_STATE = site_state()
MODULES = set(sys.modules)
LOADED = {name.partition(".")[0] for name in sys.modules} - set(sys.builtin_module_names) - {"__main__"}

if __name__ == "__main__":
    del sys.path[0]
    for number in OTHERS_SIGNALS:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    arguments = sys.argv[1:]
    gc.collect()
    gc.freeze()  # what is here already is not written to by a child's collector
    run_command(serve(arguments[0], arguments[1] if len(arguments) > 1 else "/sys/fs/cgroup"))
