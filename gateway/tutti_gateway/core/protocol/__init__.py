"""Events, actions and messages of the core, and their validation and encoding."""
