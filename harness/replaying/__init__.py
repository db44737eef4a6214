"""What of a stream of prompts a cache could have hit, and what a manager did hit."""
