"""`python -m tutti_gateway.reads`: the reads process, started by the gateway."""

import logging
import os
import signal

# Arrow's own allocator keeps 4 MB from the first use on and was no faster here, where the work is in mapped files.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")

if __name__ == "__main__":
    # Libraries start threads when they are imported. One of them that does not block it could be given the SIGTERM, and die of it.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    from tutti_gateway.reads.main import main

    code = main()
    logging.shutdown()
    os._exit(code)  # threads of the Flight library may still wait for callers that do not read
