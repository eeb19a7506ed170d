"""What frontends keep in the store, in the API's terms: JSON in and out, errors as clients see them."""
