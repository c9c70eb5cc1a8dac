# Generated from _async/__init__.py by `make clients`. Do not edit.
"""One half of the package; the synchronous half is generated from the asynchronous one."""
