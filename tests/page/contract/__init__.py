"""What the service tells pages, written down: the service has to tell it so, and the page's logic to read it."""
