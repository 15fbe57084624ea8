"""Entry point of `python -m tutti_gateway.reads`, the reads process, which the gateway starts."""

import logging
import os
import signal

# Arrow's own allocator would keep 4 MB after its first use and save no time, because most reads use mapped files.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")

if __name__ == "__main__":
    # Block SIGTERM before imported libraries start threads: SIGTERM would end the process in any thread that does not block it.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    from tutti_gateway.reads.main import main

    code = main()
    logging.shutdown()
    os._exit(code)  # without waiting for threads of the Flight library, which may block in a send to a slow client
