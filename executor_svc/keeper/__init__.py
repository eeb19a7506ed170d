"""What an executor does with a keeper: the link to it, and the memory that it keeps."""
