"""Entry point of `python -m tutti_gateway.reads`, the reads process, which the gateway starts."""

import logging
import os
import signal

# Arrow's own allocator keeps 4 MB after its first use. It saves no time here, because most work is in mapped files.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")

if __name__ == "__main__":
    # Imported libraries start threads. SIGTERM is blocked before, because a thread that does not block it would end the process.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    from tutti_gateway.reads.main import main

    code = main()
    logging.shutdown()
    os._exit(code)  # without waiting for threads of the Flight library, which may block in a send to a slow client
