"""HTTP: endpoints, API keys, limits, and answers as OpenAI's API has them."""
