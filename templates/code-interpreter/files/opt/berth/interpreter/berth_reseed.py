"""Gives a kernel new random numbers when its sandbox is another one.

A kernel that was stored, or forked with its sandbox, holds the state of Python's
and numpy's generators, the same in every copy. The file below changes with each
new identity. It is looked at before each cell, and watched for what runs while
a sandbox is forked. Generators that a program made itself, such as
numpy.random.default_rng(), stay as they are: the program has to look at the file.
"""

import ctypes
import os
import sys
import threading

GENERATION = "/run/berth/generation"
IN_MODIFY = 0x2

_lock = threading.Lock()
_seen = None


def _generation():
    try:
        with open(GENERATION, "rb") as f:
            return f.read()
    except OSError:
        return None


def reseed():
    """Reseed if this is another sandbox than before."""
    global _seen
    with _lock:
        now = _generation()
        if now == _seen:
            return
        _seen = now
        if "random" in sys.modules:
            sys.modules["random"].seed()
        if "numpy.random" in sys.modules:
            sys.modules["numpy.random"].seed()


def _watch():
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.inotify_init1(os.O_CLOEXEC)
    if fd < 0 or libc.inotify_add_watch(fd, GENERATION.encode(), IN_MODIFY) < 0:
        return
    while os.read(fd, 4096):
        reseed()


def load_ipython_extension(ip):
    reseed()
    ip.events.register("pre_execute", reseed)
    threading.Thread(target=_watch, name="berth-reseed", daemon=True).start()
