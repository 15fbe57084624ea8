"""Parts that several folders of the reads process share: authorization, connections, the link to the gateway, memory, logs."""
