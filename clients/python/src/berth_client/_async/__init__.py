"""One of two halves: the synchronous one is generated from the asynchronous one."""
