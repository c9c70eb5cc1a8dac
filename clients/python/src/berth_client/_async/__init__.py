"""One half of the package; the synchronous half is generated from the asynchronous one."""
