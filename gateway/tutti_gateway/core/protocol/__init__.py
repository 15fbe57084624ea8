"""Events, actions and messages of the core, with their validation and encoding."""
