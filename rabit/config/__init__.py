"""Settings: what each is, where its value comes from, and what is handed to the engine."""
