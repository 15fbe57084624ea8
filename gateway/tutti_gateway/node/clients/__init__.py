"""The client port: connections, sessions, authorization, requests, batch validation and replies."""
