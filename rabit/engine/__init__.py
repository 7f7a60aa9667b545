"""One rank of one job: requests in, handles out."""
