# Generated from _async/__init__.py by `make clients`. Do not edit.
"""One of two halves: the synchronous one is generated from the asynchronous one."""
